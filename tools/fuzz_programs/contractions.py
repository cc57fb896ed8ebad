"""Families of sums of products: dot, convolution, fft."""

from math import prod

from tools.fuzz_programs.adjusting import is_float, is_integer, is_number, small_integer, tamed
from tools.fuzz_programs.builder import Body, Families
from tools.fuzz_programs.facts import (
    AnyFacts,
    Facts,
    Transfer,
    UntameError,
    hull,
    multiplied,
    repeated,
    rounded,
)
from tools.fuzz_programs.values import Value, array_shape, braces


def summing(element_type: str, count: int, *, padded: bool = False) -> Transfer:
    """Return the transfer of sums of `count` products, or of fewer where some are padding."""

    def transfer(f: Facts, g: Facts) -> AnyFacts:
        total = repeated(multiplied(f, g), count)
        if padded:
            total = hull(total, Facts(0, 0, 0, total.grain))
        scale = count * f.magnitude * g.magnitude
        return rounded(element_type, total, roundings=2 + count, terms=scale)

    return transfer


def dot(body: Body) -> Value:
    """Append a dot in general form, its result perhaps in a wider type."""
    rng = body.rng
    a = body.pick(lambda v: 1 <= len(v.sizes) <= 3 and is_number(v))
    a = tamed(body, a) if is_float(a) else a
    dimensions = list(range(len(a.sizes)))
    rng.shuffle(dimensions)
    batch_count = rng.randrange(0, min(2, len(dimensions)) + 1)
    batch = dimensions[:batch_count]
    contracting = dimensions[batch_count : batch_count + rng.choice((0, 1, 1, 1, 2))]
    free = [rng.choice((1, 2, 3, 4)) for _ in range(rng.choice((0, 1, 1, 2)))]
    roles = [("batch", d) for d in batch] + [("contract", d) for d in contracting]
    roles += [("free", i) for i in range(len(free))]
    if len(roles) > 4:
        raise UntameError
    rng.shuffle(roles)
    sizes = [free[i] if role == "free" else a.sizes[i] for role, i in roles]
    b = fitting(body, a.type, sizes)
    places = {
        role: [p for p, (r, _) in enumerate(roles) if r == role] for role in ("batch", "contract")
    }
    names = {
        "lhs_batch_dims": batch, "lhs_contracting_dims": contracting,
        "rhs_batch_dims": [roles.index(("batch", d)) for d in batch],
        "rhs_contracting_dims": [roles.index(("contract", d)) for d in contracting],
    }  # fmt: skip
    assert sorted(names["rhs_batch_dims"]) == places["batch"]
    left = [n for d, n in enumerate(a.sizes) if d not in batch and d not in contracting]
    result = [a.sizes[d] for d in batch] + left
    result += [n for n, (role, _) in zip(sizes, roles, strict=True) if role == "free"]
    if len(result) > 5:
        raise UntameError
    wider = {"bf16": "f32", "f16": "f32", "s8": "s32"}.get(a.type, a.type)
    name = wider if rng.random() < 0.4 else a.type
    attributes = ", ".join(f"{key}={braces(value)}" for key, value in names.items() if value)
    count = prod(a.sizes[d] for d in contracting)
    return body.add("dot", array_shape(name, result), [a, b], summing(name, count), attributes)


def fitting(body: Body, element_type: str, sizes: list[int]) -> Value:
    """Choose or make a tame number array of given sizes."""
    alike = [v for v in body.arrays() if v.type == element_type and v.sizes == tuple(sizes)]
    value = body.rng.choice(alike) if alike else body.fresh(element_type, sizes)
    return tamed(body, value) if is_float(value) else value


def convolution(body: Body) -> Value:
    """Append a convolution with strides, padding, dilations, groups, any order of dimensions."""
    rng = body.rng
    value = body.pick(
        lambda v: 2 <= len(v.sizes) <= 4 and v.type in ("f32", "f64", "bf16", "f16", "s32")
    )
    if 0 in value.sizes:
        raise UntameError
    # XLA folds convolutions of constant integers by way of doubles, which do not wrap.
    value = tamed(body, value) if is_float(value) else small_integer(body, value, -99, 99)
    spatial = "012"[: len(value.sizes) - 2]
    lhs, rhs, out = (shuffled(body, letters + spatial) for letters in ("bf", "io", "bf"))
    size_of = dict(zip(lhs, value.sizes, strict=True))
    groups = rng.choice([g for g in (1, 2, 3) if size_of["f"] % g == 0])
    outputs = groups * rng.choice((1, 2))
    kernel = {"i": size_of["f"] // groups, "o": outputs}
    parts: dict[str, list[str]] = {
        k: [] for k in "size stride pad lhs_dilate rhs_dilate rhs_reversal".split()
    }
    result, count = {"b": size_of["b"], "f": outputs}, kernel["i"]
    for letter in spatial:
        size, stride = rng.choice((1, 2, 3)), rng.choice((1, 1, 2))
        # XLA:CPU is wrong for some convolutions with negative padding and strides.
        low, high = rng.choice((-1, 0, 1, 2) if stride == 1 else (0, 1, 2)), rng.choice((0, 1, 2))
        base, spread, reversal = rng.choice((1, 1, 2)), rng.choice((1, 1, 2)), rng.choice((0, 0, 1))
        whole = low + high + (size_of[letter] - 1) * base + 1
        reach = (size - 1) * spread + 1
        if whole < reach:
            low, high, whole = 0, reach, (size_of[letter] - 1) * base + 1 + reach
        kernel[letter], count = size, count * size
        result[letter] = (whole - reach) // stride + 1
        if result[letter] == 1:
            reversal = 0  # XLA makes a dot of it, and forgets the reversal
        words = (size, stride, f"{low}_{high}", base, spread, reversal)
        for key, word in zip(parts, words, strict=True):
            parts[key].append(str(word))
    w = fitting(body, value.type, [kernel[letter] for letter in rhs])
    w = w if is_float(w) else small_integer(body, w, -99, 99)
    text = " ".join(f"{key}={'x'.join(words)}" for key, words in parts.items())
    window = f"window={{{text}}}, " if spatial else ""
    attributes = f"{window}dim_labels={lhs}_{rhs}->{out}"
    if groups > 1:
        attributes += f", feature_group_count={groups}"
    shape = array_shape(value.type, [result[letter] for letter in out])
    return body.add(
        "convolution", shape, [value, w], summing(value.type, count, padded=True), attributes
    )


def shuffled(body: Body, letters: str) -> str:
    """Return letters in a drawn order."""
    return "".join(body.rng.sample(letters, len(letters)))


def fft(body: Body) -> Value:
    """Append a transform over the last dimensions."""
    value = body.pick(lambda v: v.type in ("c64", "c128", "f32", "f64") and len(v.sizes) >= 1)
    if 0 in value.sizes:
        raise UntameError
    if is_float(value):
        value = tamed(body, value)
    length, last = body.rng.randrange(1, min(2, len(value.sizes)) + 1), value.sizes[-1]
    lengths, name, sizes = list(value.sizes[-length:]), value.type, list(value.sizes)
    kind = body.rng.choice(("FFT", "IFFT"))
    if is_float(value):
        kind, name = "RFFT", {"f32": "c64", "f64": "c128"}[value.type]
        sizes[-1] = last // 2 + 1
    count = prod(lengths)

    def transfer(f: Facts) -> Facts:
        bound = 2 * f.magnitude * (1 if kind == "IFFT" else count)
        error = 2 * f.error * (1 if kind == "IFFT" else count)
        return rounded(name, Facts(-bound, bound, error), roundings=8 + 2 * count.bit_length())

    attributes = f"fft_type={kind}, fft_length={braces(lengths)}"
    return body.add("fft", array_shape(name, sizes), [value], transfer, attributes)


def integer_dot(body: Body) -> Value:
    """Append a dot of integers, which wraps."""
    a = body.pick(lambda v: is_integer(v) and 1 <= len(v.sizes) <= 2)
    b = fitting(body, a.type, [a.sizes[-1], 3])
    shape = array_shape(a.type, [*a.sizes[:-1], 3])
    attributes = f"lhs_contracting_dims={{{len(a.sizes) - 1}}}, rhs_contracting_dims={{0}}"
    return body.add("dot", shape, [a, b], summing(a.type, a.sizes[-1]), attributes)


FAMILIES: Families = {dot: 5, convolution: 3, fft: 1, integer_dot: 1}
"""Family -> weight."""
