"""Backward stages that make forward values again: the same state, bit by bit, and less to stash."""

import jax
import numpy as np
import pytest

from hloipu_runtime.compiled import CompiledProgram
from tests.support.pipeline_trials import Cut, compiled
from tests.support.training_steps import STEPS

NAMES = [name for name in STEPS if not name.startswith("lstm")][::3]


def trained(cut: Cut, program: CompiledProgram) -> list[np.ndarray]:
    step = STEPS[cut.step]
    state = [np.asarray(x) for x in jax.tree.leaves(step.state())]
    batches = [step.batch(n) for n in range(2 * cut.micro_batches)]
    with program.session(state=state, infeeds={"data": iter(batches)}) as session:
        session.run(2)
        return list(session.state().values())


@pytest.mark.parametrize(
    ("recompute", "stages"), [("cheap", 3), ("full", 3), ("blocks", 3), ("blocks", 1)]
)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.thinned(4)
def test_state_is_the_same_as_with_everything_stashed(
    name: str, recompute: str, stages: int
) -> None:
    cut = Cut(name, stages, "grouped", 3)
    for old, new in zip(
        trained(cut, compiled(cut, recompute="none")),
        trained(cut, compiled(cut, recompute=recompute)),
        strict=True,
    ):
        np.testing.assert_array_equal(old, new)


def stashed(program: CompiledProgram) -> int:
    (row,) = program.profile().pipelines
    return sum(position.stash_bytes for position in row.positions)


def test_less_waits() -> None:
    name = next(name for name in STEPS if name.startswith("transformer"))
    cut = Cut(name, 2, "grouped", 4)
    kept, blocks, again = (compiled(cut, recompute=kind) for kind in ("none", "blocks", "full"))
    assert 0 < stashed(again) < stashed(kept)
    assert 0 < stashed(blocks) < stashed(kept)
