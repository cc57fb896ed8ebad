"""Networks whose state or arithmetic is unusual: keys, counts, frozen weights, narrow floats."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from tests.support.training_models import BATCH, Model, Tree

_SIZES = (6, 8, 7, 9, 5, 3)


def perceptron(
    rng: np.random.Generator, kind: DTypeLike = np.float32, sizes: Sequence[int] = _SIZES
) -> list[dict[str, Any]]:
    """Return the weights of a perceptron."""
    return [
        {"w": rng.normal(0, 0.5 / np.sqrt(a), (a, b)).astype(kind), "b": np.zeros(b, kind)}
        for a, b in itertools.pairwise(sizes)
    ]


def regression(rng: np.random.Generator, kind: DTypeLike = np.float32) -> tuple[Any, Any]:
    """Return rows, and what they are to become."""
    first, last = _SIZES[0], _SIZES[-1]
    return rng.normal(size=(BATCH, first)).astype(kind), rng.normal(size=(BATCH, last)).astype(kind)


def _classes(rng: np.random.Generator) -> tuple[Any, Any]:
    x = rng.normal(size=(BATCH, _SIZES[0])).astype(np.float32)
    return x, rng.integers(0, _SIZES[-1], BATCH).astype(np.int32)


def _dropout() -> Model:
    """A key of random numbers is state; each of two layers draws from a part of it."""

    def loss(layers: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        following, *keys = jax.random.split(statistics["key"], 3)
        masks = {1: keys[0], 3: keys[1]}
        for number, layer in enumerate(layers[:-1]):
            x = jnp.tanh(x @ layer["w"] + layer["b"])
            if number in masks:
                x = jnp.where(jax.random.bernoulli(masks[number], 0.75, x.shape), x / 0.75, 0)
        squares = (x @ layers[-1]["w"] + layers[-1]["b"] - y) ** 2
        return jnp.mean(squares), {"key": following}

    def statistics() -> Tree:
        return {"key": np.array([0, 42], np.uint32)}

    return Model("dropout", perceptron, loss, regression, statistics, couples=True)


def _counting() -> Model:
    """Whole numbers as state: one read by the forward pass, counts of data, and of answers."""

    def loss(layers: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        x = x * (1 + 1 / (2 + statistics["turn"]).astype(jnp.float32))
        for layer in layers[:-1]:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        scores = x @ layers[-1]["w"] + layers[-1]["b"]
        right = jnp.sum(jnp.argmax(scores, -1) == y, dtype=jnp.int32)
        new = {
            "labels": statistics["labels"].at[y].add(1),
            "right": statistics["right"] + right,
            "turn": statistics["turn"] + 1,
        }
        picked = jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], 1)
        return -jnp.mean(picked), new

    def statistics() -> Tree:
        return {"labels": np.zeros(3, np.int32), "right": np.int32(0), "turn": np.int32(0)}

    return Model("counting", perceptron, loss, _classes, statistics, couples=True)


def _averaging() -> Model:
    """Moving averages as state: of the loss, and of data that the loss has no part in.

    The latter are so many that what is made of them alone is no matter of a few numbers.
    """

    def loss(layers: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        inputs = x
        for layer in layers[:-1]:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        loss = jnp.mean((x @ layers[-1]["w"] + layers[-1]["b"] - y) ** 2)
        new = {
            "loss": 0.75 * statistics["loss"] + 0.25 * loss,
            "spread": 0.5 * statistics["spread"] + 0.5 * jnp.var(jnp.tile(inputs, 20), 0),
        }
        return loss, new

    def statistics() -> Tree:
        return {"loss": np.float32(0), "spread": np.ones(20 * _SIZES[0], np.float32)}

    return Model("averaging", perceptron, loss, regression, statistics, couples=True)


def _queued() -> Model:
    """A queue of features of earlier micro-batches, which the loss is compared with."""
    length = 3 * BATCH

    def loss(layers: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        for layer in layers:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        against = jnp.mean(jax.nn.softmax(x @ statistics["queue"].T) ** 2)
        kept = statistics["queue"][:-BATCH]
        return jnp.mean((x - y) ** 2) + against, {"queue": jnp.concatenate([x, kept])}

    def statistics() -> Tree:
        return {"queue": np.zeros((length, _SIZES[-1]), np.float32)}

    return Model("queued", perceptron, loss, regression, statistics, couples=True)


def _codebook() -> Model:
    """Codes that go to the features nearest to them, and no weights, though nothing tells."""
    codes = 5

    def loss(layers: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        for layer in layers:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        book = statistics["book"]
        nearest = jax.nn.one_hot(jnp.argmax(x @ book.T, 1), codes)
        loss = jnp.mean((x - y) ** 2) + jnp.mean((x - nearest @ book) ** 2)
        return loss, {"book": book + 0.25 * nearest.T @ (x - nearest @ book)}

    def statistics() -> Tree:
        book = np.random.default_rng(7).normal(size=(codes, _SIZES[-1]))
        return {"book": book.astype(np.float32)}

    return Model("codebook", perceptron, loss, regression, statistics, couples=True, is_said=True)


def _recurrent() -> Model:
    """What a net ends one micro-batch with, it begins the next one with."""

    def loss(layers: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        x = x + 0.5 * statistics["carry"]
        for layer in layers[:-1]:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        x = x @ layers[-1]["w"] + layers[-1]["b"]
        return jnp.mean((x - y) ** 2), {"carry": jnp.concatenate([x, jnp.flip(x, 1)], 1)}

    def statistics() -> Tree:
        return {"carry": np.zeros((BATCH, _SIZES[0]), np.float32)}

    return Model("recurrent", perceptron, loss, regression, statistics, couples=True)


def _adapted() -> Model:
    """Frozen weights beside small trained ones, as low-rank adapters have them."""

    def weights(rng: np.random.Generator) -> Tree:
        return [
            {"a": rng.normal(0, 0.3, (a, 2)).astype(np.float32),
             "b": rng.normal(0, 0.3, (2, b)).astype(np.float32)}
            for a, b in itertools.pairwise(_SIZES)
        ]  # fmt: skip

    def loss(layers: Tree, frozen: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        for low, base in zip(layers, frozen, strict=True):
            x = jnp.tanh(x @ base["w"] + x @ low["a"] @ low["b"] + base["b"])
        return jnp.mean((x - y) ** 2), frozen

    return Model("adapted", weights, loss, regression, lambda: perceptron(np.random.default_rng(9)))


def _narrow(name: str, kind: DTypeLike) -> Model:
    """A perceptron whose weights, activations and gradients are all narrow floats."""

    def loss(layers: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        for layer in layers[:-1]:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        away = (x @ layers[-1]["w"] + layers[-1]["b"] - y).astype(jnp.float32)
        return jnp.mean(away**2), statistics

    return Model(
        name,
        lambda rng: perceptron(rng, kind),
        loss,
        lambda rng: regression(rng, kind),
        precision=kind,
    )


def _stairs(name: str, kind: DTypeLike) -> Model:
    """Rectified sums of small whole numbers: every value is exact, in whatever order it is made.

    Biases alone are trained, so that they keep few digits: after two updates by eighths of at most
    64 they and their sums over five layers need 11 bits.
    """
    width = 4
    turns = np.array([[0, 1, 0, 0], [0, 0, -1, 0], [0, 0, 0, 1], [1, 0, 0, 0]])

    def weights(rng: np.random.Generator) -> Tree:
        return [rng.integers(-1, 3, width).astype(kind) for _ in range(5)]

    def loss(biases: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        for bias in biases:
            x = jax.nn.relu(x @ turns.astype(kind) + bias)
        answers = jnp.sum(x.astype(jnp.float32) * y)
        return answers, {"seen": statistics["seen"] + jnp.sum(y != 0, dtype=jnp.int32)}

    def data(rng: np.random.Generator) -> tuple[Any, Any]:
        x = rng.integers(-3, 4, (BATCH, width)).astype(kind)
        return x, rng.integers(-1, 2, (BATCH, width)).astype(np.float32)

    def statistics() -> Tree:
        return {"seen": np.int32(0)}

    return Model(name, weights, loss, data, statistics, couples=True, precision=kind, is_exact=True)


UNUSUAL = (_dropout(), _counting(), _averaging(), _queued(), _codebook(), _adapted())
RECURRENT = _recurrent()
"""State that the first stage reads and the last makes: for one stage."""
NARROW = (_narrow("bf16_mlp", jnp.bfloat16), _narrow("f16_mlp", np.float16))
EXACT = (_stairs("stairs", np.float32), _stairs("f16_stairs", np.float16))
