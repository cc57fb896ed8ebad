"""Small networks and batches that recipes share, and recipes of one loss and one optimizer."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from tools.trainers.recipe import Batch, Metrics, Recipe, Rng, State, Tree

ROWS = 4
"""Samples of a micro-batch."""
SIZES = (6, 8, 7, 5)
WORDS, LENGTH = 11, 6
CLIPPED = optax.chain(
    optax.clip_by_global_norm(0.5), optax.adamw(1e-2, eps=1e-4, weight_decay=0.01)
)

Loss = Callable[..., tuple[Any, tuple[Tree, Metrics]]]
"""(weights, state, *batch) -> loss, (new carried state, metrics)."""


def normal(rng: Rng, *shape: int) -> Any:
    """Return a matrix of weights, or a stack of them."""
    fan_in = shape[-2] if len(shape) > 1 else 1
    return rng.normal(0, 0.7 / np.sqrt(fan_in), shape).astype(np.float32)


def layers(rng: Rng, sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """Return the weights of a perceptron."""
    return [
        {"w": normal(rng, a, b), "b": 0.1 * normal(rng, b)} for a, b in itertools.pairwise(sizes)
    ]


def through(weights: Tree, x: Any) -> Any:
    """Return the output of a perceptron."""
    for layer in weights[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ weights[-1]["w"] + weights[-1]["b"]


def rows(rng: Rng, *widths: int) -> Batch:
    """Return arrays of numbers of some widths."""
    return tuple(rng.normal(size=(ROWS, n)).astype(np.float32) for n in widths)


def regression(rng: Rng) -> Batch:
    """Return inputs and targets."""
    return rows(rng, SIZES[0], SIZES[-1])


def classes(rng: Rng) -> Batch:
    """Return inputs and labels."""
    return *rows(rng, SIZES[0]), rng.integers(0, SIZES[-1], ROWS).astype(np.int32)


def tokens(rng: Rng) -> Batch:
    """Return tokens and the tokens after them."""
    words = rng.integers(0, WORDS, (ROWS, LENGTH + 1)).astype(np.int32)
    return words[:, :-1].copy(), words[:, 1:].copy()


def cross_entropy(scores: Any, labels: Any) -> Any:
    """Return the loss of each sample."""
    picked = jnp.take_along_axis(jax.nn.log_softmax(scores), labels[..., None], -1)
    return -picked[..., 0]


def rms_normed(x: Any, scale: Any) -> Any:
    """Return rows of equal size."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale


def squares(weights: Tree, state: State, x: Any, y: Any) -> tuple[Any, tuple[Tree, Metrics]]:
    """Return the loss of a perceptron that regresses."""
    return jnp.mean((through(weights, x) - y) ** 2), (state.carried, {})


def classified(weights: Tree, state: State, x: Any, y: Any) -> tuple[Any, tuple[Tree, Metrics]]:
    """Return the loss of a perceptron that classifies, and its accuracy."""
    scores = through(weights, x)
    right = jnp.mean((jnp.argmax(scores, -1) == y).astype(jnp.float32))
    return jnp.mean(cross_entropy(scores, y)), (state.carried, {"accuracy": right})


def updated(optimizer: Any, learned: Tree, slopes: Tree, **more: Any) -> Tree:
    """Return weights and optimizer state after an update."""
    changes, following = optimizer.update(slopes, learned["optimizer"], learned["weights"], **more)
    return {"optimizer": following, "weights": optax.apply_updates(learned["weights"], changes)}


def supervised(
    name: str,
    loss: Loss = squares,
    optimizer: Any = CLIPPED,
    weights: Callable[[Rng], Tree] = layers,
    batch: Callable[[Rng], Batch] = regression,
    **more: Any,
) -> Recipe:
    """Return a recipe of one loss and one optimizer of optax."""

    def learned(rng: Rng) -> Tree:
        first = jax.tree.map(jnp.asarray, weights(rng))
        return {"optimizer": optimizer.init(first), "weights": first}

    def gradients(state: State, *batch: Any) -> tuple[Tree, Tree, Metrics]:
        sloping = jax.value_and_grad(loss, has_aux=True)
        (value, (carried, metrics)), slopes = sloping(state.learned["weights"], state, *batch)
        return slopes, carried, {"loss": value, **metrics}

    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        return updated(optimizer, state.learned, slopes), {}

    return Recipe(name, learned, batch, gradients, more.pop("update", update), **more)
