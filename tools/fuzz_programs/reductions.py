"""Families of reductions: by one combiner, and of pairs."""

from math import prod

from hloipu_compiler.ir.shapes import TupleShape
from tools.fuzz_programs.adjusting import is_exact, is_number
from tools.fuzz_programs.builder import Body, Families
from tools.fuzz_programs.facts import Facts, Transfer
from tools.fuzz_programs.regions import (
    combiner_region,
    combining,
    highest,
    initial,
    lowest,
    reducible,
)
from tools.fuzz_programs.values import Value, array_shape, braces


def reduce(body: Body) -> Value:
    """Append a reduce by a recognised or an odd spelling of a monoid."""
    value, opcode = reducible(body)
    dimensions = sorted(d for d in range(len(value.sizes)) if body.rng.random() < 0.6)
    count = prod(value.sizes[d] for d in dimensions)
    left = [n for d, n in enumerate(value.sizes) if d not in dimensions]
    start = initial(body, opcode, value)
    region = combiner_region(body, opcode, value.type)
    attributes = f"dimensions={braces(dimensions)}, to_apply={region}"
    shape = array_shape(value.type, left)
    return body.add(
        "reduce", shape, [value, start], combining(opcode, value.type, count), attributes
    )


def variadic_reduce(body: Body) -> Value:
    """Append an arg-maximum with the lower index at ties, or a sum beside a maximum."""
    value = body.pick(lambda v: len(v.sizes) >= 1 and is_number(v) and is_exact(v))
    dimension = body.rng.randrange(len(value.sizes))
    left = [n for d, n in enumerate(value.sizes) if d != dimension]
    if body.rng.random() < 0.6:
        largest = body.rng.random() < 0.5
        region = arg_region(body, value.type, "GT" if largest else "LT")
        size = value.sizes[dimension]
        facts = Facts(0, max(0, size - 1), 0, 1)
        other = body.add(
            "iota",
            array_shape("s32", value.sizes),
            [],
            lambda: facts,
            f"iota_dimension={dimension}",
        )
        starts = [(lowest if largest else highest)(body, value), body.scalar("s32", size)]
        transfer: Transfer = lambda f, i, s, j: (f, i) if size else (s, j)  # noqa: E731
    else:
        other = body.pick_like(value, lambda v: is_number(v) and is_exact(v))
        starts = [lowest(body, value), body.scalar(value.type, 0)]
        region = pair_region(body, value.type)
        size = value.sizes[dimension]
        total = combining("add", value.type, size)
        transfer = lambda f, g, s, t: (f if size else s, total(g, t))  # noqa: E731
    shape = TupleShape((array_shape(value.type, left), array_shape(other.type, left)))
    attributes = f"dimensions={{{dimension}}}, to_apply={region}"
    pair = body.add("reduce", shape, [value, other, *starts], transfer, attributes)
    return body.elements(pair)[0]


def arg_region(body: Body, element_type: str, direction: str) -> str:
    """Write the region of an arg-maximum or arg-minimum over (value, index) pairs."""
    region = Body(body.draft, "arg_best")
    known = Facts(0, 0, 0, 1)
    scalar, index, flag = (array_shape(t, ()) for t in (element_type, "s32", "pred"))
    v, i, w, j = (region.parameter(s, known) for s in (scalar, index, scalar, index))
    better = region.add("compare", flag, [v, w], lambda *_: known, f"direction={direction}")
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


FAMILIES: Families = {reduce: 6, variadic_reduce: 3}
"""Family -> weight."""
