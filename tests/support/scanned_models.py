"""Networks whose layers are scanned over stacked weights, as large models are written in JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.support.training_models import BATCH, Model, Tree

LAYERS, WIDTH = 4, 6
_DOTS_KEPT = jax.checkpoint_policies.dots_with_no_batch_dims_saveable


def _normal(rng: np.random.Generator, *shape: int) -> Any:
    return rng.normal(0, 0.5 / np.sqrt(shape[-2]), shape).astype(np.float32)


def _squares(rng: np.random.Generator) -> tuple[Any, Any]:
    return (
        rng.normal(size=(BATCH, 5)).astype(np.float32),
        rng.normal(size=(BATCH, 3)).astype(np.float32),
    )


def _perceptron(name: str, wrapped: Callable[[Any], Any] = lambda f: f) -> Model:
    def weights(rng: np.random.Generator) -> Tree:
        layers = {
            "up": _normal(rng, LAYERS, WIDTH, 9), "b": np.zeros((LAYERS, 9), np.float32),
            "down": _normal(rng, LAYERS, 9, WIDTH),
        }  # fmt: skip
        return {"first": _normal(rng, 5, WIDTH), "layers": layers, "last": _normal(rng, WIDTH, 3)}

    def layer(x: Any, w: Tree) -> tuple[Any, None]:
        return x + jnp.tanh(x @ w["up"] + w["b"]) @ w["down"], None

    def loss(w: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        x, _ = lax.scan(wrapped(layer), x @ w["first"], w["layers"])
        return jnp.mean((x @ w["last"] - y) ** 2), statistics

    return Model(name, weights, loss, _squares)


def _transformer(name: str, wrapped: Callable[[Any], Any]) -> Model:
    """Blocks between an embedding and the same embedding transposed; projections on axis 1."""
    words, length, heads = 11, 5, 2

    def weights(rng: np.random.Generator) -> Tree:
        blocks = {
            "qkv": np.moveaxis(_normal(rng, LAYERS, WIDTH, 3 * WIDTH), 0, 1).copy(),
            "out": _normal(rng, LAYERS, WIDTH, WIDTH), "up": _normal(rng, LAYERS, WIDTH, 12),
            "down": _normal(rng, LAYERS, 12, WIDTH),
            "scale": np.ones((WIDTH, LAYERS), np.float32),
        }  # fmt: skip
        return {"embedding": _normal(rng, words, WIDTH), "blocks": blocks}

    def block(x: Any, w: Tree) -> tuple[Any, Any]:
        normed = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * w["scale"]
        qkv = (normed @ w["qkv"]).reshape(*x.shape[:2], 3, heads, -1)
        q, k, v = (qkv[:, :, n] for n in range(3))
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
        mask = jnp.tril(jnp.ones((length, length), bool))
        mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(jnp.where(mask, scores, -1e9)), v)
        x = x + mixed.reshape(x.shape) @ w["out"]
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"], jnp.mean(x * x)

    def loss(w: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        blocks = dict(w["blocks"])
        for name in ("qkv", "scale"):
            blocks[name] = jnp.moveaxis(blocks[name], 1, 0)
        h, sizes = lax.scan(wrapped(block), w["embedding"][x], blocks)
        scores = jax.nn.log_softmax(h @ w["embedding"].T)
        picked = jnp.take_along_axis(scores, y[..., None], 2)
        return 1e-3 * jnp.mean(sizes) - jnp.mean(picked), statistics

    def data(rng: np.random.Generator) -> tuple[Any, Any]:
        tokens = rng.integers(0, words, (2, BATCH, length)).astype(np.int32)
        return tokens[0], tokens[1]

    return Model(name, weights, loss, data)


def _with_statistics() -> Model:
    """Moving averages and keys of random numbers of every layer are stacks, too."""

    def weights(rng: np.random.Generator) -> Tree:
        layers = {"w": _normal(rng, LAYERS, WIDTH, WIDTH), "g": np.ones((LAYERS, WIDTH), "f")}
        return {"first": _normal(rng, 5, WIDTH), "layers": layers, "last": _normal(rng, WIDTH, 3)}

    def layer(x: Any, given: tuple[Tree, Tree, Any]) -> tuple[Any, Tree]:
        w, old, key = given
        mean = jnp.mean(x, 0)
        new = {"mean": 0.9 * old["mean"] + 0.1 * mean}
        x = jnp.where(jax.random.bernoulli(key, 0.75, x.shape), (x - mean) * w["g"], 0)
        return jnp.tanh(x @ w["w"]), new

    def loss(w: Tree, statistics: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        following, *keys = jax.random.split(statistics["key"], LAYERS + 1)
        given = w["layers"], statistics["moving"], jnp.stack(keys)
        x, moving = lax.scan(layer, x @ w["first"], given)
        statistics = {"key": following, "moving": moving}
        return jnp.mean((x @ w["last"] - y) ** 2), statistics

    def statistics() -> Tree:
        moving = {"mean": np.zeros((LAYERS, WIDTH), np.float32)}
        return {"key": np.array([0, 7], np.uint32), "moving": moving}

    return Model("scanned_statistics", weights, loss, _squares, statistics, couples=True)


SCANNED = (
    _perceptron("scanned_mlp"),
    _perceptron("scanned_mlp_again", jax.checkpoint),
    _transformer("scanned_transformer", lambda f: f),
    _transformer("scanned_transformer_again", lambda f: jax.checkpoint(f, policy=_DOTS_KEPT)),
    _with_statistics(),
)
