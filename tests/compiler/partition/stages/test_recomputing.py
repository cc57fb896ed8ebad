"""Backward stages that make forward values again: the same state, bit by bit, and less to stash."""

import jax
import numpy as np
import pytest

import hloipu.jax
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


def wide_residual_step(
    weights: list[jax.Array], data: jax.Array
) -> tuple[list[jax.Array], jax.Array]:
    """Train on sums of two products, of which backward ops read just the sums."""

    def loss(weights: list[jax.Array]) -> jax.Array:
        x = data
        for first, second in zip(weights[::2], weights[1::2], strict=True):
            x = x + x @ first + x @ second
        return (x**2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value


def test_cheap_values_are_made_again_where_that_stashes_less_only() -> None:
    weights = [np.ones((16, 16), np.float32)] * 8
    kept, cheap = (
        hloipu.jax.compile(
            wide_residual_step,
            weights,
            np.ones((8, 16), np.float32),
            donate=0,
            stages=2,
            micro_batches=4,
            recompute=kind,
        ).program
        for kind in ("none", "cheap")
    )
    assert 0 < stashed(cheap) <= stashed(kept)
