"""Families that order elements: sort, topk."""

from collections.abc import Sequence

from hloipu_compiler.ir.shapes import TupleShape
from hloipu_runtime.element_types import Kind
from tools.fuzz_programs.adjusting import is_exact, is_number, kind_of
from tools.fuzz_programs.builder import Body, Families
from tools.fuzz_programs.facts import Facts
from tools.fuzz_programs.values import Value, array_shape


def sort(body: Body) -> Value:
    """Append a stable sort by an exact key, of the first operand or computed from it."""
    rng = body.rng
    value = body.pick(lambda v: is_number(v) and is_exact(v) and len(v.sizes) >= 1)
    dimension = rng.randrange(len(value.sizes))
    others = [v for v in body.arrays() if v.sizes == value.sizes]
    carried = [rng.choice(others) for _ in range(rng.choice((0, 0, 1, 2)))]
    operands = [value, *carried]
    region = comparator(body, operands)
    attributes = f"dimensions={{{dimension}}}, is_stable=true, to_apply={region}"
    if not carried:
        return body.same("sort", value.shape, value, attributes)
    shape = TupleShape(tuple(v.shape for v in operands))
    results = body.add("sort", shape, operands, lambda *f: f, attributes)
    return rng.choice(body.elements(results))


def comparator(body: Body, operands: Sequence[Value]) -> str:
    """Write a strict weak order on the first operand, perhaps with a second key."""
    region, known = Body(body.draft, "order"), Facts(0, 0, 0, 1)
    flag = array_shape("pred", ())
    pairs = [[region.parameter(array_shape(v.type, ()), known) for _ in range(2)] for v in operands]

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
        later = region.add(
            "and", flag, [compared(a, b, "EQ"), compared(c, d, "LT")], lambda *_: known
        )
        root = region.add("or", flag, [root, later], lambda *_: known)
    region.root(root)
    return region.name


def topk(body: Body) -> Value:
    """Append a topk of exact floats."""
    value = body.pick(
        lambda v: v.type == "f32" and is_exact(v) and 1 <= len(v.sizes) <= 2 and 0 not in v.sizes
    )
    k = body.rng.randrange(1, value.sizes[-1] + 1)
    sizes = [*value.sizes[:-1], k]
    shape = TupleShape((array_shape(value.type, sizes), array_shape("s32", sizes)))
    index = Facts(0, value.sizes[-1], 0, 1)
    results = body.add("topk", shape, [value], lambda f: (f, index), f"k={k}, largest=true")
    return body.elements(results)[0]


FAMILIES: Families = {sort: 3, topk: 1}
"""Family -> weight."""
