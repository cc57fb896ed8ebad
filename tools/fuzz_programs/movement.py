"""Families of operations that move elements: shapes, slices, pads, updates, tuples."""

from math import prod

from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape
from tools.fuzz_programs.adjusting import is_integer, small_integer
from tools.fuzz_programs.builder import Body, Families
from tools.fuzz_programs.facts import Facts, UntameError, hull
from tools.fuzz_programs.values import Value, array_shape, braces

MOST_RANK = 4


def factored(body: Body, count: int) -> tuple[int, ...]:
    """Return drawn sizes with a product."""
    rng = body.rng
    sizes: list[int] = []
    if count == 0:
        return tuple(rng.sample([0, rng.randrange(1, 4)], rng.choice((1, 2))))[:1] or (0,)
    while count > 1 and len(sizes) < MOST_RANK - 1:
        divisors = [d for d in range(2, count + 1) if count % d == 0]
        divisor = rng.choice(divisors)
        sizes.append(divisor)
        count //= divisor
    sizes += [count] if count > 1 else []
    if len(sizes) < MOST_RANK and rng.random() < 0.3:
        sizes.insert(rng.randrange(len(sizes) + 1), 1)
    return tuple(sizes)


def reshape(body: Body) -> Value:
    """Append a reshape."""
    value = body.pick()
    sizes = factored(body, prod(value.sizes))
    if prod(sizes) != prod(value.sizes):
        raise UntameError
    return body.same("reshape", array_shape(value.type, sizes), value)


def transpose(body: Body) -> Value:
    """Append a transpose."""
    value = body.pick(lambda v: len(v.sizes) >= 1)
    order = body.rng.sample(range(len(value.sizes)), len(value.sizes))
    shape = array_shape(value.type, [value.sizes[d] for d in order])
    return body.same("transpose", shape, value, f"dimensions={braces(order)}")


def reverse(body: Body) -> Value:
    """Append a reverse."""
    value = body.pick(lambda v: len(v.sizes) >= 1)
    chosen = [d for d in range(len(value.sizes)) if body.rng.random() < 0.6]
    return body.same("reverse", value.shape, value, f"dimensions={braces(chosen)}")


def broadcast(body: Body) -> Value:
    """Append a broadcast into more dimensions."""
    value = body.pick(lambda v: len(v.sizes) < MOST_RANK)
    rank = body.rng.randrange(len(value.sizes) + 1, MOST_RANK + 1)
    places = sorted(body.rng.sample(range(rank), len(value.sizes)))
    if body.rng.random() < 0.25:
        body.rng.shuffle(places)
    sizes = [body.rng.choice((1, 2, 3, 4)) for _ in range(rank)]
    for place, size in zip(places, value.sizes, strict=True):
        sizes[place] = size
    return body.broadcast(value, sizes, places)


def slices(body: Body) -> Value:
    """Append a slice with strides."""
    value = body.pick(lambda v: len(v.sizes) >= 1)
    ranges, sizes = [], []
    for size in value.sizes:
        start = body.rng.randrange(size + 1) if body.rng.random() < 0.5 else 0
        end = body.rng.randrange(start, size + 1) if body.rng.random() < 0.5 else size
        if end == start and body.rng.random() < 0.9:
            start, end = 0, size
        step = body.rng.choice((1, 1, 2, 3))
        ranges.append(f"[{start}:{end}:{step}]")
        sizes.append(-(-(end - start) // step))
    attributes = f"slice={{{', '.join(ranges)}}}"
    return body.same("slice", array_shape(value.type, sizes), value, attributes)


def pad(body: Body) -> Value:
    """Append a pad: interior, negative."""
    x = body.pick()
    value = padding_value(body, x)
    words, sizes = [], []
    for size in x.sizes:
        low, high, interior = (
            body.rng.choice(c) for c in ((-1, 0, 0, 2), (-1, 0, 1), (0, 0, 1, 2))
        )
        new = low + high + size + max(0, size - 1) * interior
        if new < 0:
            low, high, interior, new = 0, 0, 0, size
        words.append(f"{low}_{high}_{interior}")
        sizes.append(new)
    if not words:
        raise UntameError
    shape = array_shape(x.type, sizes)
    return body.add("pad", shape, [x, value], hull, f"padding={'x'.join(words)}")


def padding_value(body: Body, like: Value) -> Value:
    """Choose or make a scalar of the type of another value."""
    scalars = [v for v in body.arrays() if v.array == ArrayShape(like.array.element_type)]
    if scalars and body.rng.random() < 0.6:
        return body.rng.choice(scalars)
    return body.fresh(like.type, ())


def concatenate(body: Body) -> Value:
    """Append a concatenation of two to four arrays."""
    value = body.pick(lambda v: len(v.sizes) >= 1)
    dimension = body.rng.randrange(len(value.sizes))

    def fits(v: Value) -> bool:
        if v.type != value.type or len(v.sizes) != len(value.sizes):
            return False
        return all(v.sizes[d] == n for d, n in enumerate(value.sizes) if d != dimension)

    parts = [value, *(body.pick(fits) for _ in range(body.rng.choice((1, 1, 2, 3))))]
    body.rng.shuffle(parts)
    sizes = list(value.sizes)
    sizes[dimension] = sum(v.sizes[dimension] for v in parts)
    shape = array_shape(value.type, sizes)
    return body.add("concatenate", shape, parts, hull, f"dimensions={{{dimension}}}")


def indices(body: Body, count: int) -> list[Value]:
    """Choose or make integer scalars, of one type, in range or not."""
    scalars = [v for v in body.arrays(is_integer) if v.sizes == ()]
    kind = body.rng.choice(scalars).type if scalars else body.rng.choice(("s32", "s64", "u32"))
    chosen = []
    for _ in range(count):
        mine = [v for v in scalars if v.type == kind]
        if mine and body.rng.random() < 0.6:
            index = body.rng.choice(mine)
            if kind[0] == "u":
                # A constant with its highest bit set is negative to XLA's folding of slices.
                index = small_integer(body, index, 0, 100)
            chosen.append(index)
        else:
            chosen.append(body.fresh(kind, (), Facts(0 if kind[0] == "u" else -2, 4, 0, 1)))
    return chosen


def dynamic_slice(body: Body) -> Value:
    """Append a dynamic-slice, its start clamped."""
    value = body.pick(lambda v: len(v.sizes) >= 1)
    sizes = [body.rng.randrange(min(1, n), n + 1) for n in value.sizes]
    starts = indices(body, len(value.sizes))
    if value.opcode not in ELEMENTWISE:
        # XLA adds the starts of a slice of a slice and clamps the sums, not each start.
        rooms = [n - size for n, size in zip(value.sizes, sizes, strict=True)]
        starts = [small_integer(body, s, 0, r) for s, r in zip(starts, rooms, strict=True)]
    attributes = f"dynamic_slice_sizes={braces(sizes)}"
    shape = array_shape(value.type, sizes)
    return body.add("dynamic-slice", shape, [value, *starts], lambda f, *_: f, attributes)


def dynamic_update_slice(body: Body) -> Value:
    """Append a dynamic-update-slice."""
    value = body.pick(lambda v: len(v.sizes) >= 1)

    def fits(v: Value) -> bool:
        same = v.type == value.type and len(v.sizes) == len(value.sizes)
        return same and all(a <= b for a, b in zip(v.sizes, value.sizes, strict=True))

    update = body.pick(fits)
    if update.position == value.position:
        update = body.fresh(value.type, [body.rng.randrange(min(1, n), n + 1) for n in value.sizes])
    starts = indices(body, len(value.sizes))
    return body.add(
        "dynamic-update-slice", value.shape, [value, update, *starts], lambda f, g, *_: hull(f, g)
    )


def iota(body: Body) -> Value:
    """Append an iota."""
    sizes = body.pick(lambda v: len(v.sizes) >= 1).sizes
    dimension = body.rng.randrange(len(sizes))
    if sizes[dimension] > 16:
        raise UntameError
    name = body.rng.choice("s32 s32 u8 s64 f32 bf16 f64 u32 f16".split())
    facts = Facts(0, max(0, sizes[dimension] - 1), 0, 1)
    attributes = f"iota_dimension={dimension}"
    return body.add("iota", array_shape(name, sizes), [], lambda: facts, attributes)


def copies(body: Body) -> Value:
    """Append a copy, or an opt-barrier around a tuple, taken apart again."""
    value = body.pick()
    if body.rng.random() < 0.4:
        return body.same("copy", value.shape, value)
    whole = body.tuple([value, body.pick()])
    if body.rng.random() < 0.5:
        whole = body.tuple([body.pick(), whole])
        whole = body.same("opt-barrier", whole.shape, whole)
        whole = body.element(whole, 1)
    else:
        whole = body.same("opt-barrier", whole.shape, whole)
    return body.element(whole, body.rng.randrange(2))


FAMILIES: Families = {
    reshape: 4,
    transpose: 4,
    reverse: 2,
    broadcast: 4,
    slices: 4,
    pad: 3,
    concatenate: 3,
    dynamic_slice: 3,
    dynamic_update_slice: 3,
    iota: 2,
    copies: 2,
}
"""Family -> weight."""
