"""Reductions with what makes their operand: the law, values against numpy, cycles by hand."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.fused_reduce import FusedReduce
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, close_values, run_whole

RNG = np.random.default_rng(6)
GC200 = load_machine("gc200")
TIMES = Expression(("f32", "f32"), (Node("multiply", (0, 1), "f32"),), (2,))
SQUARE = Expression(("f32",), (Node("multiply", (0, 0), "f32"),), (1,))


def _number(value: float) -> Given:
    return Given("f32", np.asarray(value, np.float32))


@pytest.mark.parametrize("dimensions", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_a_sum_of_products(dimensions: tuple[int, ...]) -> None:
    x = RNG.standard_normal((4, 5, 6)).astype(np.float32)
    y = RNG.standard_normal((6, 4)).astype(np.float32)
    kept = tuple(n for d, n in enumerate(x.shape) if d not in dimensions)
    codelet = FusedReduce(TIMES, ((0, 1, 2), (2, 0)), 3, dimensions, "add", ("f32",))
    (made,) = check_every_split(
        codelet,
        [Given("f32", x), Given("f32", y), _number(2)],
        [Tensor("f32", kept)],
        same=close_values(1e-5, 1e-5),
    )
    wanted = (x.astype(float) * y.T[:, None, :]).sum(dimensions) + 2
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", [1, 3, 12, 50])
def test_pieces_combine_to_the_whole(part: int) -> None:
    x = RNG.integers(-9, 9, (12, 7)).astype(np.float32)
    codelet = FusedReduce(SQUARE, ((0, 1),), 2, (0,), "add", ("f32",), (part,))
    pieces = -(-12 // part)
    made = check_every_split(codelet, [Given("f32", x)], [Tensor("f32", (pieces, 7))])
    combine = Reduce((0,), "add", None, ("f32",))
    whole = codelet.combined_with(combine, [None])
    assert whole is not None
    found, taken = whole
    assert taken == 1
    (together,) = run_whole(found, [Given("f32", x), _number(1)], [Tensor("f32", (7,))])
    np.testing.assert_array_equal(made[0].sum(0) + 1, together)
    np.testing.assert_array_equal(together, (x * x).sum(0) + 1)


def test_another_monoid_does_not_combine() -> None:
    codelet = FusedReduce(SQUARE, ((0,),), 1, (0,), "add", ("f32",), (4,))
    assert codelet.combined_with(Reduce((0,), "maximum", None, ("f32",)), [None]) is None


def test_cycles_are_those_of_a_reduction_with_loads_and_ops_between() -> None:
    """Of 6 rows of 128: a product for each of 64 vectors more, the second load beside it."""
    rows, result = Tensor("f32", (6, 128)), Tensor("f32", (6,))
    number = Tensor("f32", ())
    plain = Reduce((1,), "add", None, ("f32",)).work(GC200, [rows, number], [result])
    codelet = FusedReduce(TIMES, ((0, 1), (0, 1)), 2, (1,), "add", ("f32",))
    work = codelet.work(GC200, [rows, rows, number], [result])
    assert work.cycles == plain.cycles + 6 * 64
    assert work.assumed_cycles == work.cycles  # no library has such a vertex


def test_nothing_costs_nothing() -> None:
    codelet = FusedReduce(SQUARE, ((0, 1),), 2, (1,), "add", ("f32",))
    empty = [Tensor("f32", (0, 8)), Tensor("f32", ())]
    assert codelet.work(GC200, empty, [Tensor("f32", (0,))]).cycles == 0


def test_pieces_of_uneven_rows_take_room() -> None:
    """Seven rows on six workers are cut, and what the pieces leave is kept; six rows are not."""
    sums, number = Reduce((1,), "add", None, ("f32",)), Tensor("f32", ())
    codelet = FusedReduce(TIMES, ((0, 1), (0, 1)), 2, (1,), "add", ("f32",))
    for count, pieces in ((7, 3), (6, 0)):
        rows, result = Tensor("f32", (count, 600)), Tensor("f32", (count,))
        assert sums.room_bytes(GC200, [rows, number], [result]) == 4 * count * pieces
        assert codelet.room_bytes(GC200, [rows, rows, number], [result]) == 4 * count * pieces
