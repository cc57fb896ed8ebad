"""Updates of stages side by side: the same bits as one after the other, as long as the slowest."""

from typing import Any

import jax
import numpy as np
import pytest

from hloipu_runtime.compiled import CompiledProgram, Mode
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.side_by_side import SideBySide
from hloipu_runtime.program.steps import Parallel, Pipeline, Repeat, Step, Sync
from tests.end_to_end.test_slots import cycles_of
from tests.support.memory_checker import check_memory
from tests.support.pipeline_reference import EVERY_STEP, UPDATES
from tests.support.pipeline_trials import Cut, compiled

TINY = load_machine("tiny")
CLIPPED = Cut("mlp_adamw_clipped", 3, "grouped", 3, offload="on")
CUTS = [
    CLIPPED,
    Cut("residual_adam", 2, "interleaved", 3, offload="off"),
    Cut("residual_adam", 4, "sequential/2", 3, replicas=2, shard_optimizer=True),
    Cut("cnn_momentum", 3, "grouped", 2, recompute="full", map="shared", away="all"),
]


def one_after_the_other(cut: Cut, monkeypatch: pytest.MonkeyPatch) -> CompiledProgram:
    with monkeypatch.context() as patch:
        patch.setattr(SideBySide, "side_by_side", lambda _, program: program)
        return compiled(cut)


def left_by(cut: Cut, program: CompiledProgram, mode: Mode) -> list[Any]:
    """Return all state and losses after two updates."""
    step = EVERY_STEP[cut.step]
    state = [np.asarray(x) for x in jax.tree.leaves(step.state())]
    fed = iter([step.batch(n) for n in range(UPDATES * cut.micro_batches * cut.replicas)])
    poison = mode == "exact"
    with program.session(state=state, infeeds={"data": fed}, mode=mode, poison=poison) as session:
        session.run(UPDATES)
        kept = [x for r in range(cut.replicas) for x in session.state(r).values()]
        return [*kept, *(np.asarray(x.element) for x in session.stream("loss").drain())]


def turn_of(program: Program) -> tuple[Step, ...]:
    (loop,) = (x for x in program.body.steps if isinstance(x, Repeat))
    return loop.body.steps


@pytest.mark.thinned(2)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_not_a_bit_changes(cut: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    apart, program = one_after_the_other(cut, monkeypatch), compiled(cut)
    assert not any(isinstance(x, Parallel) for x in turn_of(apart.program))
    assert any(isinstance(x, Parallel) for x in turn_of(program.program))
    modes: tuple[Mode, ...] = ("functional", "exact") if cut is CLIPPED else ("functional",)
    for mode in modes:
        pairs = zip(left_by(cut, program, mode), left_by(cut, apart, mode), strict=True)
        for a, b in pairs:
            np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_what_is_beside_each_other_lasts_as_long_as_the_slowest(
    cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compiled(cut).program
    cycles = cycles_of(program, TINY)
    for step in turn_of(program):
        if isinstance(step, Parallel):
            assert cycles([step]) == max(cycles(branch.steps) for branch in step.branches)
    before = one_after_the_other(cut, monkeypatch).program
    assert estimate(program, TINY).spent.total <= estimate(before, TINY).spent.total
    check_memory(program, TINY)


def test_clipping_by_the_norm_of_all_takes_three_meetings() -> None:
    """Parts of the norm go to one IPU, the factor comes from there, and once a weight's state."""
    steps = turn_of(compiled(CLIPPED).program)
    at = next(n for n, x in enumerate(steps) if isinstance(x, Pipeline))
    after = steps[at + 1 :]
    together = [x for x in after if isinstance(x, Parallel)]
    assert after[0] is together[0]
    assert after[-1] is together[-1]
    assert len(together[0].branches) == CLIPPED.stages
    assert sum(isinstance(x, Sync) and x.ipus > 1 for x in after) == 3
