"""Steps whose layers are one loop over stacked weights, printed by JAX: for judging estimates."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hloipu.jax import lower
from tools.demo_pipeline import attention, normed

LAYERS, WIDTH, BATCH, WORDS = 8, 128, 16, 8
_HEADS = 4
_DECAY, _RATE = 0.9, 1e-2
Tree = Any


def scanned_steps() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield names, texts, and options that tell what is fed and kept."""
    draw = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return (draw.normal(size=shape) / np.sqrt(shape[-2])).astype(np.float32)

    layers = {
        "up": normal(LAYERS, WIDTH, 2 * WIDTH), "b": np.zeros((LAYERS, 2 * WIDTH), np.float32),
        "down": normal(LAYERS, 2 * WIDTH, WIDTH),
    }  # fmt: skip
    mixing = {"qkv": normal(LAYERS, WIDTH, 3 * WIDTH), "out": normal(LAYERS, WIDTH, WIDTH)}
    rows, words = normal(BATCH, WIDTH), normal(2, WORDS, WIDTH)
    yield "scanned_mlp", _training(layers, _dense, rows), {}
    again = jax.checkpoint(_block)
    yield "scanned_blocks_again", _training(layers | mixing, again, words), {}
    head = normal(WIDTH, 8)

    def inference(weights: Tree, head: Any, x: Any) -> Any:
        return _scanned(_dense, weights, x) @ head

    feed = {"feed": {"data": (4,)}}
    yield "scanned_inference", lower(inference, layers, head, rows).text, feed
    caches = np.zeros((2, LAYERS, BATCH, WORDS, WIDTH), np.float32)
    given = (tuple(caches), np.int32(0), layers | mixing, rows)
    kept = {"feed": {"data": (2, 8)}, "role": {"0": "carry", "1": "carry"}}
    yield "scanned_decoder", lower(_decoded, *given, donate=0).text, kept


def _dense(x: Any, layer: Tree) -> Any:
    return x + jnp.tanh(x @ layer["up"] + layer["b"]) @ layer["down"]


def _block(x: Any, layer: Tree) -> Any:
    return _dense(x + attention(layer, normed(x), _HEADS), layer)


def _scanned(layer: Any, weights: Tree, x: Any) -> Any:
    return lax.scan(lambda x, w: (layer(x, w), None), x, weights)[0]


def _training(weights: Tree, layer: Any, x: Any) -> str:
    """Return the text of a step by SGD with momentum, whose target is what comes in."""

    def loss(weights: Tree, x: Any, y: Any) -> Any:
        return jnp.mean((_scanned(layer, weights, x) - y) ** 2)

    def step(state: Tree, x: Any, y: Any) -> tuple[Tree, Any]:
        weights, speeds = state
        value, slopes = jax.value_and_grad(loss)(weights, x, y)
        speeds = jax.tree.map(lambda v, g: _DECAY * v + g, speeds, slopes)
        return (jax.tree.map(lambda w, v: w - _RATE * v, weights, speeds), speeds), value

    state = weights, jax.tree.map(np.zeros_like, weights)
    return lower(step, state, x, x, donate=0).text


def _decoded(caches: Tree, at: Any, weights: Tree, x: Any) -> tuple[Tree, Any]:
    """Return caches of keys and values with one more word, and what layers make of it."""

    def layer(x: Any, given: tuple[Tree, Any, Any]) -> tuple[Any, tuple[Any, Any]]:
        w, keys, values = given
        q, k, v = jnp.split(normed(x) @ w["qkv"], 3, -1)
        keys = lax.dynamic_update_slice(keys, k[:, None], (0, at, 0))
        values = lax.dynamic_update_slice(values, v[:, None], (0, at, 0))
        scores = jnp.einsum("bd,bwd->bw", q, keys) / np.sqrt(WIDTH)
        scores = jnp.where(jnp.arange(WORDS) <= at, scores, -1e9)
        mixed = jnp.einsum("bw,bwd->bd", jax.nn.softmax(scores), values)
        return _dense(x + mixed @ w["out"], w), (keys, values)

    x, caches = lax.scan(layer, x, (weights, *caches))
    return caches, x
