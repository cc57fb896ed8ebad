"""Updates as optimizers and their wrappers are made of, after K micro-batches as JAX has them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxlib import _hlo

import hloipu
from tests.support.training_models import USUAL, Tree

MICRO_BATCHES = 3
UPDATES = 2
NEAR = (5e-5, 5e-6)
"""Bounds for f32: sums of three gradients in another order, then an optimizer's division."""
MLP = USUAL[0]
CLIPPED = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2))

Loss = Callable[[Tree, Any, Any], tuple[Any, Tree]]


def _through(layers: Tree, x: Any) -> Any:
    for layer in layers[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def _plain(layers: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
    return jnp.mean((_through(layers, x) - y) ** 2), ()


def _line(weights: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
    return jnp.mean((weights["a"] * x[:, 0] + weights["b"] - y[:, 0]) ** 2), ()


def _leaky(weights: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
    """One slope, of one element, that every layer reads."""
    for layer in weights["net"]:
        x = x @ layer["w"] + layer["b"]
        x = jnp.where(x > 0, x, weights["slope"].reshape(()) * x)
    return jnp.mean((x - y) ** 2), ()


def _weighed(weights: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
    """Two losses, both results too, and their sum, in which learned numbers weigh them."""
    out, log = _through(weights["net"], x), weights["log"]
    first, second = jnp.mean((out[:, 0] - y[:, 0]) ** 2), jnp.mean(jnp.abs(out[:, 1] - y[:, 1]))
    return first * jnp.exp(-log[0]) + second * jnp.exp(-log[1]) + log.sum(), (first, second)


def _net(rng: np.random.Generator) -> Tree:
    def layer(a: int, b: int) -> Tree:
        return {"w": rng.normal(0, 0.3, (a, b)).astype(np.float32), "b": np.zeros(b, np.float32)}

    return [layer(6, 8), layer(8, 3)]


def _with_slope(*shape: int) -> Callable[[np.random.Generator], Tree]:
    return lambda rng: {"net": _net(rng), "slope": np.full(shape, 0.25, np.float32)}


CASES: dict[str, tuple[Callable[[np.random.Generator], Tree], Loss, Any]] = {
    "gradients kept as state": (_net, _plain, optax.optimistic_gradient_descent(1e-2)),
    "finite or not, a flag each": (_net, _plain, optax.chain(optax.zero_nans(), optax.sgd(0.1))),
    "finite or not, one flag": (_net, _plain, optax.apply_if_finite(optax.sgd(0.1), 3)),
    "moments within a branch": (_net, _plain, optax.novograd(1e-2)),
    "numbers clipped together": (
        lambda rng: {"a": np.float32(0.3), "b": np.float32(0)}, _line, CLIPPED
    ),
    "a number of no dimensions, clipped": (_with_slope(), _leaky, CLIPPED),
    "a number of one dimension, clipped": (_with_slope(1), _leaky, CLIPPED),
    "losses weighed, clipped": (
        lambda rng: {"net": _net(rng), "log": np.zeros(2, np.float32)}, _weighed, CLIPPED
    ),
    "losses weighed": (
        lambda rng: {"net": _net(rng), "log": np.zeros(2, np.float32)}, _weighed, optax.sgd(0.1)
    ),
}  # fmt: skip


STAGED = [(name, 1) for name in CASES] + [("losses weighed, clipped", 2)]


@pytest.mark.parametrize(("name", "stages"), STAGED)
@pytest.mark.thinned(3)
def test_two_updates_are_those_of_mean_gradients(name: str, stages: int) -> None:
    weights, loss, optimizer = CASES[name]
    first = weights(np.random.default_rng(0))
    state = jax.tree.map(np.asarray, (first, optimizer.init(first)))

    def gradients(state: Tree, x: Any, y: Any) -> Any:
        return jax.value_and_grad(loss, has_aux=True)(state[0], x, y)

    def update(slopes: Tree, state: Tree) -> Tree:
        changes, other = optimizer.update(slopes, state[1], state[0])
        return optax.apply_updates(state[0], changes), other

    def step(state: Tree, x: Any, y: Any) -> Any:
        results, slopes = gradients(state, x, y)
        return update(slopes, state), results

    batches = [MLP.data(np.random.default_rng(n)) for n in range(UPDATES * MICRO_BATCHES)]
    lowered = jax.jit(step, donate_argnums=0, keep_unused=True).lower(state, *batches[0])
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    options.print_metadata = stages > 1  # names of ops that both passes have say `transpose(`
    text = str(lowered.compiler_ir("hlo").as_hlo_module().to_string(options))
    count = len(jax.tree.leaves(state))
    program = hloipu.compile(
        text, target="tiny", over_memory="allow", cache=False, loop=UPDATES,
        feed={"data": (count, count + 1)}, outfeed=[f"loss={count}"],
        stages=stages, micro_batches=MICRO_BATCHES,
    )  # fmt: skip
    leaves = [np.asarray(x) for x in jax.tree.leaves(state)]
    with program.session(state=leaves, infeeds={"data": iter(batches)}) as session:
        session.run(UPDATES)
        found = list(session.state(0).values())
    sloping, updating = jax.jit(gradients), jax.jit(update)
    for number in range(UPDATES):
        part = batches[number * MICRO_BATCHES : (number + 1) * MICRO_BATCHES]
        slopes = [sloping(state, x, y)[1] for x, y in part]
        mean = jax.tree.map(lambda *x: sum(map(np.asarray, x)) / np.float32(MICRO_BATCHES), *slopes)
        state = updating(mean, state)
    for mine, theirs in zip(found, jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(mine, theirs, *NEAR)
