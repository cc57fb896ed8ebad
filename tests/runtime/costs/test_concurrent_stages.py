"""Cycles of stages on several IPUs: branches side by side, and turns where stages share IPUs."""

from collections.abc import Sequence
from itertools import product

import pytest

from hloipu_runtime.costs.costs import Costs, Pipelined, Together
from hloipu_runtime.costs.counting import ChargePlan, spent_of
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.timetable import longest_iterations
from tests.support.cases import each
from tests.support.concurrent_programs import ConcurrentMaker

MACHINE = load_machine("tiny")


def priced(program: Program) -> tuple[Costs, Pipelined, list[int]]:
    """Return the costs, the pipeline's, and the cycles of each position with what is inside."""
    costs = step_charges(program, MACHINE)
    inner = next(x for block in costs.blocks for x in block.inner if isinstance(x, Pipelined))
    each = []
    for body in inner.bodies:
        cycles = costs.blocks[body].spent.total.cycles
        for x in costs.blocks[body].inner:
            assert isinstance(x, Together)
            cycles += max(costs.blocks[b].spent.total.cycles for b in x.branches)
        each.append(cycles)
    return costs, inner, each


def slot_by_slot(
    count: int, interval: int, each: Sequence[int], ipus: Sequence[Sequence[int]]
) -> int:
    """Return the sum over slots, in each of which positions begin when their IPUs are free."""
    cycles = 0
    for slot in range(interval * (count - 1) + len(each) if count else 0):
        free: dict[int, int] = {}
        for position in reversed(range(len(each))):
            iteration, rest = divmod(slot - position, interval)
            if not rest and 0 <= iteration < count:
                begun = max(free.get(ipu, 0) for ipu in ipus[position])
                for ipu in ipus[position]:
                    free[ipu] = begun + each[position]
        cycles += max(free.values(), default=0)
    return cycles


@each("ipus", [(0, 1, 2, 3), (0, 1, 2, 0), (0, 1, 0, 1), (0, 0, 1, 1)])
@each("interval", [1, 2, 3])
@each("count", [0, 1, 2, 5, 20])
def test_cycles_are_those_of_slots_walked_one_by_one(
    count: int, interval: int, ipus: tuple[int, int, int, int]
) -> None:
    program = ConcurrentMaker(count, interval, ipus=ipus).program()
    costs, inner, each = priced(program)
    slots = next(step for step in costs.steps if step.path.endswith("/slots"))
    root = costs.blocks[costs.root]
    around = sum(costs.steps[n].spent.total.cycles for n in root.steps)
    expected = around + slot_by_slot(count, interval, each, inner.ipus)
    found = estimate(program, MACHINE, costs=costs)
    assert found.total_cycles == expected
    assert slots.ipus == tuple(sorted(set(ipus)))
    counts = ChargePlan(costs).counts({"body": 1})
    assert spent_of(costs, counts).total.cycles == expected


@pytest.mark.parametrize("more", [1, 2, 6])
def test_branches_at_once_take_as_long_as_the_slower_one(more: int) -> None:
    _, _, (_, together, _) = priced(ConcurrentMaker(3, more=more).program())
    _, _, (_, alone, _) = priced(ConcurrentMaker(3, more=more, at_once=False).program())
    _, _, (_, one, _) = priced(ConcurrentMaker(3, more=1).program())
    _, _, (_, two, _) = priced(ConcurrentMaker(3, more=2).program())
    addition = two - one
    assert addition > 0
    assert together == one + (more - 1) * addition
    assert alone == together + addition


def test_turns_take_longest_where_no_order_of_positions_is_shorter() -> None:
    """With one IPU for each position the longest turns are the IPU's with most to do."""
    for places in product(range(3), repeat=4):
        cycles = [3.0, 5.0, 2.0, 7.0]
        busy = [sum(c for c, p in zip(cycles, places, strict=True) if p == ipu) for ipu in range(3)]
        found = longest_iterations(range(4), cycles, [(place,) for place in places])
        assert sum(cycles[n] for n in found) == max(busy)


def test_positions_that_share_an_ipu_wait_for_each_other_in_a_chain() -> None:
    ring = [(0, 1), (1, 2), (2, 3)]
    assert longest_iterations((0, 1, 2), [4.0, 2.0, 1.0], ring) == (2, 1, 0)
    assert longest_iterations((0, 2), [4.0, 2.0, 1.0], ring) == (0,)
    assert longest_iterations((), [4.0], ring) == ()
