"""What each micro-batch makes anew, though the loss is not made of how it is made."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hloipu_compiler.partition.training.errors import StagingError
from tests.support.traced_phases import phases

Tree = Any
WIDTH = 3
ROWS = np.ones((4, WIDTH), np.float32)
MATRIX = np.ones((WIDTH, WIDTH), np.float32)
RATE = 0.125


def _put_first(seen: Any, size: Any) -> Any:
    return jnp.concatenate([size[None], seen[:-1]])


def _rolled(seen: Any, size: Any) -> Any:
    return jnp.roll(seen, 1).at[0].set(size)


@pytest.mark.parametrize("put", [_put_first, _rolled])
def test_a_history_of_sizes_goes_on_by_micro_batch(put: Any) -> None:
    """Its newest number is measured beside the loss, which is scaled by the largest before."""

    def step(state: Tree, x: Any) -> Any:
        w, seen = state

        def loss(w: Any) -> Any:
            h = jnp.tanh(x @ w)
            return jnp.mean((h / jnp.max(seen)) ** 2), put(seen, jnp.max(jnp.abs(h)))

        (value, new), slope = jax.value_and_grad(loss, has_aux=True)(w)
        return (w - RATE * slope, new), value

    _, found = phases(step, (MATRIX, np.ones(4, np.float32)), ROWS)
    assert [pair.parameter for pair in found.per_micro_batch] == [1]
    assert [gradient.parameters for gradient in found.gradients] == [(0,)]


def test_a_weight_of_which_a_part_stays_is_a_weight() -> None:
    def step(state: Tree, x: Any) -> Any:
        (w,) = state
        value, slope = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return (jnp.concatenate([w[:1], w[1:] - RATE * slope[1:]]),), value

    _, found = phases(step, (MATRIX,), ROWS)
    assert not found.per_micro_batch
    assert [gradient.parameters for gradient in found.gradients] == [(0,)]


def test_statistics_that_gradients_are_multiplied_with_are_refused() -> None:
    def step(state: Tree, x: Any) -> Any:
        w, cover = state
        value, slope = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return (w - RATE * cover @ slope, 0.75 * cover + 0.25 * x.T @ x), value

    with pytest.raises(StagingError, match="goes from micro-batch to micro-batch") as caught:
        phases(step, (MATRIX, MATRIX), ROWS)
    assert caught.value.code == "E0505"


def test_an_update_that_looks_at_the_loss_is_refused_as_such() -> None:
    def step(state: Tree, x: Any) -> Any:
        (w,) = state
        value, slope = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return (jnp.where(jnp.isfinite(value), w - RATE * slope, w),), value

    with pytest.raises(StagingError, match="the update reads") as caught:
        phases(step, (MATRIX,), ROWS)
    assert caught.value.code == "E0502"
