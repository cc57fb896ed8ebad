"""Networks of many kinds, in JAX, small enough to be cut in every way.

Each has at least four places to be cut at, but the LSTM.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

Tree = Any
BATCH = 4


@dataclass(frozen=True)
class Model:
    """A network: its weights, its statistics, and its loss."""

    name: str
    weights: Callable[[np.random.Generator], Tree]
    loss: Callable[[Tree, Tree, Any, Any], tuple[Any, Tree]]
    """(weights, statistics, x, y) -> (loss, new statistics)."""
    data: Callable[[np.random.Generator], tuple[Any, Any]]
    """One micro-batch."""
    statistics: Callable[[], Tree] = dict
    """State that goes from micro-batch to micro-batch."""
    couples: bool = False
    """Whether micro-batches are not one batch: samples act on each other, or the loss is a sum."""
    batch_axis: int = 0
    """Of x; that of y is 0."""
    is_said: bool = False
    """Whether the user has to say of its statistics that micro-batches carry them on."""
    precision: DTypeLike = np.float32
    """The narrowest float that gradients pass through."""
    is_exact: bool = False
    """Whether no value is rounded, whatever the order of sums."""


def _normal(rng: np.random.Generator, *shape: int) -> Any:
    return rng.normal(0, 0.5 / np.sqrt(max(shape[0], 1)), shape).astype(np.float32)


def _squares(rng: np.random.Generator, inputs: int, outputs: int) -> tuple[Any, Any]:
    return (
        rng.normal(size=(BATCH, inputs)).astype(np.float32),
        rng.normal(size=(BATCH, outputs)).astype(np.float32),
    )


def _mlp() -> Model:
    sizes = (6, 8, 7, 9, 5, 3)

    def weights(rng: np.random.Generator) -> Tree:
        return [
            {"w": _normal(rng, a, b), "b": np.zeros(b, np.float32)}
            for a, b in itertools.pairwise(sizes)
        ]

    def loss(layers: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        for layer in layers[:-1]:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return jnp.mean((x @ layers[-1]["w"] + layers[-1]["b"] - y) ** 2), statistics

    return Model("mlp", weights, loss, lambda rng: _squares(rng, 6, 3))


def _square_mlp() -> Model:
    """Batch and all widths are one size, so that no shape tells what a value is."""
    width = BATCH

    def weights(rng: np.random.Generator) -> Tree:
        return [{"w": _normal(rng, width, width), "b": _normal(rng, width)} for _ in range(4)]

    def loss(layers: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        for layer in layers[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return jnp.mean((x @ layers[-1]["w"] + layers[-1]["b"] - y) ** 2), statistics

    return Model("square_mlp", weights, loss, lambda rng: _squares(rng, width, width))


def _residual() -> Model:
    """A perceptron with skips over two layers, so over two stages where each is one."""

    def weights(rng: np.random.Generator) -> Tree:
        return [{"w": _normal(rng, 8, 8), "b": np.zeros(8, np.float32)} for _ in range(5)]

    def loss(layers: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        first = jax.nn.gelu(x @ layers[0]["w"] + layers[0]["b"])
        second = jax.nn.gelu(first @ layers[1]["w"] + layers[1]["b"])
        third = jax.nn.gelu(second @ layers[2]["w"] + layers[2]["b"]) + first
        fourth = jax.nn.gelu(third @ layers[3]["w"] + layers[3]["b"]) + second
        out = fourth @ layers[4]["w"] + layers[4]["b"] + first
        return jnp.mean((out - y) ** 2), statistics

    return Model("residual", weights, loss, lambda rng: _squares(rng, 8, 8))


def _cnn() -> Model:
    """Two convolutions with batch normalisation, whose moving averages are statistics."""

    def weights(rng: np.random.Generator) -> Tree:
        return {
            "conv1": _normal(rng, 3, 3, 2, 4), "scale1": np.ones(4, np.float32),
            "shift1": np.zeros(4, np.float32),
            "conv2": _normal(rng, 3, 3, 4, 6), "scale2": np.ones(6, np.float32),
            "shift2": np.zeros(6, np.float32),
            "dense": _normal(rng, 6, 3), "bias": np.zeros(3, np.float32),
        }  # fmt: skip

    def normed(x: Any, scale: Any, shift: Any, old: Tree) -> tuple[Any, Tree]:
        mean, variance = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
        new = {"mean": 0.9 * old["mean"] + 0.1 * mean, "var": 0.9 * old["var"] + 0.1 * variance}
        return (x - mean) * lax.rsqrt(variance + 1e-3) * scale + shift, new

    def convolved(x: Any, kernel: Any, stride: int) -> Any:
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def loss(w: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        x, first = normed(convolved(x, w["conv1"], 1), w["scale1"], w["shift1"], statistics[0])
        x = jax.nn.relu(x)
        x, second = normed(convolved(x, w["conv2"], 2), w["scale2"], w["shift2"], statistics[1])
        scores = jnp.mean(jax.nn.relu(x), (1, 2)) @ w["dense"] + w["bias"]
        loss = -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], 1))
        return loss, [first, second]

    def data(rng: np.random.Generator) -> tuple[Any, Any]:
        images = rng.normal(size=(BATCH, 6, 6, 2)).astype(np.float32)
        return images, rng.integers(0, 3, BATCH).astype(np.int32)

    def statistics() -> Tree:
        return [{"mean": np.zeros(n, np.float32), "var": np.ones(n, np.float32)} for n in (4, 6)]

    return Model("cnn", weights, loss, data, statistics, couples=True)


def _transformer() -> Model:
    """Two blocks between an embedding and the same embedding transposed."""
    words, width, length = 11, 8, 5

    def weights(rng: np.random.Generator) -> Tree:
        block = {
            "q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width),
            "up": (width, 16), "down": (16, width),
        }  # fmt: skip
        blocks = [{k: _normal(rng, *shape) for k, shape in block.items()} for _ in range(2)]
        for each in blocks:
            each["scale"] = np.ones(width, np.float32)
        return {"embedding": _normal(rng, words, width), "blocks": blocks}

    def block(w: Tree, x: Any) -> Any:
        normed = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * w["scale"]
        q, k, v = normed @ w["q"], normed @ w["k"], normed @ w["v"]
        scores = jnp.einsum("btd,bsd->bts", q, k) / np.sqrt(width)
        mask = np.tril(np.ones((length, length), bool))
        x = x + jax.nn.softmax(jnp.where(mask, scores, -1e9)) @ v @ w["o"]
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"]

    def loss(w: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        h = w["embedding"][x]
        for each in w["blocks"]:
            h = block(each, h)
        scores = jax.nn.log_softmax(h @ w["embedding"].T)
        return -jnp.mean(jnp.take_along_axis(scores, y[..., None], 2)), statistics

    def data(rng: np.random.Generator) -> tuple[Any, Any]:
        tokens = rng.integers(0, words, (2, BATCH, length)).astype(np.int32)
        return tokens[0], tokens[1]

    return Model("transformer", weights, loss, data)


def _lstm() -> Model:
    inputs, width, length = 3, 6, 5

    def weights(rng: np.random.Generator) -> Tree:
        return {
            "x": _normal(rng, inputs, 4 * width), "h": _normal(rng, width, 4 * width),
            "b": np.zeros(4 * width, np.float32), "out": _normal(rng, width, 2),
            "first": _normal(rng, inputs, inputs),
        }  # fmt: skip

    def loss(w: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        def cell(carry: Any, part: Any) -> tuple[Any, None]:
            h, c = carry
            i, f, g, o = jnp.split(part @ w["x"] + h @ w["h"] + w["b"], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        zeros = jnp.zeros((len(y), width))
        (h, _), _ = lax.scan(cell, (zeros, zeros), jnp.tanh(x @ w["first"]))
        return jnp.mean((h @ w["out"] - y) ** 2), statistics

    def data(rng: np.random.Generator) -> tuple[Any, Any]:
        x = rng.normal(size=(length, BATCH, inputs)).astype(np.float32)
        return x, rng.normal(size=(BATCH, 2)).astype(np.float32)

    return Model("lstm", weights, loss, data, batch_axis=1)


USUAL = (_mlp(), _square_mlp(), _residual(), _cnn(), _transformer(), _lstm())
