"""Whole programs, printed by JAX: networks, train steps, scans, chains and single heavy ops.

The sizes are those of small real jobs; a run takes from a tenth to hundreds of milliseconds.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax import lax

from tools.bench.shared import loop_modules
from tools.bench.shared.op_cases import Case
from tools.bench.shared.single_ops import OP_PROGRAMS, WIDE_ONLY, abstract

LEARNING_RATE = 0.01
WEIGHT_SCALE = 0.05
"""Of the drawn matrices: about one over the root of a layer's width."""

Shapes = Any
"""A tree of shapes, as tuples of sizes in dicts and lists."""


def module_cases(float_type: str = "f32") -> Iterator[Case]:
    """Yield every program; with another type of floats those whose arguments are all f32."""
    for family, make in FAMILIES.items():
        for name, function, given in make():
            types = {x.dtype for x in jax.tree.leaves(given)}
            if float_type != "f32" and types & _FLOATS != {_FLOAT_TYPES["f32"]}:
                continue
            if float_type != "f32" and name in WIDE_ONLY:
                continue
            arguments = jax.tree.map(lambda x: _retyped(x, float_type), given)
            text = jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir("hlo")
            yield Case(family, name, "", text.as_hlo_text(print_large_constants=True), WEIGHT_SCALE)


_FLOAT_TYPES = {
    "f32": jnp.dtype(jnp.float32), "bf16": jnp.dtype(jnp.bfloat16), "f16": jnp.dtype(jnp.float16),
}  # fmt: skip
_FLOATS = set(_FLOAT_TYPES.values())


def _retyped(argument: Any, float_type: str) -> Any:
    if argument.dtype != _FLOAT_TYPES["f32"]:
        return argument
    return jax.ShapeDtypeStruct(argument.shape, _FLOAT_TYPES[float_type])


Programs = Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]


def f32(*sizes: int) -> Any:
    """Return an abstract float array."""
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def s32(*sizes: int) -> Any:
    """Return an abstract integer array."""
    return jax.ShapeDtypeStruct(sizes, jnp.int32)


# ---- networks ------------------------------------------------------------------------------------
def cross_entropy(logits: Any, labels: Any) -> Any:
    """Return the mean cross entropy."""
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
    return -jnp.mean(picked)


def sgd_step(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a loss of (weights, *data) into a train step that returns the weights and the loss."""

    def step(weights: Any, *data: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, *data)
        return jax.tree.map(lambda w, g: w - LEARNING_RATE * g, weights, gradients), value

    return step


def adam_step(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a loss into a step of Adam."""

    def step(weights: Any, first: Any, second: Any, count: Any, *data: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, *data)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
        a, b = 1 - 0.9**count, 1 - 0.999**count
        weights = jax.tree.map(
            lambda w, m, v: w - LEARNING_RATE * (m / a) / (jnp.sqrt(jnp.abs(v) / b) + 1e-8),
            weights, first, second,
        )  # fmt: skip
        return weights, first, second, count + 1, value

    return step


def mlp_loss(weights: Any, images: Any, labels: Any) -> Any:
    """784-128-10 with a rectifier."""
    hidden = jax.nn.relu(images @ weights["w1"] + weights["b1"])
    return cross_entropy(hidden @ weights["w2"] + weights["b2"], labels)


def _mlp() -> Programs:
    weights = {"w1": f32(784, 128), "b1": f32(128), "w2": f32(128, 10), "b2": f32(10)}
    step = sgd_step(mlp_loss)
    yield "mnist mlp step", step, (weights, f32(32, 784), s32(32))

    def steps(weights: Any, images: Any, labels: Any) -> Any:
        return lax.scan(lambda w, _: step(w, images, labels), weights, None, length=100)

    yield "mnist mlp scan of 100", steps, (weights, f32(32, 784), s32(32))


def conv(x: Any, kernel: Any, stride: int = 1, padding: str = "SAME") -> Any:
    """Convolve NHWC with HWIO."""
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def max_pool(x: Any, size: int) -> Any:
    """Pool without overlap."""
    window = (1, size, size, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")


def lenet_loss(weights: Any, images: Any, labels: Any) -> Any:
    """LeNet-5 on 28x28 images."""
    x = max_pool(jax.nn.relu(conv(images, weights["c1"])), 2)
    x = max_pool(jax.nn.relu(conv(x, weights["c2"], padding="VALID")), 2)
    x = jax.nn.relu(x.reshape(x.shape[0], -1) @ weights["d1"])
    x = jax.nn.relu(x @ weights["d2"])
    return cross_entropy(x @ weights["d3"], labels)


def _lenet() -> Programs:
    weights = {
        "c1": f32(5, 5, 1, 6), "c2": f32(5, 5, 6, 16), "d1": f32(400, 120), "d2": f32(120, 84),
        "d3": f32(84, 10),
    }  # fmt: skip
    yield "lenet step", sgd_step(lenet_loss), (weights, f32(32, 28, 28, 1), s32(32))


RESNET_WIDTHS = (64, 128, 256, 512)


def resnet18_shapes(classes: int) -> Shapes:
    """Return the weights' shapes; a convolution carries its normalisation's scale and offset."""

    def layer(size: int, into: int, out: int) -> dict[str, Any]:
        return {"k": f32(size, size, into, out), "s": f32(out), "o": f32(out)}

    blocks, before = [], 64
    for width in RESNET_WIDTHS:
        for number in range(2):
            block = {"a": layer(3, before, width), "b": layer(3, width, width)}
            if number == 0 and before != width:
                block["skip"] = layer(1, before, width)
            blocks.append(block)
            before = width
    return {"stem": layer(3, 3, 64), "blocks": blocks, "head": f32(512, classes)}


def normalised(x: Any, layer: Any) -> Any:
    """Normalise by the batch's own statistics."""
    mean, variance = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
    return (x - mean) * lax.rsqrt(variance + 1e-5) * layer["s"] + layer["o"]


def resnet18(weights: Any, images: Any, norm: Callable[..., Any]) -> Any:
    """ResNet-18 with the small stem for 32x32 to 64x64 images."""
    x = jax.nn.relu(norm(conv(images, weights["stem"]["k"]), weights["stem"]))
    for number, block in enumerate(weights["blocks"]):
        stride = 2 if number % 2 == 0 and number else 1
        y = jax.nn.relu(norm(conv(x, block["a"]["k"], stride), block["a"]))
        y = norm(conv(y, block["b"]["k"]), block["b"])
        if "skip" in block:
            x = norm(conv(x, block["skip"]["k"], stride), block["skip"])
        x = jax.nn.relu(x + y)
    return jnp.mean(x, (1, 2)) @ weights["head"]


def _resnet() -> Programs:
    weights = resnet18_shapes(10)

    def infer(weights: Any, images: Any) -> Any:
        return resnet18(weights, images, lambda x, layer: x * layer["s"] + layer["o"])

    yield "resnet18 infer 64x64 b1", infer, (weights, f32(1, 64, 64, 3))

    def loss(weights: Any, images: Any, labels: Any) -> Any:
        return cross_entropy(resnet18(weights, images, normalised), labels)

    yield "resnet18 train 32x32 b4", sgd_step(loss), (weights, f32(4, 32, 32, 3), s32(4))


def layer_norm(x: Any, scale: Any, offset: Any) -> Any:
    """Normalise the last axis."""
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + offset


def block_shapes(width: int) -> Shapes:
    """Return the shapes of a transformer block's weights."""
    return {
        "n1": (f32(width), f32(width)), "n2": (f32(width), f32(width)),
        "qkv": f32(width, 3 * width), "out": f32(width, width),
        "up": f32(width, 4 * width), "down": f32(4 * width, width),
    }  # fmt: skip


def block(weights: Any, x: Any, heads: int) -> Any:
    """Apply a pre-norm causal transformer block to [sequence, width]."""
    length, width = x.shape
    qkv = layer_norm(x, *weights["n1"]) @ weights["qkv"]
    q, k, v = (part.reshape(length, heads, -1) for part in jnp.split(qkv, 3, axis=-1))
    scores = jnp.einsum("qhd,khd->hqk", q, k) / (width // heads) ** 0.5
    causal = jnp.tril(jnp.ones((length, length), bool))
    weight = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    x = x + jnp.einsum("hqk,khd->qhd", weight, v).reshape(length, width) @ weights["out"]
    hidden = jax.nn.gelu(layer_norm(x, *weights["n2"]) @ weights["up"])
    return x + hidden @ weights["down"]


def _gpt2() -> Programs:
    shapes, x = block_shapes(768), f32(128, 768)
    yield "gpt2 block forward", lambda w, x: block(w, x, 12), (shapes, x)

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return jnp.mean((block(weights, x, 12) - y) ** 2)

    count = jax.ShapeDtypeStruct((), jnp.float32)
    yield "gpt2 block train, Adam", adam_step(loss), (shapes, shapes, shapes, count, x, x)

    def model_loss(weights: Any, tokens: Any, labels: Any) -> Any:
        x = weights["embedding"][tokens]
        for layer in weights["layers"]:
            x = block(layer, x, 4)
        return cross_entropy(x @ weights["embedding"].T, labels)

    model = {"embedding": f32(2048, 256), "layers": [block_shapes(256) for _ in range(4)]}
    yield "gpt 4 layers train, SGD", sgd_step(model_loss), (model, s32(128), s32(128))

    half = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.bfloat16), shapes)
    wide = jax.ShapeDtypeStruct((128, 768), jnp.bfloat16)
    yield "gpt2 block forward bf16", lambda w, x: block(w, x, 12), (half, wide)


def _lstm() -> Programs:
    steps, batch, width = 32, 32, 256

    def forward(weights: Any, inputs: Any) -> Any:
        def cell(state: Any, x: Any) -> Any:
            hidden, memory = state
            gates = x @ weights["x"] + hidden @ weights["h"] + weights["b"]
            i, f, g, o = jnp.split(gates, 4, axis=-1)
            memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(memory)
            return (hidden, memory), hidden

        zeros = jnp.zeros((batch, width), inputs.dtype)
        return lax.scan(cell, (zeros, zeros), inputs)[1]

    weights = {"x": f32(width, 4 * width), "h": f32(width, 4 * width), "b": f32(4 * width)}
    inputs = f32(steps, batch, width)
    yield "lstm forward t32", forward, (weights, inputs)
    loss = sgd_step(lambda w, x: jnp.mean(forward(w, x) ** 2))
    yield "lstm train t32", loss, (weights, inputs)


# ---- chains and heavy ops ------------------------------------------------------------------------
def _chains() -> Programs:
    n = 1 << 22

    def transcendental(x: Any) -> Any:
        for _ in range(6):
            x = jnp.tanh(x) * jnp.exp(-x * x) + jnp.sin(x) * 0.5
        return x

    def cheap(x: Any, y: Any) -> Any:
        for k in range(10):
            x = x * y + 0.1 * k
            y = jnp.maximum(x - y, 0.5)
        return x

    yield "chain of transcendentals 4M", transcendental, (f32(n),)
    yield "chain of cheap ops 4M", cheap, (f32(n), f32(n))

    def stencil(x: Any) -> Any:
        def sweep(_: Any, x: Any) -> Any:
            inner = 0.25 * (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:])
            return x.at[1:-1, 1:-1].set(inner)

        return lax.fori_loop(0, 10, sweep, x)

    yield "stencil 2048x2048, 10 sweeps", stencil, (f32(2048, 2048),)


def _rows() -> Programs:
    x = f32(1024, 1024)
    yield "layernorm 1024x1024", layer_norm, (x, f32(1024), f32(1024))
    yield "softmax 1024x1024", lambda x: jax.nn.softmax(x), (x,)
    yield "cumsum 1024x1024", lambda x: jnp.cumsum(x, axis=1), (x,)
    yield "transpose 4096x1024", lambda x: x.T + 1, (f32(4096, 1024),)
    yield "gemm 1024", lambda a, b: a @ b, (x, x)
    yield "top 8 of 1024 rows", lambda x: lax.top_k(x, 8), (x,)

    def dropout(key: Any, x: Any) -> Any:
        keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, x.shape)
        return jnp.where(keep, x / 0.9, 0)

    yield "dropout 1M", dropout, (jax.ShapeDtypeStruct((2,), jnp.uint32), x)

    def embed(table: Any, tokens: Any, y: Any) -> Any:
        return jax.grad(lambda t: jnp.sum(t[tokens] * y))(table)

    yield "embedding gradient", embed, (f32(50257, 128), s32(4096), f32(4096, 128))


def _sorts() -> Programs:
    yield "sort 1M", jnp.sort, (f32(1 << 20),)
    yield "sort rows 1024x1024", lambda x: jnp.sort(x, axis=1), (f32(1024, 1024),)
    yield "argsort rows 512x1024", lambda x: jnp.argsort(x, axis=1), (f32(512, 1024),)


def _single() -> Programs:
    for name, (function, arguments) in OP_PROGRAMS.items():
        yield name, function, tuple(map(abstract, arguments))


FAMILIES: dict[str, Callable[[], Programs]] = {
    "mlp": _mlp, "lenet": _lenet, "resnet": _resnet, "gpt2": _gpt2, "lstm": _lstm,
    "chains": _chains, "rows": _rows, "sorts": _sorts, "single": _single,
    "loops": loop_modules.programs,
}  # fmt: skip
"""Family -> its programs: name, function, abstract arguments."""
