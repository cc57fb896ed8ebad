"""Families of linear algebra and randomness: dot, convolution, fft, solves, batch norms, bits."""

from math import prod

from hloipu_compiler.ir.shapes import TupleShape
from hloipu_runtime.element_types import Kind
from tools.fuzz_programs.builder import Body, Value, array_shape, braces
from tools.fuzz_programs.elementwise import (
    arithmetic,
    is_float,
    is_integer,
    is_number,
    kind_of,
    positive,
    tamed,
)
from tools.fuzz_programs.facts import (
    AnyFacts,
    Facts,
    Transfer,
    UntameError,
    full_range,
    multiplied,
    repeated,
    rounded,
)


def summing(element_type: str, count: int) -> Transfer:
    """Return the transfer of sums of `count` products."""

    def transfer(f: Facts, g: Facts) -> AnyFacts:
        total = repeated(multiplied(f, g), count)
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
    places = {role: [p for p, (r, _) in enumerate(roles) if r == role] for role in ("batch", "contract")}
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
    found = [v for v in body.arrays() if v.type == element_type and v.sizes == tuple(sizes)]
    value = body.rng.choice(found) if found else body.fresh(element_type, sizes)
    return tamed(body, value) if is_float(value) else value


def convolution(body: Body) -> Value:
    """Append a convolution with strides, padding, dilations, groups, any order of dimensions."""
    rng = body.rng
    x = body.pick(lambda v: 2 <= len(v.sizes) <= 4 and v.type in ("f32", "f64", "bf16", "f16", "s32"))
    if 0 in x.sizes:
        raise UntameError
    x = tamed(body, x) if is_float(x) else x
    spatial = "012"[: len(x.sizes) - 2]
    lhs, rhs, out = (shuffled(body, letters + spatial) for letters in ("bf", "io", "bf"))
    size_of = dict(zip(lhs, x.sizes, strict=True))
    groups = rng.choice([g for g in (1, 2, 3) if size_of["f"] % g == 0])
    outputs = groups * rng.choice((1, 2))
    kernel = {"i": size_of["f"] // groups, "o": outputs}
    parts: dict[str, list[str]] = {k: [] for k in "size stride pad lhs_dilate rhs_dilate rhs_reversal".split()}
    result, count = {"b": size_of["b"], "f": outputs}, kernel["i"]
    for letter in spatial:
        size, stride = rng.choice((1, 2, 3)), rng.choice((1, 1, 2))
        low, high = rng.choice((-1, 0, 1, 2)), rng.choice((0, 1, 2))
        base, spread, reversal = rng.choice((1, 1, 2)), rng.choice((1, 1, 2)), rng.choice((0, 0, 1))
        whole = low + high + (size_of[letter] - 1) * base + 1
        reach = (size - 1) * spread + 1
        if whole < reach:
            low, high, whole = 0, reach, (size_of[letter] - 1) * base + 1 + reach
        kernel[letter], count = size, count * size
        result[letter] = (whole - reach) // stride + 1
        words = (size, stride, f"{low}_{high}", base, spread, reversal)
        for key, word in zip(parts, words, strict=True):
            parts[key].append(str(word))
    w = fitting(body, x.type, [kernel[letter] for letter in rhs])
    text = " ".join(f"{key}={'x'.join(words)}" for key, words in parts.items())
    window = f"window={{{text}}}, " if spatial else ""
    attributes = f"{window}dim_labels={lhs}_{rhs}->{out}"
    if groups > 1:
        attributes += f", feature_group_count={groups}"
    shape = array_shape(x.type, [result[letter] for letter in out])
    return body.add("convolution", shape, [x, w], summing(x.type, count), attributes)


def shuffled(body: Body, letters: str) -> str:
    """Return letters in a drawn order."""
    return "".join(body.rng.sample(letters, len(letters)))


def fft(body: Body) -> Value:
    """Append a transform over the last dimensions."""
    x = body.pick(lambda v: v.type in ("c64", "c128", "f32", "f64") and len(v.sizes) >= 1)
    if 0 in x.sizes:
        raise UntameError
    if is_float(x):
        x = tamed(body, x)
    length, last = body.rng.randrange(1, min(2, len(x.sizes)) + 1), x.sizes[-1]
    lengths, name, sizes = list(x.sizes[-length:]), x.type, list(x.sizes)
    kind = body.rng.choice(("FFT", "IFFT"))
    if is_float(x):
        kind, name = "RFFT", {"f32": "c64", "f64": "c128"}[x.type]
        sizes[-1] = last // 2 + 1
    count = prod(lengths)

    def transfer(f: Facts) -> Facts:
        bound = 2 * f.magnitude * (1 if kind == "IFFT" else count)
        error = 2 * f.error * (1 if kind == "IFFT" else count)
        return rounded(name, Facts(-bound, bound, error), roundings=8 + 2 * count.bit_length())

    attributes = f"fft_type={kind}, fft_length={braces(lengths)}"
    return body.add("fft", array_shape(name, sizes), [x], transfer, attributes)


def solve(body: Body) -> Value:
    """Append a cholesky or a triangular-solve of a matrix whose diagonal dominates."""
    rng = body.rng
    name, n = rng.choice(("f32", "f64")), rng.choice((1, 2, 3, 4, 5))
    batch = rng.choice(([], [], [2], [3]))
    facts = Facts(-1, 1, 0, 2.0**-6)
    noise = body.fresh(name, [*batch, n, n], facts)
    rank = len(noise.sizes)
    order = [*range(rank - 2), rank - 1, rank - 2]
    flipped = body.same("transpose", noise.shape, noise, f"dimensions={braces(order)}")
    both = arithmetic(body, "add", noise, flipped)
    square = array_shape("s32", [n, n])
    index = Facts(0, n, 0, 1)
    rows, columns = (
        body.add("iota", square, [], lambda: index, f"iota_dimension={d}") for d in (0, 1)
    )
    same = body.add(
        "compare", array_shape("pred", [n, n]), [rows, columns], lambda *_: Facts(0, 1, 0, 1),
        "direction=EQ",
    )  # fmt: skip
    diagonal = body.add("convert", array_shape(name, [n, n]), [same], lambda f: f)
    diagonal = body.broadcast(diagonal, noise.sizes, list(range(rank - 2, rank)))
    matrix = arithmetic(
        body, "add", both,
        arithmetic(body, "multiply", diagonal, body.filled(name, noise.sizes, 4.0 * n)),
    )  # fmt: skip
    if rng.random() < 0.5:
        # Eigenvalues lie within [2n, 6n], so the condition is at most 3.
        lower = rng.random() < 0.6
        made = body.add(
            "cholesky", matrix.shape, [matrix],
            lambda f: rounded(name, Facts(-3 * n, 3 * n, 1e-300), roundings=16 * n),
            f"lower={str(lower).lower()}",
        )  # fmt: skip
        # The other triangle is whatever the matrix had or zero: mask it.
        row, column = (rows, columns) if lower else (columns, rows)
        keep = body.add(
            "compare", array_shape("pred", [n, n]), [row, column], lambda *_: Facts(0, 1, 0, 1),
            "direction=GE",
        )  # fmt: skip
        keep = body.broadcast(keep, noise.sizes, list(range(rank - 2, rank)))
        zero = body.filled(name, noise.sizes, 0)
        return body.add("select", made.shape, [keep, made, zero], lambda p, f, g: f)
    left = rng.random() < 0.5
    sizes = [*batch, n, 2] if left else [*batch, 2, n]
    b = fitting(body, name, sizes)

    def transfer(f: Facts, g: Facts) -> Facts:
        # The inverse of a triangle whose diagonal is twice the rest of its row has norm < 1/n.
        bound = 2 * g.magnitude
        return rounded(name, Facts(-bound, bound, 2 * g.error), roundings=16 * n)

    attributes = (
        f"left_side={str(left).lower()}, lower={rng.choice(('true', 'false'))}, "
        f"unit_diagonal=false, transpose_a={rng.choice(('NO_TRANSPOSE', 'TRANSPOSE', 'ADJOINT'))}"
    )
    return body.add("triangular-solve", b.shape, [matrix, b], transfer, attributes)


def batch_norm(body: Body) -> Value:
    """Append a batch norm for inference, or for training."""
    rng = body.rng
    x = body.pick(lambda v: v.type in ("f32", "f64") and 2 <= len(v.sizes) <= 4)
    if 0 in x.sizes:
        raise UntameError
    x = tamed(body, x, 4)
    feature = rng.randrange(len(x.sizes))
    channels = [x.sizes[feature]]
    scale, offset = (fitting(body, x.type, channels) for _ in range(2))
    scale, offset = tamed(body, scale, 4), tamed(body, offset, 4)
    attributes = f"epsilon=0.25, feature_index={feature}"
    count = prod(x.sizes) // max(1, channels[0])
    name = x.type

    def normal(f: Facts, g: Facts, h: Facts) -> Facts:
        # 1/sqrt(var + 1/4) is at most 2; its derivative by the variance at most 4.
        reach = 2 * f.magnitude
        bound = 2 * reach * g.magnitude + h.magnitude
        drift = 4 * f.error + 4 * reach * (2 * reach * f.error)
        error = g.magnitude * drift + 2 * reach * g.error + h.error
        roundings = (16 + 2 * count) * 4 * max(1, reach)
        return rounded(name, Facts(-bound, bound, error), roundings=roundings)

    if rng.random() < 0.5:
        mean = fitting(body, name, channels)
        variance = positive(body, fitting(body, name, channels))
        mean, variance = tamed(body, mean, 4), tamed(body, variance, 4)

        def inference(f: Facts, g: Facts, h: Facts, m: Facts, v: Facts) -> Facts:
            reach = f.magnitude + m.magnitude
            bound = 2 * reach * g.magnitude + h.magnitude
            drift = 2 * (f.error + m.error) + 4 * reach * v.error
            error = g.magnitude * drift + 2 * reach * g.error + h.error
            if v.low - v.error < 0:
                raise UntameError
            return rounded(name, Facts(-bound, bound, error), roundings=24)

        operands = [x, scale, offset, mean, variance]
        return body.add("batch-norm-inference", x.shape, operands, inference, attributes)

    def training(f: Facts, g: Facts, h: Facts) -> AnyFacts:
        reach = f.magnitude
        mean = rounded(name, Facts(f.low, f.high, f.error), roundings=4 + count)
        square = 4 * reach * reach
        spread = Facts(0, square, 4 * reach * f.error)
        return (normal(f, g, h), mean, rounded(name, spread, roundings=8 + 2 * count))

    vector = array_shape(name, channels)
    shape = TupleShape((x.shape, vector, vector))
    made = body.add("batch-norm-training", shape, [x, scale, offset], training, attributes)
    return body.elements(made)[0]


def random_bits(body: Body) -> Value:
    """Append an rng-bit-generator; states and bits are exact."""
    rng = body.rng
    algorithm, words = rng.choice((("rng_three_fry", 2), ("rng_philox", 3), ("rng_philox", 2)))
    found = [v for v in body.arrays() if v.type == "u64" and v.sizes == (words,)]
    whole = full_range("u64")
    state = rng.choice(found) if found else body.fresh("u64", (words,), whole)
    sizes = body.pick(lambda v: kind_of(v) is not Kind.COMPLEX).sizes
    name = rng.choice("u32 u32 u64 u8 u16".split())
    shape = TupleShape((array_shape("u64", (words,)), array_shape(name, sizes)))
    facts = (whole, full_range(name))
    made = body.add(
        "rng-bit-generator", shape, [state], lambda _: facts, f"algorithm={algorithm}"
    )
    return body.elements(made)[1]


def integer_dot(body: Body) -> Value:
    """Append a dot of integers, which wraps."""
    a = body.pick(lambda v: is_integer(v) and 1 <= len(v.sizes) <= 2)
    b = fitting(body, a.type, [a.sizes[-1], 3])
    shape = array_shape(a.type, [*a.sizes[:-1], 3])
    attributes = f"lhs_contracting_dims={{{len(a.sizes) - 1}}}, rhs_contracting_dims={{0}}"
    return body.add("dot", shape, [a, b], summing(a.type, a.sizes[-1]), attributes)


FAMILIES = {
    dot: 5, convolution: 3, fft: 1, solve: 1, batch_norm: 1, random_bits: 2, integer_dot: 1,
}  # fmt: skip
"""Family -> weight."""
