"""Families that apply a computation: reduce, windows, scatter, sort, map, topk."""

from collections.abc import Sequence
from math import prod

from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_runtime.element_types import Kind
from tools.fuzz_programs.builder import Body, Value, array_shape, braces
from tools.fuzz_programs.elementwise import clamped, is_exact, is_float, is_integer, is_number, kind_of, tamed
from tools.fuzz_programs.facts import (
    AnyFacts,
    Facts,
    Transfer,
    UntameError,
    full_range,
    hull,
    repeated,
    rounded,
)
from tools.fuzz_programs.movement import index_array

# ---- combining regions ------------------------------------------------------------------------


def combiner_region(body: Body, opcode: str, element_type: str) -> str:
    """Write a computation of two scalars that computes an opcode, in one of several ways."""
    region = Body(body.draft, f"combine_{opcode}")
    shape = array_shape(element_type, ())
    facts = Facts(0, 0, 0, 1)
    a, b = (region.parameter(shape, facts) for _ in range(2))

    def plain(name: str, x: Value, y: Value) -> Value:
        return region.add(name, shape, [x, y], lambda *_: facts)

    def negate(x: Value) -> Value:
        return region.add("negate", shape, [x], lambda _: facts)

    way = body.rng.random()
    if body.rng.random() < 0.4:
        a, b = b, a
    signed = kind_of(a) in (Kind.FLOAT, Kind.SIGNED) and element_type not in ("s4",)
    floating = kind_of(a) is Kind.FLOAT
    if opcode in ("maximum", "minimum") and element_type != "pred" and way < 0.3:
        direction = "GE" if opcode == "maximum" else "LE"
        flag = region.add(
            "compare", array_shape("pred", ()), [a, b], lambda *_: facts, f"direction={direction}"
        )
        root = region.add("select", shape, [flag, a, b], lambda *_: facts)
    elif opcode in ("maximum", "minimum") and floating and way < 0.45:
        other = "minimum" if opcode == "maximum" else "maximum"
        root = negate(plain(other, negate(a), negate(b)))
    elif opcode == "add" and signed and way < 0.25:
        root = plain("subtract", a, negate(b))
    elif way < 0.4:
        inner = Body(body.draft, "inner")
        x, y = (inner.parameter(shape, facts) for _ in range(2))
        inner.root(inner.add(opcode, shape, [x, y], lambda *_: facts))
        root = region.add("call", shape, [a, b], lambda *_: facts, f"to_apply={inner.name}")
    else:
        root = plain(opcode, a, b)
    region.root(root)
    return region.name


def combining(opcode: str, element_type: str, count: int, *, padded: bool = False) -> Transfer:
    """Return the transfer of combining `count` elements and an initial value.

    With `padded`, there may be fewer elements, even none.
    """

    def transfer(f: Facts, start: Facts) -> AnyFacts:
        if opcode == "add":
            terms = repeated(f, count)
            total = Facts(
                min(0, terms.low) + start.low, max(0, terms.high) + start.high,
                terms.error + start.error, min(f.grain, start.grain),
            )  # fmt: skip
            scale = count * f.magnitude + start.magnitude
            return rounded(element_type, total, roundings=2 + count, terms=scale)
        if opcode in ("maximum", "minimum"):
            return f if count and not padded else hull(f, start)
        return full_range(element_type)

    return transfer


def reducible(body: Body, *, most: int = 600) -> tuple[Value, str]:
    """Choose an operand to reduce, and an opcode."""
    x = body.pick(lambda v: prod(v.sizes) <= most and v.type not in ("s4", "u4"))
    kind = kind_of(x)
    if kind is Kind.PREDICATE:
        return x, body.rng.choice(("and", "or"))
    if kind is Kind.COMPLEX:
        return x, "add"
    if kind is Kind.FLOAT:
        if not is_float(x):
            raise UntameError
        return x, body.rng.choice("add add maximum minimum".split())
    return x, body.rng.choice("add multiply maximum minimum and or xor".split())


def initial(body: Body, opcode: str, like: Value) -> Value:
    """Make the identity of a monoid: XLA applies any other initial value when it pleases."""
    name = like.type
    if opcode in ("maximum", "minimum"):
        return lowest(body, like) if opcode == "maximum" else highest(body, like)
    if opcode == "and":
        if name == "pred":
            return body.scalar(name, 1)
        zero = body.scalar(name, 0)
        return body.add("not", zero.shape, [zero], lambda _: full_range(name))
    return body.scalar(name, 1 if opcode == "multiply" else 0)


EXTREME = 64.0
"""Beyond all tame floats."""


def lowest(body: Body, like: Value) -> Value:
    """Make a scalar that is not greater than any element of an array."""
    whole = full_range(like.type) if is_integer(like) else None
    if whole is None and like.known.low - like.known.error < -EXTREME:
        raise UntameError
    if whole is None:
        return body.scalar(like.type, -EXTREME)
    shape, text = array_shape(like.type, ()), str(int(whole.low))
    return body.add("constant", shape, [], lambda: whole, inside=text)


def highest(body: Body, like: Value) -> Value:
    """Make a scalar that is not less than any element of an array."""
    whole = full_range(like.type) if is_integer(like) else None
    if whole is None and like.known.high + like.known.error > EXTREME:
        raise UntameError
    if whole is None:
        return body.scalar(like.type, EXTREME)
    text = str(2 ** (like.array.element_type.bits - (whole.low < 0)) - 1)
    return body.add("constant", array_shape(like.type, ()), [], lambda: whole, inside=text)


def reduce(body: Body) -> Value:
    """Append a reduce by a recognised or an odd spelling of a monoid."""
    x, opcode = reducible(body)
    dimensions = sorted(d for d in range(len(x.sizes)) if body.rng.random() < 0.6)
    count = prod(x.sizes[d] for d in dimensions)
    left = [n for d, n in enumerate(x.sizes) if d not in dimensions]
    start = initial(body, opcode, x)
    region = combiner_region(body, opcode, x.type)
    attributes = f"dimensions={braces(dimensions)}, to_apply={region}"
    shape = array_shape(x.type, left)
    return body.add("reduce", shape, [x, start], combining(opcode, x.type, count), attributes)


def variadic_reduce(body: Body) -> Value:
    """Append an arg-maximum (or minimum) with the lower index at ties, or a sum beside a maximum."""
    x = body.pick(lambda v: len(v.sizes) >= 1 and is_number(v) and is_exact(v))
    dimension = body.rng.randrange(len(x.sizes))
    left = [n for d, n in enumerate(x.sizes) if d != dimension]
    if body.rng.random() < 0.6:
        largest = body.rng.random() < 0.5
        region = arg_region(body, x.type, "GT" if largest else "LT")
        size = x.sizes[dimension]
        facts = Facts(0, max(0, size - 1), 0, 1)
        other = body.add(
            "iota", array_shape("s32", x.sizes), [], lambda: facts, f"iota_dimension={dimension}"
        )
        starts = [(lowest if largest else highest)(body, x), body.scalar("s32", size)]
        transfer: Transfer = lambda f, i, s, j: (f, i) if size else (s, j)  # noqa: E731
    else:
        other = body.pick_like(x, lambda v: is_number(v) and is_exact(v))
        starts = [lowest(body, x), body.scalar(x.type, 0)]
        region = pair_region(body, x.type)
        size = x.sizes[dimension]
        total = combining("add", x.type, size)
        transfer = lambda f, g, s, t: (f if size else s, total(g, t))  # noqa: E731
    shape = TupleShape((array_shape(x.type, left), array_shape(other.type, left)))
    attributes = f"dimensions={{{dimension}}}, to_apply={region}"
    pair = body.add("reduce", shape, [x, other, *starts], transfer, attributes)
    return body.elements(pair)[0]


def arg_region(body: Body, element_type: str, direction: str) -> str:
    """Write the region of an arg-maximum or arg-minimum over (value, index) pairs."""
    region = Body(body.draft, "arg_best")
    known = Facts(0, 0, 0, 1)
    scalar, index, flag = (array_shape(t, ()) for t in (element_type, "s32", "pred"))
    v, i, w, j = (region.parameter(s, known) for s in (scalar, index, scalar, index))
    better = region.add(
        "compare", flag, [v, w], lambda *_: known, f"direction={direction}"
    )
    same = region.add("compare", flag, [v, w], lambda *_: known, "direction=EQ")
    lower = region.add("compare", flag, [i, j], lambda *_: known, "direction=LT")
    tie = region.add("and", flag, [same, lower], lambda *_: known)
    first = region.add("or", flag, [better, tie], lambda *_: known)
    best = region.add("select", scalar, [better, v, w], lambda *_: known)
    where = region.add("select", index, [first, i, j], lambda *_: known)
    region.root(region.tuple([best, where]))
    return region.name


def pair_region(body: Body, element_type: str) -> str:
    """Write the region of a maximum beside a sum."""
    region = Body(body.draft, "both")
    known, shape = Facts(0, 0, 0, 1), array_shape(element_type, ())
    a, b, c, d = (region.parameter(shape, known) for _ in range(4))
    top = region.add("maximum", shape, [a, c], lambda *_: known)
    total = region.add("add", shape, [b, d], lambda *_: known)
    region.root(region.tuple([top, total]))
    return region.name


# ---- windows ----------------------------------------------------------------------------------
def window_of(body: Body, sizes: Sequence[int], *, dilated: bool) -> tuple[str, list[int], int]:
    """Draw a window; returns its text, the result's sizes and the elements of one window."""
    rng = body.rng
    parts: dict[str, list[str]] = {"size": [], "stride": [], "pad": [], "lhs_dilate": [], "rhs_dilate": []}
    result, count = [], 1
    for n in sizes:
        size, stride = rng.choice((1, 2, 2, 3)), rng.choice((1, 1, 2))
        base, spread = (rng.choice((1, 1, 2)) if dilated else 1 for _ in range(2))
        low, high = rng.choice((0, 0, 1)), rng.choice((0, 1, 2))
        whole = low + high + (max(0, n - 1) * base + min(n, 1))
        reach = (size - 1) * spread + 1
        result.append(0 if reach > whole else (whole - reach) // stride + 1)
        count *= size
        words = (size, stride, f"{low}_{high}", base, spread)
        for key, word in zip(parts, words, strict=True):
            parts[key].append(str(word))
    text = " ".join(f"{key}={'x'.join(words)}" for key, words in parts.items())
    return f"window={{{text}}}", result, count


def reduce_window(body: Body) -> Value:
    """Append a reduce-window with strides, padding and dilations."""
    x, opcode = reducible(body, most=200)
    if not x.sizes or opcode not in ("add", "maximum", "minimum", "and", "or", "multiply"):
        raise UntameError
    start = initial(body, opcode, x)
    text, sizes, count = window_of(body, x.sizes, dilated=True)
    region = combiner_region(body, opcode, x.type)
    shape = array_shape(x.type, sizes)
    transfer = combining(opcode, x.type, count, padded=True)
    return body.add("reduce-window", shape, [x, start], transfer, f"{text}, to_apply={region}")


def select_and_scatter(body: Body) -> Value:
    """Append a select-and-scatter: what the gradient of a pooling does."""
    x = body.pick(lambda v: is_float(v) and is_exact(v) and 1 <= len(v.sizes) <= 3)
    x = tamed(body, x)
    text, sizes, count = window_of(body, x.sizes, dilated=False)
    text = text.partition(" lhs_dilate")[0] + "}"
    if 0 in sizes or 0 in x.sizes:
        raise UntameError
    source = body.fresh(x.type, sizes)
    region = combiner_region(body, "add", x.type)
    select = Body(body.draft, "select")
    known, scalar = Facts(0, 0, 0, 1), array_shape(x.type, ())
    a, b = (select.parameter(scalar, known) for _ in range(2))
    direction = f"direction={body.rng.choice(('GE', 'LE'))}"
    select.root(select.add("compare", array_shape("pred", ()), [a, b], lambda *_: known, direction))
    total = combining("add", x.type, count)
    return body.add(
        "select-and-scatter", x.shape, [x, source, body.scalar(x.type, 0)],
        lambda f, g, s: total(g, s), f"{text}, select={select.name}, scatter={region}",
    )  # fmt: skip


# ---- scatter ----------------------------------------------------------------------------------
def scatter(body: Body) -> Value:
    """Append a scatter in general form; repeated indices meet commutative regions only."""
    rng = body.rng
    x, opcode = reducible(body, most=300)
    rank = len(x.sizes)
    if not 1 <= rank <= 3 or 0 in x.sizes:
        raise UntameError
    starts = rng.sample(range(rank), rng.randrange(1, rank + 1))
    inserted = [d for d in range(rank) if rng.random() < 0.5]
    window = [rng.randrange(1, x.sizes[d] + 1) for d in range(rank) if d not in inserted]
    batch = [rng.choice((1, 2, 3)) for _ in range(rng.randrange(0, 3))]
    vector = rng.randrange(len(batch) + 1)
    index_sizes = [*batch[:vector], len(starts), *batch[vector:]]
    where = index_array(body, index_sizes)
    places = sorted(rng.sample(range(len(window) + len(batch)), len(window)))
    sizes = list(batch)
    for place, size in zip(places, window, strict=True):
        sizes.insert(place, size)
    updates = body.fresh(x.type, sizes)
    if prod(batch) == 1 and rng.random() < 0.5:
        opcode = "overwrite"
        region = overwriting_region(body, x.type)
    else:
        region = combiner_region(body, opcode, x.type)
    total = hull if opcode == "overwrite" else combining(opcode, x.type, prod(batch), padded=True)
    attributes = (
        f"update_window_dims={braces(places)}, inserted_window_dims={braces(inserted)}, "
        f"scatter_dims_to_operand_dims={braces(starts)}, index_vector_dim={vector}, "
        f"to_apply={region}"
    )
    return body.add(
        "scatter", x.shape, [x, where, updates], lambda f, _, u: total(u, f), attributes
    )


def overwriting_region(body: Body, element_type: str) -> str:
    """Write the region that takes the update."""
    region = Body(body.draft, "overwrite")
    known, shape = Facts(0, 0, 0, 1), array_shape(element_type, ())
    _, update = (region.parameter(shape, known) for _ in range(2))
    region.root(update)
    return region.name


# ---- sort, topk, map --------------------------------------------------------------------------
def sort(body: Body) -> Value:
    """Append a stable sort by an exact key, of the first operand or computed from it."""
    rng = body.rng
    x = body.pick(lambda v: is_number(v) and is_exact(v) and 1 <= len(v.sizes))
    dimension = rng.randrange(len(x.sizes))
    others = [v for v in body.arrays() if v.sizes == x.sizes]
    carried = [rng.choice(others) for _ in range(rng.choice((0, 0, 1, 2)))]
    operands = [x, *carried]
    region = comparator(body, operands)
    attributes = f"dimensions={{{dimension}}}, is_stable=true, to_apply={region}"
    if not carried:
        return body.same("sort", x.shape, x, attributes)
    shape = TupleShape(tuple(v.shape for v in operands))
    made = body.add("sort", shape, operands, lambda *f: f, attributes)
    return rng.choice(body.elements(made))


def comparator(body: Body, operands: Sequence[Value]) -> str:
    """Write a strict weak order on the first operand, perhaps with a second key."""
    region, known = Body(body.draft, "order"), Facts(0, 0, 0, 1)
    flag = array_shape("pred", ())
    pairs = [
        [region.parameter(array_shape(v.type, ()), known) for _ in range(2)] for v in operands
    ]

    def compared(x: Value, y: Value, direction: str) -> Value:
        return region.add("compare", flag, [x, y], lambda *_: known, f"direction={direction}")

    a, b = pairs[0]
    direction = body.rng.choice(("LT", "GT"))
    if kind_of(a) in (Kind.SIGNED, Kind.FLOAT) and body.rng.random() < 0.25:
        opcode = body.rng.choice(("abs", "negate"))
        a, b = (region.add(opcode, v.shape, [v], lambda _: known) for v in (a, b))
    root = compared(a, b, direction)
    if len(operands) > 1 and is_exact(operands[1]) and body.rng.random() < 0.5:
        c, d = pairs[1]
        later = region.add("and", flag, [compared(a, b, "EQ"), compared(c, d, "LT")], lambda *_: known)
        root = region.add("or", flag, [root, later], lambda *_: known)
    region.root(root)
    return region.name


def map_elements(body: Body) -> Value:
    """Append a map by a scalar computation of several operations."""
    from tools.fuzz_programs.control import scalar_computation  # it calls the families in turn

    x = body.pick(lambda v: 1 <= len(v.sizes))
    x = next((v for v in body.arrays(is_float) if v.sizes == x.sizes), x)
    operands = [x]

    def fits(v: Value) -> bool:
        # A map mixes no float formats among its operands.
        return v.sizes == x.sizes and (kind_of(v) is not Kind.FLOAT or v.type == x.type)

    found = [x, *body.arrays(fits)]
    operands += body.rng.choices(found, k=body.rng.choice((0, 1, 2)))
    name, root = scalar_computation(body, operands)
    shape = array_shape(root.type, x.sizes)
    dimensions = braces(range(len(x.sizes)))
    attributes = f"dimensions={dimensions}, to_apply={name.name}"
    return body.add("map", shape, operands, lambda *f: name.replay(root, f), attributes)


def topk(body: Body) -> Value:
    """Append a topk of exact floats."""
    x = body.pick(lambda v: v.type == "f32" and is_exact(v) and 1 <= len(v.sizes) <= 2 and 0 not in v.sizes)
    k = body.rng.randrange(1, x.sizes[-1] + 1)
    sizes = [*x.sizes[:-1], k]
    shape = TupleShape((array_shape(x.type, sizes), array_shape("s32", sizes)))
    index = Facts(0, x.sizes[-1], 0, 1)
    made = body.add("topk", shape, [x], lambda f: (f, index), f"k={k}, largest=true")
    return body.elements(made)[0]


FAMILIES = {
    reduce: 6, variadic_reduce: 3, reduce_window: 3, select_and_scatter: 1, scatter: 4, sort: 3,
    map_elements: 2, topk: 1,
}  # fmt: skip
"""Family -> weight."""
