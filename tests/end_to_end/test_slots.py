"""Cycles of whole pipelines: of each slot the slowest IPU's own, its copies, and a meeting.

Every part is taken out of the program and costed as a plain sequence, and slots are walked one by
one by the schedule's definition: position s does micro-batch m in slot interval * m + s.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import jax
import numpy as np
import pytest

from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.machine.costs import sync
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.channels import popped, pushed
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Pipeline, Repeat, Step
from hloipu_runtime.program.steps import Sequence as Steps
from tests.support.pipeline_trials import Cut, compiled
from tests.support.pipelined_programs import PipelineMaker
from tests.support.training_steps import STEPS

INTERVALS: dict[str, Callable[[int], int]] = {
    "grouped": lambda n: 1,
    "interleaved": lambda n: 2,
    "sequential": lambda n: n,
}


def start_cycles(program: Program, machine: Machine) -> int:
    """Return what a run takes that does nothing."""
    found = estimate(replace(program, body=Steps(())), machine).total_cycles
    assert found is not None
    return found


def cycles_of(program: Program, machine: Machine) -> Callable[[Sequence[Step]], int]:
    """Return what costs steps of a program as a sequence, without its start."""

    start = start_cycles(program, machine)

    def cycles(steps: Sequence[Step]) -> int:
        found = estimate(replace(program, body=Steps(tuple(steps))), machine).total_cycles
        assert found is not None
        return found - start

    return cycles


def expected_cycles(program: Program, step: Pipeline, machine: Machine) -> int:
    """Return the sum over slots."""
    cycles = cycles_of(program, machine)
    last = len(step.stages)

    @lru_cache
    def own(position: int) -> int:
        taken = [c for c in step.channels if c.consumer == position]
        return cycles([popped(program, taken), *step.stages[position].body.steps])

    @lru_cache
    def copies(positions: tuple[int, ...]) -> int:
        return cycles([pushed(program, [c for c in step.channels if c.producer in positions])])

    place = [stage.ipus for stage in step.stages]
    assert all(len(ipus) == 1 for ipus in place)
    meeting = sync(machine, len(set(place))).cycles + machine.tile.supervisor_branch_cycles
    total = 0
    for slot in range(step.interval * (step.count - 1) + last if step.count else 0):
        active = [
            position
            for position in range(last)
            if (slot - position) % step.interval == 0
            and 0 <= (slot - position) // step.interval < step.count
        ]
        busy: dict[tuple[int, ...], int] = {}
        for position in active:
            busy[place[position]] = busy.get(place[position], 0) + own(position)
        total += max(busy.values(), default=0) + copies(tuple(active)) + meeting
    return total


def pipeline_of(program: Program) -> tuple[list[Step], Pipeline, list[Step]]:
    """Return the pipeline of a program, what is before it and what after, in a loop or not."""
    steps = list(program.body.steps)
    if isinstance(steps[0], Repeat):
        steps = list(steps[0].body.steps)
    (place,) = [n for n, step in enumerate(steps) if isinstance(step, Pipeline)]
    step = steps[place]
    assert isinstance(step, Pipeline)
    return steps[:place], step, steps[place + 1 :]


CUTS = [
    Cut("mlp_adam", stages, schedule, k, loop=None, map=where, offload="off")
    for stages, schedule, k, where in (
        (2, "grouped", 1, ""), (2, "interleaved", 5, "shared"), (3, "grouped", 8, ""),
        (3, "sequential", 3, "back"), (4, "interleaved", 4, ""), (4, "grouped", 3, "shared"),
    )
]  # fmt: skip


@pytest.mark.thinned(4)
@pytest.mark.parametrize("mode", ["functional", "exact"])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_run_takes_what_its_slots_take(cut: Cut, mode: str) -> None:
    built = compiled(cut)
    program, machine = built.program, built.machine
    before, step, after = pipeline_of(program)
    assert step.interval == INTERVALS[cut.schedule](2 * cut.stages)
    cycles = cycles_of(program, machine)
    expected = cycles(before) + expected_cycles(program, step, machine) + cycles(after)
    expected += machine.tile.supervisor_branch_cycles  # of the loop, which has one turn
    assert run_cycles(cut, built, mode) == expected + start_cycles(program, machine)


def run_cycles(cut: Cut, built: CompiledProgram, mode: str) -> int:
    """Return the cycles of one update, run."""
    state = [np.asarray(x) for x in jax.tree.leaves(STEPS[cut.step].state())]
    batches = [STEPS[cut.step].batch(n) for n in range(cut.micro_batches)]
    with built.session(state=state, infeeds={"data": iter(batches)}, mode=mode) as session:
        session.run(1)
        return session.cycles


@pytest.mark.parametrize("interval", [1, 2, 16])
@pytest.mark.parametrize("count", [1, 2, 5, 32])
@pytest.mark.parametrize("stages", [2, 5, 8])
def test_closed_form_and_slots_are_the_same(stages: int, count: int, interval: int) -> None:
    built = PipelineMaker(stages, min(interval, 2 * stages), count).program()
    machine = load_machine("tiny")
    before, step, after = pipeline_of(built)
    cycles = cycles_of(built, machine)
    found = estimate(built, machine).total_cycles
    expected = cycles(before) + expected_cycles(built, step, machine) + cycles(after)
    assert found == expected + start_cycles(built, machine)
