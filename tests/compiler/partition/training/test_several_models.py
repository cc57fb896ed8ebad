"""Steps of several models: whose gradient is whose, and what of them is no update."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.step_phases import Phases
from tests.support.traced_phases import phases

Tree = Any
WIDTH = 3
ROWS = np.ones((4, WIDTH), np.float32)
MATRIX = np.ones((WIDTH, WIDTH), np.float32)
RATE = 0.125


def weights_of(module: Module, found: Phases) -> dict[int, tuple[str, tuple[int, ...]]]:
    """Return the op and the shape of each weight's gradient, by parameter."""
    each = {}
    for gradient in found.gradients:
        x = module.entry.instructions[gradient.position]
        for parameter in gradient.parameters:
            assert parameter not in each
            each[parameter] = (x.opcode, x.shape.dimensions)  # type: ignore[union-attr]
    return each


def _actor_and_critic(*, returns_both: bool) -> Callable[..., Any]:
    """An actor against a critic, which learns from a target that follows it."""

    def step(state: Tree, x: Any, reward: Any, later: Any) -> Any:
        actor, critic, target = state["actor"], state["critic"], state["target"]
        wanted = reward + 0.5 * jnp.tanh(later @ target)
        first, of_critic = jax.value_and_grad(
            lambda w: jnp.mean((jnp.tanh(reward @ w) - wanted) ** 2)
        )(critic)
        second, of_actor = jax.value_and_grad(
            lambda w: jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ critic) ** 2)
        )(actor)
        new = critic - RATE * of_critic
        made = {
            "actor": actor - RATE * of_actor, "critic": new, "target": 0.75 * target + 0.25 * new,
        }  # fmt: skip
        return made, ((second, first) if returns_both else second)

    return step


def test_a_model_beside_the_loss_has_a_loss_and_gradients_of_its_own() -> None:
    state = dict.fromkeys(("actor", "critic", "target"), MATRIX)
    step = _actor_and_critic(returns_both=True)
    module, found = phases(step, state, ROWS, ROWS, ROWS)
    square = (WIDTH, WIDTH)
    each = weights_of(module, found)
    assert {n: shape for n, (_, shape) in each.items()} == dict.fromkeys((0, 1, 2), square)
    assert [gradient.parameters for gradient in found.gradients] in ([(0,), (1, 2)], [(1, 2), (0,)])
    assert all(opcode in ("dot", "transpose") for opcode, _ in each.values())
    assert found.early == (3, 4)


def test_a_model_whose_loss_is_no_result_is_refused_and_not_taken_for_the_update() -> None:
    state = dict.fromkeys(("actor", "critic", "target"), MATRIX)
    with pytest.raises(StagingError, match="made of data without any weight") as caught:
        phases(_actor_and_critic(returns_both=False), state, ROWS, ROWS, ROWS)
    assert caught.value.code == "E0504"


def test_a_gradient_against_a_model_just_updated_is_refused_as_such() -> None:
    def step(state: Tree, x: Any, z: Any) -> Any:
        critic, sizes, maker = state

        def judged(w: Any, made: Any) -> Any:
            return jnp.mean(jnp.tanh(made @ w) ** 2)

        first, slope = jax.value_and_grad(lambda w: judged(w, x) - judged(w, z @ maker))(critic)
        following = 0.5 * sizes + slope * slope
        new = critic - RATE * slope / jnp.sqrt(following + 1)
        second, other = jax.value_and_grad(lambda w: judged(new, z @ w))(maker)
        return (new, following, maker - RATE * other), (first, second)

    said = "the new value of parameter 0, and the loss reads it"
    with pytest.raises(StagingError, match=said) as caught:
        phases(step, (MATRIX, MATRIX, MATRIX), ROWS, ROWS)
    assert caught.value.code == "E0503"


def test_numbers_that_the_loss_is_made_of_are_clipped_with_all_gradients() -> None:
    """The gradient of each number is 1 less its weighed loss, a part of the sum."""

    def step(state: Tree, x: Any, y: Any) -> Any:
        def loss(state: Tree) -> Any:
            out = jnp.tanh(x @ state["w"])
            first, second = jnp.mean((out - y) ** 2), jnp.mean(jnp.abs(out[:, 0] - y[:, 0]))
            a, b = state["a"], state["b"]
            return first * jnp.exp(-a) + second * jnp.exp(-b) + a + b, (first, second)

        (total, parts), slopes = jax.value_and_grad(loss, has_aux=True)(state)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(slopes)))
        near = norm < 1
        slopes = jax.tree.map(
            lambda g: lax.select(jnp.broadcast_to(near, g.shape), g, g / norm), slopes
        )
        return jax.tree.map(lambda w, g: w - RATE * g, state, slopes), (total, parts)

    state = {"a": np.float32(0), "b": np.float32(0), "w": MATRIX}
    module, found = phases(step, state, ROWS, ROWS)
    shapes = {n: shape for n, (_, shape) in weights_of(module, found).items()}
    assert shapes == {0: (), 1: (), 2: (WIDTH, WIDTH)}


@pytest.mark.parametrize("inside", [True, False])
def test_codes_are_averages_wherever_the_share_of_the_new_is_multiplied(inside: bool) -> None:
    def step(state: Tree, x: Any) -> Any:
        w, sums, counts = state

        def loss(w: Any) -> Any:
            z = x @ w
            codes = sums / counts[:, None]
            chosen = jax.nn.one_hot(jnp.argmin(jnp.sum((z[:, None] - codes) ** 2, -1), -1), WIDTH)
            more = (0.25 * chosen).T @ z if inside else 0.25 * (chosen.T @ z)
            new = 0.75 * sums + more, 0.75 * counts + 0.25 * jnp.sum(chosen, 0)
            return jnp.mean((z - chosen @ codes) ** 2), new

        (value, new), slope = jax.value_and_grad(loss, has_aux=True)(w)
        return (w - RATE * slope, *new), value

    state = MATRIX, np.eye(WIDTH, dtype=np.float32), np.ones(WIDTH, np.float32)
    _, found = phases(step, state, ROWS)
    assert [pair.parameter for pair in found.per_micro_batch] == [1, 2]
    assert [gradient.parameters for gradient in found.gradients] == [(0,)]
