"""Backward stages that make forward values again: the same state, and less to stash."""

import jax
import numpy as np
import pytest

import hloipu.jax
from hloipu_compiler.partition.stages import pipelining, recomputing
from hloipu_runtime.compiled import CompiledProgram
from tests.support.pipeline_trials import ROOMY, Cut, compiled
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
@pytest.mark.thinned(8)
def test_state_is_the_same_as_with_everything_stashed(
    name: str, recompute: str, stages: int
) -> None:
    cut = Cut(name, stages, "grouped", 3)
    for old, new in zip(
        trained(cut, compiled(cut, recompute="none", **ROOMY)),
        trained(cut, compiled(cut, recompute=recompute, **ROOMY)),
        strict=True,
    ):
        # A factor that a sum takes out may round otherwise where blocks are functions of their own.
        np.testing.assert_allclose(old, new, rtol=1e-6, atol=1e-8)


def stashed(program: CompiledProgram) -> int:
    (row,) = program.profile().pipelines
    return sum(position.stash_bytes for position in row.positions)


def test_less_waits() -> None:
    name = next(name for name in STEPS if name.startswith("transformer"))
    cut = Cut(name, 2, "grouped", 4)
    kept, blocks, again = (compiled(cut, recompute=kind) for kind in ("none", "blocks", "full"))
    assert 0 < stashed(again) < stashed(kept)
    assert 0 < stashed(blocks) < stashed(kept)


def test_the_last_stage_makes_cheap_values_again_where_memory_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They do not wait between its parts any more; the state stays the same, bit by bit."""
    cut = Cut(next(name for name in STEPS if name.startswith("transformer")), 2, "grouped", 4)
    before = compiled(cut, recompute="full")
    monkeypatch.setattr(
        pipelining, "made_again", lambda *given, last: recomputing.made_again(*given, last=True)
    )
    after = compiled(cut, recompute="full")
    (kept,), (again,) = before.profile().pipelines, after.profile().pipelines
    assert 0 < again.positions[2].stash_bytes < kept.positions[2].stash_bytes
    assert again.positions[3].stash_bytes == kept.positions[3].stash_bytes
    for old, new in zip(trained(cut, before), trained(cut, after), strict=True):
        # A factor that a sum takes out may round otherwise where blocks are functions of their own.
        np.testing.assert_allclose(old, new, rtol=1e-6, atol=1e-8)


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


def marked_step(weights: list[jax.Array], data: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """Train on blocks of two products, each of which the user asks to compute again."""

    def block(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        return x + jax.numpy.tanh(x @ first) @ second

    marked = jax.checkpoint(block)

    def loss(weights: list[jax.Array]) -> jax.Array:
        x = data
        for first, second in zip(weights[::2], weights[1::2], strict=True):
            x = marked(x, first, second)
        return (x**2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value


def test_blocks_that_are_marked_stay_in_their_stages() -> None:
    """The text makes them again already: what is added stays in the stage that it is for."""
    rng = np.random.default_rng(3)
    weights = [0.2 * rng.standard_normal((16, 16), np.float32) for _ in range(8)]
    batches = [rng.standard_normal((8, 16), np.float32) for _ in range(4)]
    program = hloipu.jax.compile(
        marked_step,
        weights,
        batches[0],
        donate=0,
        stages=3,
        micro_batches=4,
        recompute="blocks",
    ).program
    with program.session(state=weights, infeeds={"data": iter(batches)}) as session:
        session.run(1)
        found = list(session.state().values())
    wanted, _ = jax.jit(marked_step)(weights, np.concatenate(batches))
    for new, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(new, expected, rtol=2e-5, atol=2e-6)
    (row,) = program.profile().pipelines
    cycles = [position.cycles for position in row.positions]
    # A stage's gradients are two products for each of its own forward ones.
    assert all(back > ahead for ahead, back in zip(cycles[:3], cycles[:2:-1], strict=True))


def masked_step(
    weights: list[jax.Array], data: tuple[jax.Array, jax.Array]
) -> tuple[list[jax.Array], jax.Array]:
    """Train on blocks that are computed again, each from the mask of the whole step."""
    rows, mask = data

    def block(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        bias = ((1 - mask) * -1e4)[:, None]
        return x + jax.nn.softmax(jax.numpy.tanh(x @ first) + bias, axis=0) @ second

    marked = jax.checkpoint(block)

    def loss(weights: list[jax.Array]) -> jax.Array:
        x = rows
        for first, second in zip(weights[::2], weights[1::2], strict=True):
            x = marked(x, first, second)
        return (x**2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value


def test_what_blocks_read_of_the_whole_step_puts_them_nowhere() -> None:
    """The forward pass makes the mask once, in the first block, and each block makes it again."""
    weights = [np.zeros((64, 64), np.float32)] * 8
    data = np.zeros((128, 64), np.float32), np.ones(128, np.int32)
    program = hloipu.jax.compile(
        masked_step, weights, data, donate=0, stages=4, micro_batches=4
    ).program
    (row,) = program.profile().pipelines
    backward = [position.cycles for position in row.positions[4:]]
    assert max(backward) < 1.5 * min(backward)
