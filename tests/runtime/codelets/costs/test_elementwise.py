"""Cycles of elementwise vertices against sums done by hand from the published tables."""

from collections.abc import Sequence

import pytest

from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.core.tensors import Sizes, Tensor
from hloipu_runtime.codelets.costs.elementwise import scaled_add_cycles
from hloipu_runtime.codelets.costs.elementwise_rates import vector_elements
from hloipu_runtime.codelets.costs.expression_loops import Repeats, repeats_of
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine
from tests.support.cases import each

TINY, UNIT, GC200 = (load_machine(name) for name in ("tiny", "unit", "gc200"))


def work_of(
    op: str,
    types: tuple[str, ...],
    result: str,
    shape: Sizes,
    labels: Sequence[tuple[int, ...]] | None = None,
    machine: Machine = TINY,
    **parameters: str | int,
) -> TileWork:
    """Return the work of one op on a tile whose result has `shape`."""
    node = Node(op, tuple(range(len(types))), result, tuple(parameters.items()))
    every = tuple(range(len(shape)))
    where = tuple(labels or [every] * len(types))
    codelet = Elementwise(Expression(types, (node,), (len(types),)), where, len(shape))
    operands = [Tensor(t, tuple(shape[d] for d in at)) for t, at in zip(types, where, strict=True)]
    return codelet.work(machine, operands, [Tensor(result, shape)])


@pytest.mark.parametrize(
    ("op", "types", "result", "elements", "cycles"),
    [
        # 60 elements: 10 for each worker, 5 vectors of f32, 3 of f16.
        ("add", ("f32", "f32"), "f32", 60, 11 + 6 * (29 + 5 * (1 + 2))),
        ("add", ("f16", "f16"), "f16", 60, 11 + 6 * (26 + 3 * (1 + 2))),
        ("add", ("s32", "s32"), "s32", 60, 11 + 6 * (26 + 10 * 7)),
        ("add", ("s64", "s64"), "s64", 60, 11 + 6 * (26 + 10 * 11)),
        ("divide", ("f32", "f32"), "f32", 61, 11 + 6 * (29 + 6 * 10)),
        ("maximum", ("f16", "f16"), "f16", 60, 11 + 6 * (26 + 3 * 4)),
        ("and", ("pred", "pred"), "pred", 60, 11 + 6 * (26 + 3 * 5)),
        ("tanh", ("f32",), "f32", 60, 11 + 9 + 6 * (17 + 5 * 12)),
        ("exponential", ("f32",), "f32", 60, 11 + 9 + 6 * (33 + 5 * 6)),
        ("abs", ("f32",), "f32", 60, 11 + 9 + 6 * (17 + 10 * (1 + 4))),
        ("floor", ("f16",), "f16", 60, 11 + 9 + 6 * (17 + 3 * (2 + 4))),
        ("select", ("pred", "f32", "f32"), "f32", 60, 6 * (5 + 6 + 5 * 10)),
        ("clamp", ("f32", "f32", "f32"), "f32", 60, 6 * (5 + 6 + 2 * 5)),
        ("clamp", ("s32", "s32", "s32"), "s32", 60, 6 * (5 + 6 + 7 * 10)),
        ("convert", ("f32",), "f16", 60, 12 + 6 * (37 + 3 * 2)),
        ("convert", ("f16",), "f32", 60, 12 + 6 * (37 + 5 * 1)),
    ],
)
def test_single_ops(
    op: str, types: tuple[str, ...], result: str, elements: int, cycles: int
) -> None:
    assert work_of(op, types, result, (elements,)) == TileWork(cycles, 0)


@pytest.mark.parametrize(("before", "after"), [("s32", "f32"), ("f32", "s32"), ("s8", "f16")])
def test_conversions_between_integers_and_floats_take_two_slots(before: str, after: str) -> None:
    """As `castWorkerCycles` of poplibs says, which calls it a guess at what its compiler makes."""
    found = work_of("convert", (before,), after, (60,))
    assert found == TileWork(12 + 6 * (37 + 10 * 2))
    assert work_of("convert", ("s32",), "s64", (60,)) == TileWork(12 + 6 * (37 + 10 * 5), 0)


@pytest.mark.parametrize(("zero", "elements", "cycles"), [
    # 90 vectors of a worker, with popnn's relu; 3 with popops's maximum.
    ("0x0.0p+0", 2137, 9 + 6 * (20 + 3 + 2 * 2 + 2 * 89)),
    ("0x0.0p+0", 60, 11 + 6 * (20 + 3 * 3)),
    ("0x1.0p+0", 2137, 11 + 6 * (20 + 3 * 90)),
])  # fmt: skip
def test_the_larger_of_a_float_and_zero_is_popnns_relu(
    zero: str, elements: int, cycles: int
) -> None:
    nodes = Node("constant", (), "f16", (("value", zero),)), Node("maximum", (0, 1), "f16")
    codelet = Elementwise(Expression(("f16",), nodes, (2,)), ((0,),), 1)
    x = Tensor("f16", (elements,))
    assert codelet.work(TINY, [x], [x]) == TileWork(cycles)


def test_compare_is_priced_by_direction() -> None:
    for direction, cycles in (("LT", 14), ("NE", 20)):
        found = work_of("compare", ("f32", "f32"), "pred", (60,), direction=direction)
        assert found == TileWork(11 + 6 * (29 + 3 * cycles), 0)


@pytest.mark.parametrize(
    ("op", "shape", "labels", "cycles"),
    [
        ("add", (12, 10), ((0, 1), ()), 11 + 6 * (20 + 10 * (1 + 1))),
        ("maximum", (12, 10), ((0, 1), ()), 11 + 6 * (20 + 10 * 3)),
        # One value for each of 12 rows of 10: two rows a worker.
        ("add", (12, 10), ((0, 1), (0,)), 11 + 6 * (15 + 2 * (7 + 5 * 2))),
        ("add", (12, 11), ((0, 1), (0,)), 11 + 6 * (15 + 2 * (25 + 6 * 2))),
        # Ten values, each added down 12 rows, two to a worker.
        ("add", (12, 10), ((0, 1), (1,)), 11 + 6 * (17 + 17 + 2 * (8 + 2 * 12))),
        ("add", (120, 10), ((0, 1), (1,)), 11 + 6 * (17 + 17 + 10 * (8 + 2 * 20))),
        # One row of 60: as if it did not repeat at all.
        ("add", (1, 60), ((0, 1), (1,)), 11 + 6 * (29 + 5 * 3)),
    ],
)
def test_operands_that_repeat(
    op: str, shape: Sizes, labels: tuple[tuple[int, ...], ...], cycles: int
) -> None:
    assert work_of(op, ("f32", "f32"), "f32", shape, labels).cycles == cycles


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ((0, 1, 2), (1, 1, 60)),
        ((), (1, 60, 1)),
        ((2,), (1, 12, 5)),
        ((0, 1), (12, 5, 1)),
        ((0,), (4, 15, 1)),
        ((1,), (12, 5, 1)),
        ((0, 2), (4, 3, 5)),
        ((1, 2), (1, 4, 15)),
    ],
)
def test_how_operands_repeat(labels: Sizes, expected: Sizes) -> None:
    assert repeats_of(labels, (4, 3, 5)) == Repeats(*expected)


def test_types_that_the_chip_lacks_cost_more() -> None:
    plain = 29 + 5 * 3
    factor = TINY.emulation.f64_factor
    # Every number of `tiny` is assumed, so what it multiplies is.
    assert work_of("add", ("f64", "f64"), "f64", (60,)) == TileWork(
        11 + 6 * plain * factor, 6 * plain * factor
    )
    conversions = 2 * 10 * TINY.emulation.bf16_convert_slots
    found = work_of("add", ("bf16", "bf16"), "bf16", (60,))
    assert found == TileWork(11 + 6 * (plain + conversions), 6 * conversions)


def test_a_fused_expression_loads_and_stores_once() -> None:
    # tanh((x * y) + x): loads of x and y and a store go along with 12 slots of ops.
    nodes = (
        Node("multiply", (0, 1), "f32"),
        Node("add", (2, 0), "f32"),
        Node("tanh", (3,), "f32"),
    )
    codelet = Elementwise(Expression(("f32", "f32"), nodes, (4,)), ((0,), (0,)), 1)
    part = Tensor("f32", (60,))
    cycles = 11 + 6 * (30 + 5 * (1 + 1 + 10))
    # All of them assumed: no library has such a vertex.
    assert codelet.work(TINY, [part, part], [part]) == TileWork(cycles, cycles)
    singles = sum(work_of(n.op, ("f32",) * len(n.arguments), "f32", (60,)).cycles for n in nodes)
    assert codelet.work(TINY, [part, part], [part]).cycles < singles


def _fused_slots(kind: str, nodes: tuple[Node, ...], results: tuple[int, ...]) -> int:
    """Return a worker's slots on 40 elements beside the prologue."""
    codelet = Elementwise(Expression((kind, kind), nodes, results), ((0,), (0,)), 1)
    part = Tensor(kind, (240,))
    return (codelet.work(TINY, [part, part], [part] * len(results)).cycles - 11) // 6 - 30


@each(
    ("kind", "op", "slots"),
    [
        # One instruction each of 32 bits, by popops's loops of seven around an addition.
        ("u32", "add", 40),
        ("u32", "multiply", 40),
        ("s32", "maximum", 40),
        ("u32", "xor", 40),
        ("u32", "shift-right-logical", 40),
        ("u64", "add", 4 * 40),
        ("u64", "xor", 2 * 40),
    ],
)
def test_integer_ops_of_a_chain_take_what_their_instructions_take(
    kind: str, op: str, slots: int
) -> None:
    nodes = tuple(Node(op, (n, 1), kind) for n in (0, *range(2, 11)))
    moved = 3 * (40 // vector_elements(kind))
    assert _fused_slots(kind, nodes, (11,)) == 10 * slots + moved


@each(
    ("kind", "kept", "stored"),
    [
        # Floats: one slot a vector to compare, three to choose, beside loads and stores; packed: 7
        # or 5 for each four. Integers are compared where they are loaded and stored.
        ("f32", 20 + 60, 20 + 60 + 10 * 7),
        ("f16", 10 + 30, 10 + 30 + 10 * 5),
        ("u32", 40 + 60, 40 + 10 * 9),
    ],
)
def test_comparisons_in_a_chain_are_packed_only_where_they_are_stored(
    kind: str, kept: int, stored: int
) -> None:
    compare = Node("compare", (0, 1), "pred", (("direction", "LT"),))
    select = Node("select", (2, 0, 1), kind)
    assert _fused_slots(kind, (compare, select), (3,)) == kept
    assert _fused_slots(kind, (compare, select), (3, 2)) == stored


OPS = [
    ("add", ("f32", "f32"), "f32"),
    ("add", ("f16", "f16"), "f16"),
    ("divide", ("f32", "f32"), "f32"),
    ("select", ("pred", "f32", "f32"), "f32"),
    ("convert", ("f32", ), "f16"),
    ("add", ("s4", "s4"), "s4"),
    ("multiply", ("c64", "c64"), "c64"),
    ("mulhi", ("u64", "u64"), "u64"),
]  # fmt: skip


@each(("op", "types", "result"), OPS)
@each("last", [(), (0,), (1,), (0, 1)])
@each("machine", [TINY, UNIT, GC200])
def test_larger_parts_cost_no_less(
    op: str, types: tuple[str, ...], result: str, last: Sizes, machine: Machine
) -> None:
    labels = [(0, 1)] * (len(types) - 1) + [last]
    before: dict[tuple[int, int], int] = {}
    for rows in range(0, 15):
        for columns in range(0, 15):
            work = work_of(op, types, result, (rows, columns), labels, machine)
            assert 0 <= work.assumed_cycles <= work.cycles
            if rows:
                assert work.cycles >= before[rows - 1, columns]
            # Rows with a number of their own are faster where whole vectors fill them.
            fewer = columns - (4 if last == (0,) else 1)
            if fewer >= 0:
                assert work.cycles >= before[rows, fewer]
            before[rows, columns] = work.cycles
    assert before[0, 5] == before[5, 0] == 0


MACHINE = load_machine("gc2")


def _expression(
    first: str, second: str, arguments: tuple[int, int], kind: str = "f32"
) -> Expression:
    nodes = (Node(first, (2, 0), kind, ()), Node(second, arguments, kind, ()))
    return Expression((kind,) * 3, nodes, (4,))


@pytest.mark.parametrize(
    ("kind", "second", "cycles"),
    [
        # 63 supervisor cycles; 6 workers of 25 + 7 slots, and 3 for all but the first vector.
        ("f32", "add", 63 + 6 * (32 + 3 * 99)),
        ("f32", "subtract", 70 + 6 * (32 + 3 * 99)),
        ("f16", "add", 63 + 6 * (32 + 3 * 49)),
    ],
)
def test_hand_sums(kind: str, second: str, cycles: int) -> None:
    expression = _expression("multiply", second, (1, 3), kind)
    found = scaled_add_cycles(MACHINE, expression, expression.nodes, frozenset({2}), 1200)
    assert found == cycles


@pytest.mark.parametrize(
    ("expression", "scalars"),
    [
        (_expression("add", "add", (1, 3)), {2}),
        (_expression("multiply", "multiply", (1, 3)), {2}),
        (_expression("multiply", "subtract", (3, 1)), {2}),
        (_expression("multiply", "add", (3, 3)), {2}),
        (_expression("multiply", "add", (1, 3)), set()),
        (_expression("multiply", "add", (1, 3)), {0, 2}),
        (_expression("multiply", "add", (1, 3), "s32"), {2}),
    ],
)
def test_what_is_none(expression: Expression, scalars: set[int]) -> None:
    nodes = expression.nodes
    assert scaled_add_cycles(MACHINE, expression, nodes, frozenset(scalars), 1200) is None
