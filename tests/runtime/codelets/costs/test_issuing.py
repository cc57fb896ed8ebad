"""Slots of whole expressions against the bundles that poplibs's loops have for the same."""

from collections.abc import Sequence

import pytest

from hloipu_runtime.codelets.core.constants import number_node
from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.core.tensors import Sizes, Tensor
from hloipu_runtime.codelets.costs.issuing import accumulated
from hloipu_runtime.codelets.costs.rows import RowWork, row_work
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.fused_reduce import FusedReduce
from hloipu_runtime.machine.load import load_machine

GC200 = load_machine("gc200")
GREATER = (("direction", "GT"),)
ZERO, ONE = number_node(0, "f16"), number_node(1, "f16")


def slots_of(
    types: tuple[str, ...], nodes: Sequence[Node], labels: Sequence[Sizes], shape: Sizes
) -> float:
    """Return a worker's slots for the last node of an expression, without what is around loops."""
    count = len(types)
    expression = Expression(types, tuple(nodes), (count + len(nodes) - 1,))
    codelet = Elementwise(expression, tuple(labels), len(shape))
    operands = [Tensor(t, tuple(shape[d] for d in at)) for t, at in zip(types, labels, strict=True)]
    work = codelet.work(GC200, operands, [Tensor(nodes[-1].element_type, shape)])
    return (work.cycles - 11) / 6 - 30


@pytest.mark.parametrize(
    ("operands", "nodes", "bundles"),
    [
        # NonLinearityGrad1D.S, ReLU: two loads and a store beside a comparison and a choice.
        (
            2,
            [ZERO, Node("compare", (0, 2), "pred", GREATER), Node("select", (3, 1, 2), "f16")],
            3,
        ),
        # The same, tanh: 1 - y * y, times the gradient.
        (
            2,
            [
                ONE,
                Node("multiply", (0, 0), "f16"),
                Node("subtract", (2, 3), "f16"),
                Node("multiply", (4, 1), "f16"),
            ],
            3,
        ),
        # popnn's swish of f16 (getNonLinearityOpCycles): 5.
        (1, [Node("logistic", (0,), "f16"), Node("multiply", (0, 1), "f16")], 5),
        # A cast and back, three bundles, goes along with a load and a store.
        (1, [Node("convert", (0,), "f32"), Node("convert", (1,), "f16")], 3),
    ],
)
def test_bundles_of_a_vector(operands: int, nodes: list[Node], bundles: int) -> None:
    types = ("f16",) * operands
    assert slots_of(types, nodes, [(0,)] * operands, (24 * 100,)) == 100 * bundles


def test_columns_stay_in_registers() -> None:
    """(x - a) * b + c by channel: of 16 columns in four vectors, 600 rows dealt to six workers.

    Three float ops for each row; three loads and 8 around them for each column, 17 around all.
    """
    nodes = [
        Node("subtract", (0, 1), "f16"),
        Node("multiply", (4, 2), "f16"),
        Node("add", (5, 3), "f16"),
    ]
    labels: list[Sizes] = [(0, 1), (1,), (1,), (1,)]
    found = slots_of(("f16",) * 4, nodes, labels, (600, 16))
    assert found == 17 + 4 * (8 + 3 + 100 * 3)
    # Two rows: loading them again costs less.
    assert slots_of(("f16",) * 4, nodes, labels, (2, 240)) == 20 * 5


def test_a_number_of_each_row_is_made_once() -> None:
    """sqrt(s) - x: 600 rows of 40 halves: ten vectors each, a load, a subtraction and a store."""
    nodes = [Node("sqrt", (0,), "f16"), Node("subtract", (2, 1), "f16")]
    found = slots_of(("f16", "f16"), nodes, [(0,), (0, 1)], (600, 40))
    assert found == 100 * (10 * 2 + 23)


SUMS = Expression(
    ("f16",),
    (Node("convert", (0,), "f32"), Node("multiply", (1, 1), "f32")),
    (2,),
)


def test_accumulators_square_and_widen_by_themselves() -> None:
    none, both, convert, square = map(frozenset, ((), (1, 2), (1,), (2,)))
    assert accumulated(SUMS, square, none) == (both, square)
    assert accumulated(SUMS, square, square) == (none, none)
    assert accumulated(SUMS, both, none) == (both, both)
    assert accumulated(SUMS, convert, none) == (none, convert)


def test_a_sum_of_squares_costs_what_a_sum_costs() -> None:
    rows, result, number = Tensor("f16", (6, 512)), Tensor("f32", (6,)), Tensor("f32", ())
    squares = FusedReduce(SUMS, ((0, 1),), 2, (1,), "add", ("f32",))
    plain = Expression(("f16",), SUMS.nodes[:1], (1,))
    alone = FusedReduce(plain, ((0, 1),), 2, (1,), "add", ("f32",))
    operands = [rows, number]
    assert squares.work(GC200, operands, [result]) == alone.work(GC200, operands, [result])


@pytest.mark.parametrize("length", [64, 640])
def test_masks_are_packed_where_they_are_stored(length: int) -> None:
    """x > y of elements takes 7 slots more for four that are kept, of which loads hide some."""

    def cycles(is_full: bool, kept: frozenset[int]) -> int:
        expression = Expression(("f32", "f32"), (Node("compare", (0, 1), "pred", GREATER),), (2,))
        full = (True, True, is_full) if is_full else (False,) * 3
        work = RowWork(
            6,
            length,
            ("f32", "f32", "pred"),
            full,
            (False,) * 3,
            (expression,),
            ((0, 1),),
            (),
            kept,
        )
        return row_work(GC200, work).cycles

    workers = GC200.tile.worker_contexts
    dropped, stored = frozenset[int](), frozenset({2})
    each = cycles(True, stored) - cycles(True, dropped)
    assert each >= workers * length
    # One of a row is packed once, however long the row is; its store goes beside.
    assert cycles(False, stored) - cycles(False, dropped) == workers * 7
