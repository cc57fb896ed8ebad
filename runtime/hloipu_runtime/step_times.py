"""Simulated time of the steps of a session: how long a run and a turn of its loop take."""

from typing import NamedTuple

from hloipu_runtime.costing.costs import Costs, Loop
from hloipu_runtime.costing.counting import spent_of
from hloipu_runtime.costing.estimate import estimate


class StepTimes(NamedTuple):
    """Cycles of one run; where data decides, at least."""

    run_cycles: int
    before_cycles: int
    """Before the first turn, and after the last: all that is not in turns."""
    turn_cycles: int
    """Of each turn of the loop around the step; without one, of the whole step."""
    loop_path: str
    """Block that the loop turns; empty: there is no loop around the step."""

    def cycles_after(self, turns: int) -> int:
        """Return the cycles of a run until so many turns are done."""
        return self.before_cycles + turns * self.turn_cycles


def step_times(costs: Costs) -> StepTimes:
    """Return the times of a program's steps."""
    found = estimate(costs.program, costs.machine, None, costs)
    total = spent_of(costs, found.counts).total.cycles
    turns = costs.program.steps_per_run
    for inner in costs.blocks[costs.root].inner:
        if isinstance(inner, Loop) and inner.turns == turns and inner.name == "loop":
            own = costs.blocks[costs.root].spent.total.cycles
            return StepTimes(total, own, (total - own) // turns, f"{inner.path}/repeat")
    return StepTimes(total, 0, total, "")
