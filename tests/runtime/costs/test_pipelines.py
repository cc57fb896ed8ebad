"""Cycles of pipelines: the sum over slots of the slowest IPU's, copies and meetings besides."""

import pytest

from hloipu_runtime.costs.costs import Pipelined
from hloipu_runtime.costs.counting import ChargePlan, spent_of
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.machine.load import load_machine
from tests.support.pipelined_programs import PipelineMaker

MACHINE = load_machine("tiny")


@pytest.mark.parametrize("ipus", [(), (0, 0, 1), (0, 1, 0)])
@pytest.mark.parametrize("interval", [1, 2, 6])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 20])
def test_cycles_are_those_of_slots_walked_one_by_one(
    count: int, interval: int, ipus: tuple[int, ...]
) -> None:
    program = PipelineMaker(3, interval, count, ipus=ipus).program()
    costs = step_charges(program, MACHINE)
    inner = next(x for block in costs.blocks for x in block.inner if isinstance(x, Pipelined))
    each = [costs.blocks[body].spent.total.cycles for body in inner.bodies]
    assert all(each)
    slots = next(step for step in costs.steps if step.path.endswith("/slots"))
    expected = slots.spent.total.cycles
    for slot in range(interval * (count - 1) + 6 if count else 0):
        busy: dict[int, int] = {}
        for position in range(6):
            turn, rest = divmod(slot - position, interval)
            if not rest and 0 <= turn < count:
                (ipu,) = inner.ipus[position]
                busy[ipu] = busy.get(ipu, 0) + each[position]
        expected += max(busy.values(), default=0)
    around = (
        sum(costs.steps[n].spent.total.cycles for n in costs.blocks[costs.root].steps)
        - slots.spent.total.cycles
    )
    found = estimate(program, MACHINE, costs=costs)
    assert found.total_cycles == expected + around
    counts = ChargePlan(costs).counts({"body": 1})
    assert spent_of(costs, counts).total.cycles == found.total_cycles


def test_micro_batches_without_end_cost_no_time_to_count() -> None:
    few = estimate(PipelineMaker(3, 1, 10).program(), MACHINE).total_cycles
    many = estimate(PipelineMaker(3, 1, 10_000_010).program(), MACHINE).total_cycles
    one_more = estimate(PipelineMaker(3, 1, 11).program(), MACHINE).total_cycles
    assert few is not None
    assert many is not None
    assert one_more is not None
    assert many - few == 10_000_000 * (one_more - few)
