"""Plans of reductions: against every mapping there is, and what their prices are made of."""

from itertools import product

import pytest

from hloipu_compiler.planners.placing import mapping_of, split
from hloipu_compiler.planners.reduction_plans import (
    ReductionWork,
    reduction_alternatives,
    reduction_plan,
)
from hloipu_compiler.planners.stages import PlacedOperand, Work, least_price, staged
from hloipu_runtime.codelets.core.codelet import Index
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.costs.exchange_price import CodePrice
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping, Sizes, Span, Tiles, whole

TINY, GC200 = load_machine("tiny"), load_machine("gc200")
ROOM = 1 << 20
F32, F16 = (("f32",), ("f32",)), (("f16",), ("f32",))


def total(dimensions: Sizes, kind: str = "f32") -> Reduce:
    return Reduce(dimensions, "add", None, (kind,))


def test_rows_on_tiles_of_their_own_need_no_exchange() -> None:
    rows = Mapping(Tiles((4,), (1,), 0), (Span(0, 16, 0, 16), whole(64)))
    plan = reduction_plan(ReductionWork(TINY, total((1,)), *F32, (64, 64), rows), ROOM)
    (stage,) = plan.stages
    assert stage.placement.tiles == rows.tiles
    assert (plan.cycles.exchange, plan.cycles.sync) == (0, 0)
    # Contiguous sums (popops): 1 slot for 4 elements, 12 a row, 17 a vertex; 16 rows, 6 workers.
    assert plan.cycles.compute == 10 + 6 * (3 * 16 + 12 * 3 + 17)


def test_columns_of_rows_on_tiles_are_summed_where_they_lie_first() -> None:
    rows = Mapping(Tiles((4,), (1,), 0), (Span(0, 256, 0, 256), whole(64)))
    plan = reduction_plan(ReductionWork(TINY, total((0,)), *F32, (1024, 64), rows), ROOM)
    first, *rest = plan.stages
    assert first.codelet.parts == (256,)  # type: ignore[attr-defined]
    assert (first.cycles.exchange, first.cycles.sync) == (0, 0)
    assert rest[-1].codelet.parts == ()  # type: ignore[attr-defined]


def test_a_sum_of_all_on_many_tiles_takes_three_stages() -> None:
    """Few pieces each: 1,472 numbers on one tile take 3 cycles of control each."""
    shape = (4096, 4096)
    lying = mapping_of(shape, 32, 1472)
    plan = reduction_plan(ReductionWork(GC200, total((0, 1)), *F32, shape, lying), ROOM)
    assert len(plan.stages) >= 3
    assert plan.cycles.exchange < 1472 * 3


@pytest.mark.parametrize("shape", [(3, 1000), (1000, 3), (16, 16, 16), (5,), (1, 1, 7)])
@pytest.mark.parametrize("machine", [TINY, GC200])
def test_the_plan_is_the_cheapest_of_all_beginnings(machine: Machine, shape: Sizes) -> None:
    tiles = machine.chip.tiles_per_ipu
    lying = mapping_of(shape, 16, tiles)
    dimensions = tuple(range(0, len(shape), 2))
    left = ReductionWork(machine, total(dimensions, "f16"), *F16, shape, lying)
    plan = reduction_plan(left, ROOM)
    every = reduction_alternatives(left, ROOM)
    assert plan.price <= min(x.price for x in every)
    assert plan.stages[-1].codelet.parts == ()  # type: ignore[attr-defined]
    kept = tuple(n for d, n in enumerate(shape) if d not in dimensions)
    assert plan.stages[-1].results[0].shape == kept


def test_memory_bounds_what_is_gathered() -> None:
    """Rows over all tiles: bringing whole columns to tiles takes more room than partial sums."""
    shape = (4096, 256)
    lying = mapping_of(shape, 32, 4)
    free = reduction_plan(ReductionWork(TINY, total((0,)), *F32, shape, lying), 1 << 40)
    tight = reduction_plan(ReductionWork(TINY, total((0,)), *F32, shape, lying), 8192)
    assert tight.held_bytes <= 8192
    assert tight.cycles.total >= free.cycles.total


@pytest.mark.parametrize("code_cycles", [0, 64])
@pytest.mark.parametrize("shape", [(300, 64), (17, 1000), (8, 14, 14, 96), (4096,)])
def test_no_stage_costs_less_than_its_least(shape: Sizes, code_cycles: int) -> None:
    """Candidates are dropped by it, from wherever the array lies to whatever grid there is."""
    price = CodePrice(code_cycles, code_cycles)
    kept = shape[1:]
    codelet, result = total((0,)), Tensor("f32", kept)
    labels = range(len(shape))
    ones = (1,) * len(shape)
    grids = [
        split(tuple(shape[d] if d in along else 1 for d in labels), ones, ones, parts)
        for parts in (1, 7, 64, 1472)
        for along in (*((d,) for d in labels), tuple(labels))
    ]
    lying = {Mapping(x.tiles, x.spans([Index(d) for d in labels], shape)) for x in grids}
    shares = []
    for mapping, parts in product(lying, (1, 7, 64, 1472)):
        operand = PlacedOperand(Tensor("f32", shape), mapping)
        init = PlacedOperand(Tensor("f32", ()), None)
        placement = split(kept, ones[1:], ones[1:], parts)
        work = Work(GC200, codelet, (operand, init), (result,), price)
        stage = staged(work, placement)
        shares.append(least_price(work, placement) / stage.price)
    assert max(shares) <= 1
    assert sum(shares) / len(shares) > 0.25
