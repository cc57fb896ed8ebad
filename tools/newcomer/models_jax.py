"""Ten models in plain JAX, by `hloipu.jax.lower`, against `jax.jit`.

python -m tools.newcomer.models_jax [NAME]
"""

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hloipu.jax
from hloipu.lowered_steps import LoweredStep
from tools.newcomer.judging import Model, judge

_RANDOM = np.random.default_rng(0)
_DIMENSIONS = ("NHWC", "HWIO", "NHWC")


def _array(*shape: int) -> Any:
    fan_in = int(np.prod(shape[:-1])) if len(shape) > 1 else 1
    return jnp.asarray(_RANDOM.normal(size=shape) * fan_in**-0.5, jnp.float32)


def _tokens(most: int, *shape: int) -> Any:
    return jnp.asarray(_RANDOM.integers(0, most, shape), jnp.int32)


def _model(function: Callable[..., Any], *arguments: Any, donate: tuple[int, ...] = ()) -> Model:
    expected = [np.asarray(x) for x in jax.tree.leaves(jax.jit(function)(*arguments))]
    lowered = hloipu.jax.lower(function, *arguments, donate=donate)
    values = tuple(lowered.values[n] for n in sorted(lowered.values))
    return Model(LoweredStep(lowered.text, (), values, (), (), lambda state: None), expected)


def _conv(x: Any, kernel: Any, stride: int = 1) -> Any:
    strides = (stride, stride)
    return jax.lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=_DIMENSIONS)


def _mlp() -> Model:
    def forward(p: Any, x: Any) -> Any:
        for w, b in p:
            x = jax.nn.gelu(x @ w + b)
        return jax.nn.log_softmax(x)

    sizes = (64, 128, 128, 10)
    layers = [(_array(a, b), _array(b)) for a, b in pairwise(sizes)]
    return _model(forward, layers, _array(32, 64))


def _cnn_with_batch_norm() -> Model:
    def loss(p: Any, x: Any, y: Any) -> Any:
        x = _conv(x, p["conv"])
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        x = jax.nn.relu((x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["shift"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        scores = jax.nn.log_softmax(x.reshape(x.shape[0], -1) @ p["head"])
        return -jnp.take_along_axis(scores, y[:, None], 1).mean(), (mean, variance)

    p = {"conv": _array(3, 3, 1, 8), "scale": jnp.ones(8), "shift": jnp.zeros(8),
         "head": _array(288, 10)}  # fmt: skip
    images = _array(16, 12, 12, 1)
    return _model(jax.value_and_grad(loss, has_aux=True), p, images, _tokens(10, 16))


def _lstm() -> Model:
    def forward(p: Any, xs: Any) -> Any:
        def cell(carry: Any, x: Any) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(x @ p["x"] + h @ p["h"] + p["b"], 4, -1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((xs.shape[1], 32))
        return jax.lax.scan(cell, (zeros, zeros), xs)[1].sum()

    p = {"x": _array(16, 128), "h": _array(32, 128), "b": _array(128)}
    return _model(jax.value_and_grad(forward), p, _array(12, 8, 16))


def _attend(p: Any, x: Any, heads: int) -> Any:
    batch, length, width = x.shape
    split = (batch, length, heads, width // heads)
    q, k, v = ((x @ p[name]).reshape(split) for name in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // heads) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return mixed.reshape(x.shape) @ p["o"]


def _attention() -> Model:
    p = {name: _array(32, 32) for name in "qkvo"}
    return _model(lambda p, x: _attend(p, x, 4), p, _array(2, 16, 32))


def _transformer_block() -> Model:
    def norm(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def loss(p: Any, x: Any) -> Any:
        x = x + _attend(p, norm(x), 4)
        return ((x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]) ** 2).mean()

    p = {name: _array(32, 32) for name in "qkvo"} | {"up": _array(32, 128), "down": _array(128, 32)}
    return _model(jax.value_and_grad(loss), p, _array(2, 16, 32))


def _embedding() -> Model:
    def loss(table: Any, tokens: Any) -> Any:
        return (jnp.take(table, tokens, axis=0).mean(1) ** 2).sum()

    return _model(jax.value_and_grad(loss), _array(500, 24), _tokens(500, 8, 12))


def _unet() -> Model:
    def forward(p: Any, x: Any) -> Any:
        wide = jax.nn.silu(_conv(x, p["in"]))
        deep = jax.nn.silu(_conv(wide, p["down"], 2))
        up = jax.image.resize(jax.nn.silu(_conv(deep, p["middle"])), (2, 16, 16, 16), "nearest")
        return _conv(jnp.concatenate([wide, up], -1), p["out"])

    p = {"in": _array(3, 3, 3, 8), "down": _array(3, 3, 8, 16), "middle": _array(3, 3, 16, 16),
         "out": _array(3, 3, 24, 3)}  # fmt: skip
    return _model(forward, p, _array(2, 16, 16, 3))


def _mixture_of_experts() -> Model:
    def forward(p: Any, x: Any) -> Any:
        gates, chosen = jax.lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
        hidden = jax.nn.relu(jnp.einsum("td,tkdf->tkf", x, p["up"][chosen]))
        each = jnp.einsum("tkf,tkfd->tkd", hidden, p["down"][chosen])
        load = jnp.zeros(4).at[chosen.reshape(-1)].add(1.0)
        return (each * gates[..., None]).sum(1), load

    p = {"router": _array(16, 4), "up": _array(4, 16, 32), "down": _array(4, 32, 16)}
    return _model(forward, p, _array(24, 16))


def _sorting() -> Model:
    def forward(x: Any) -> Any:
        return jnp.sort(x, -1), jnp.argsort(-x, -1), jax.lax.top_k(x, 5), jnp.median(x, -1)

    return _model(forward, _array(8, 100))


def _adam() -> Model:
    def loss(w: Any, x: Any, y: Any) -> Any:
        return ((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2).mean()

    def step(state: Any, x: Any, y: Any) -> Any:
        w, m, v, t = state
        value, g = jax.value_and_grad(loss)(w, x, y)
        t = t + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        rate = 1e-3 * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        w = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), w, m, v)
        return (w, m, v, t), value

    w = {"a": _array(16, 32), "b": _array(32, 4)}
    zeros = jax.tree.map(jnp.zeros_like, w)
    state = (w, zeros, zeros, jnp.float32(0))
    return _model(step, state, _array(64, 16), _array(64, 4), donate=(0,))


MODELS = (
    _mlp, _cnn_with_batch_norm, _lstm, _attention, _transformer_block, _embedding, _unet,
    _mixture_of_experts, _sorting, _adam,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(judge(MODELS, *sys.argv[1:]) > 0)
