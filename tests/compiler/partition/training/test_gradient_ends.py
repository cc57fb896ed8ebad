"""Gradients that no product and no sum over rows ends, in texts without names."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hloipu_compiler.partition.training.errors import StagingError
from tests.support.traced_phases import phases

ROWS = np.ones((1, 3), np.float32)
SHIFT = np.zeros(3, np.float32)
RATE = 0.125


@pytest.mark.parametrize("function", [jax.nn.softplus, jnp.tanh])
def test_a_function_of_the_gradient_or_of_what_it_is_made_of_is_not_guessed(function: Any) -> None:
    """The mean of a derivative is not the derivative at a mean."""

    def step(state: Any, x: Any) -> Any:
        value, slope = jax.value_and_grad(lambda b: jnp.sum(function(x[0] + b)))(state[0])
        return (state[0] - RATE * slope,), value

    with pytest.raises(StagingError, match="not a function of elements") as caught:
        phases(step, (SHIFT,), ROWS)
    assert caught.value.code == "E0504"


@pytest.mark.parametrize("adam", [False, True])
def test_a_gradient_that_goes_into_state_linearly_is_one(adam: bool) -> None:
    def step(state: Any, x: Any) -> Any:
        b, m, v = state
        value, slope = jax.value_and_grad(lambda b: jnp.sum((x[0] + b) ** 2))(b)
        m, v = 0.5 * m + 0.5 * slope, 0.5 * v + 0.5 * slope * slope
        return (b - RATE * (m / (jnp.sqrt(v) + 1) if adam else slope), m, v), value

    _, found = phases(step, (SHIFT, SHIFT, SHIFT), ROWS)
    assert [gradient.parameters for gradient in found.gradients] == [(0,)]
