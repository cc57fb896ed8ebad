"""Simulated time of the steps of a session: what a call of the program costs, and each step."""

from typing import NamedTuple

from hloipu_runtime.costs.costs import Costs, Loop
from hloipu_runtime.costs.counting import spent_of
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.machine.transfers import host_call


class StepTimes(NamedTuple):
    """Cycles of one call of a program that stays on the device; where data decides, at least.

    A call of N steps takes `call_cycles + N * turn_cycles`, and what it waits for the host.
    """

    run_cycles: int
    call_cycles: int
    """Round trip, and what is done before the first iteration and after the last."""
    iteration_cycles: int
    """Of each iteration of the loop around the step, the iteration itself included."""
    round_trip_cycles: int
    is_exact: bool
    """Whether data decides nothing."""
    loop_path: str
    """Block that the loop repeats; empty: there is no loop around the step."""
    transfer_cycles: int = 0
    """Of transfers beside an iteration, both ways: at most what a late element waits for."""

    def cycles_after(self, iterations: int) -> int:
        """Return the cycles of a run until so many iterations are done."""
        return self.call_cycles + iterations * self.iteration_cycles


def step_times(costs: Costs) -> StepTimes:
    """Return the times of a program's steps."""
    estimated = estimate(costs.program, costs.machine, None, costs)
    total, is_exact = (
        spent_of(costs, estimated.counts).total.cycles,
        estimated.total_cycles is not None,
    )
    round_trip = host_call(costs.machine).cycles if costs.program.is_resident else 0
    iterations = costs.program.steps_per_run
    for inner in costs.blocks[costs.root].inner:
        if isinstance(inner, Loop) and inner.iterations == iterations and inner.name == "loop":
            own = costs.blocks[costs.root].spent.total.cycles
            iteration, path = (total - own) // iterations, f"{inner.path}/repeat"
            beside = next((costs.steps[n] for n in costs.blocks[costs.root].steps
                           if costs.steps[n].path == f"{inner.path}/fill"), None)  # fmt: skip
            late = beside.spent.total.cycles if beside else 0
            return StepTimes(total, own, iteration, round_trip, is_exact, path, late)
    return StepTimes(total, round_trip, total - round_trip, round_trip, is_exact, "")
