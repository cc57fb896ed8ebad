"""Whole rows: the law, values against scipy and numpy, cycles by hand, what may be overwritten."""

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.row_region import RowRegion
from hloipu_runtime.errors import UsageError
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, close_values, run_whole

RNG = np.random.default_rng(5)
GC200 = load_machine("gc200")
F32 = ("f32",)
TAKEN = Expression(F32, (), (0,))
MINUS_INFINITY, ZERO = "-inf", "0x0.0p+0"


def soft(rank: int, dimensions: tuple[int, ...]) -> RowRegion:
    """Return exp(x - max) / sum(exp(x - max)): values 2 max, 3 exp, 4 sum, 5 quotient."""
    exp = Expression(
        ("f32", "f32"), (Node("subtract", (0, 1), "f32"), Node("exponential", (2,), "f32")), (3,)
    )
    quotient = Expression(("f32", "f32"), (Node("divide", (0, 1), "f32"),), (2,))
    return RowRegion(
        labels=(tuple(range(rank)),),
        rank=rank,
        dimensions=dimensions,
        operand_types=F32,
        expressions=(TAKEN, exp, quotient),
        sources=((0,), (0, 2), (3, 4)),
        reductions=((0, 1, "maximum", MINUS_INFINITY), (1, 3, "add", ZERO)),
        results=(5,),
    )


@pytest.mark.parametrize("dimensions", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_softmax(dimensions: tuple[int, ...]) -> None:
    x = Given("f32", RNG.standard_normal((4, 5, 6)).astype(np.float32))
    (made,) = check_every_split(
        soft(3, dimensions), [x], [Tensor("f32", (4, 5, 6))], same=close_values(1e-6)
    )
    np.testing.assert_allclose(made, softmax(x.array.astype(float), dimensions), rtol=1e-6)


def test_many_rows_are_computed_a_few_at_a_time() -> None:
    x = Given("f32", RNG.standard_normal((7, 300, 100)).astype(np.float32))
    (made,) = run_whole(soft(3, (2,)), [x], [Tensor("f32", (7, 300, 100))])
    np.testing.assert_allclose(made, softmax(x.array.astype(float), 2), rtol=1e-5)


def test_results_of_rows_and_operands_of_columns() -> None:
    """log(sum(x * c)) + k of each row, and x * c: c follows the columns, k the rows."""
    times = Expression(("f32", "f32"), (Node("multiply", (0, 1), "f32"),), (2,))
    after = Expression(("f32", "f32"), (Node("log", (0,), "f32"), Node("add", (2, 1), "f32")), (3,))
    region = RowRegion(
        labels=((0, 1), (1,), (0,)),
        rank=2,
        dimensions=(1,),
        operand_types=("f32", "f32", "f32"),
        expressions=(times, after),
        sources=((0, 1), (4, 2)),
        reductions=((0, 3, "add", ZERO),),
        results=(5, 3),
    )
    x, c, k = (RNG.uniform(1, 2, n).astype(np.float32) for n in ((6, 8), (8,), (6,)))
    given = [Given("f32", x), Given("f32", c), Given("f32", k)]
    rows, full = check_every_split(
        region, given, [Tensor("f32", (6,)), Tensor("f32", (6, 8))], same=close_values(1e-6)
    )
    np.testing.assert_allclose(full, x * c)
    np.testing.assert_allclose(rows, np.log((x * c).astype(float).sum(1)) + k, rtol=1e-6)


def test_log_softmax_of_half_precision_rounds_each_op() -> None:
    """Of equal elements each op's result is known: max x, exp 1, sum 8, log 2.078125 in bf16."""
    kinds = ("bf16", "bf16")
    minus = Expression(kinds, (Node("subtract", (0, 1), "bf16"),), (2,))
    exp = Expression(("bf16",), (Node("exponential", (0,), "bf16"),), (1,))
    log = Expression(("bf16",), (Node("log", (0,), "bf16"),), (1,))
    region = RowRegion(
        labels=((0, 1),),
        rank=2,
        dimensions=(1,),
        operand_types=("bf16",),
        expressions=(Expression(("bf16",), (), (0,)), minus, exp, log, minus),
        sources=((0,), (0, 2), (3,), (5,), (3, 6)),
        reductions=((0, 1, "maximum", MINUS_INFINITY), (2, 4, "add", ZERO)),
        results=(7,),
    )
    x = Given("bf16", np.full((2, 8), 3, np.float32))
    (made,) = run_whole(region, [x], [Tensor("bf16", (2, 8))])
    np.testing.assert_array_equal(made, np.full((2, 8), -2.078125, np.float32))
    np.testing.assert_allclose(made, log_softmax(x.array, 1), rtol=2**-8)


def test_an_operand_that_is_read_before_anything_is_written_may_be_overwritten() -> None:
    region = soft(2, (1,))
    assert region.may_overwrite(0)
    late = RowRegion(
        labels=region.labels,
        rank=2,
        dimensions=(1,),
        operand_types=F32,
        expressions=region.expressions,
        sources=((0,), (0, 2), (0, 4)),
        reductions=region.reductions,
        results=(5, 3),
    )
    assert not late.may_overwrite(0)
    summed = RowRegion(
        labels=region.labels,
        rank=2,
        dimensions=(1,),
        operand_types=F32,
        expressions=region.expressions,
        sources=region.sources,
        reductions=(*region.reductions, (2, 0, "add", ZERO)),
        results=(5, 6),
    )
    assert not summed.may_overwrite(0)


def test_cycles_of_softmax() -> None:
    """Six rows of 128, one a worker: 64 vectors of two.

    Loads and stores go along with float ops. Maximum 64 + 12, and 12 for the loop. exp(x - max):
    1 + 6 for each vector, 32 for the sum of two at once, + 12, 12 for the loop. By a number: 6 for
    each vector, 12. A prologue of 30.
    """
    slots = 30 + (64 + 12 + 12) + (64 * 7 + 32 + 12 + 12) + (64 * 6 + 12)
    rows = Tensor("f32", (6, 128))
    work = soft(2, (1,)).work(GC200, [rows], [rows])
    assert work.cycles == GC200.tile.supervisor_vertex_cycles + 6 * slots
    assert work.assumed_cycles == work.cycles  # no library has such a vertex


def test_few_rows_are_shared_by_all_workers() -> None:
    one, six = (Tensor("f32", (n, 6000)) for n in (1, 6))
    alone = soft(2, (1,)).work(GC200, [one], [one]).cycles
    assert alone < soft(2, (1,)).work(GC200, [six], [six]).cycles / 4


def test_no_rows_cost_nothing() -> None:
    empty = Tensor("f32", (0, 8))
    assert soft(2, (1,)).work(GC200, [empty], [empty]).cycles == 0


@pytest.mark.parametrize("wrong", [(9,), (-1,)])
def test_numbers_that_name_nothing_are_refused(wrong: tuple[int, ...]) -> None:
    region = RowRegion(((0,),), 1, (0,), F32, (TAKEN,), (wrong,), (), (1,))
    with pytest.raises(UsageError, match="E3091"):
        region.indexing([Tensor("f32", (4,))], [Tensor("f32", (4,))])
