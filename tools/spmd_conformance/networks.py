"""Networks and training steps, divided as people divide them."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tools.spmd_conformance.program import Program, constrain

Array = Any


def mlp(x: Array, a: Array, b: Array) -> Array:
    """Two layers."""
    return jax.nn.gelu(x @ a) @ b


def step(function: Any, rate: float = 0.1) -> Any:
    """Return a step of gradient descent for a network of an input and weights."""

    def stepped(x: Array, *weights: Array) -> Any:
        loss, gradients = jax.value_and_grad(
            lambda w: (function(x, *w).astype(jnp.float32) ** 2).mean()
        )(weights)
        return loss, [w - rate * g for w, g in zip(weights, gradients, strict=True)]

    return stepped


def adam(x: Array, a: Array, b: Array, *moments: Array) -> Any:
    """One step of Adam for two layers; `moments`: the first and second of each weight."""
    gradients = jax.grad(lambda w: (mlp(x, *w) ** 2).mean())((a, b))
    new = []
    for w, g, m, v in zip((a, b), gradients, moments[:2], moments[2:], strict=True):
        first, second = 0.9 * m + 0.1 * g, 0.99 * jnp.abs(v) + 0.01 * g * g
        new += [w - 0.1 * first / (jnp.sqrt(second) + 1e-8), first, second]
    return new


def layer_norm(x: Array, scale: Array) -> Array:
    """Normalise the last dimension."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale


def attention(x: Array, q: Array, k: Array, v: Array, o: Array) -> Array:
    """Causal attention of several heads."""
    queries, keys, values = (jnp.einsum("bsd,dhe->bhse", x, w) for w in (q, k, v))
    scores = jnp.einsum("bhse,bhte->bhst", queries, keys)
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
    return jnp.einsum("bhst,bhte,hed->bsd", weights, values, o)


def block(x: Array, q: Array, k: Array, v: Array, o: Array, a: Array, b: Array) -> Array:
    """Return what a transformer's block makes."""
    x = x + attention(layer_norm(x, 1.0), q, k, v, o)
    return x + mlp(layer_norm(x, 1.0), a, b)


def sequence_block(x: Array, q: Array, k: Array, v: Array, o: Array, a: Array, b: Array) -> Array:
    """Divide the norms and sums of a block along the sequence."""
    x = constrain(x, "a,b,-")
    h = constrain(layer_norm(x, 1.0), "a,-,-")
    x = x + constrain(attention(h, q, k, v, o), "a,b,-")
    h = constrain(layer_norm(x, 1.0), "a,-,-")
    return x + constrain(mlp(h, a, b), "a,b,-")


def decode(x: Array, keys: Array, values: Array, at: Array, new: Array) -> Any:
    """One token against a cache of keys and values."""
    keys = lax.dynamic_update_slice(keys, new, (0, 0, at, 0))
    values = lax.dynamic_update_slice(values, new * 2, (0, 0, at, 0))
    scores = jnp.einsum("bhe,bhte->bht", x, keys)
    weights = jax.nn.softmax(jnp.where(jnp.arange(keys.shape[2]) <= at, scores, -1e9), -1)
    return jnp.einsum("bht,bhte->bhe", weights, values), keys, values


def experts(x: Array, gate: Array, up: Array, down: Array) -> Array:
    """Two experts of each token, tokens in groups of their own (GShard)."""
    scores = jax.nn.softmax(jnp.einsum("gsd,de->gse", x, gate), -1)
    first = jax.nn.one_hot(scores.argmax(-1), scores.shape[-1])
    places = jnp.cumsum(first, 1) * first - 1
    dispatch = first[..., None] * jax.nn.one_hot(places.max(-1), 4)[:, :, None]
    sent = constrain(jnp.einsum("gsec,gsd->egcd", dispatch, x), "a,-,-,-")
    h = jax.nn.relu(jnp.einsum("egcd,edf->egcf", sent, up))
    back = constrain(jnp.einsum("egcf,efd->egcd", h, down), "-,a,-,-")
    return jnp.einsum("gsec,egcd->gsd", dispatch * scores[..., None], back)


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Return the mean loss of labels."""
    largest = lax.stop_gradient(logits.max(-1, keepdims=True))
    total = jnp.log(jnp.exp(logits - largest).sum(-1)) + largest[..., 0]
    own = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return (total - own).mean()


def one_hot_entropy(x: Array, head: Array, labels: Array) -> Array:
    """Return the mean loss of labels, which stand as ones among zeros."""
    logits = jax.nn.log_softmax(x @ head)
    return -(jax.nn.one_hot(labels, head.shape[-1]) * logits).sum(-1).mean()


def language_model(tokens: Array, table: Array, a: Array, b: Array) -> Any:
    """Return the gradients of a small language model whose head is its table."""

    def loss(weights: Any) -> Array:
        table, a, b = weights
        h = table[tokens]
        return one_hot_entropy(h + mlp(h, a, b), table.T, tokens)

    return jax.value_and_grad(loss)((table, a, b))


def scanned(x: Array, weights: Array) -> Array:
    """Layers in a loop."""
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)[0]


def scanned_mlp(x: Array, a: Array, b: Array) -> Array:
    """Layers of two products in a loop."""
    return lax.scan(lambda h, w: (h + mlp(h, *w), None), x, (a, b))[0]


def convolved(strides: int = 1, padding: str = "SAME", groups: int = 1) -> Any:
    """Return a convolution of images, channels last."""

    def function(x: Array, w: Array) -> Array:
        return lax.conv_general_dilated(
            x, w, (strides, strides), padding, feature_group_count=groups,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip

    return function


def batch_norm(x: Array, scale: Array) -> Array:
    """Normalise channels over batch and space."""
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale


def residual(x: Array, a: Array, b: Array) -> Array:
    """Two convolutions and what goes past them."""
    h = jax.nn.relu(batch_norm(convolved()(x, a), 1.0))
    return jax.nn.relu(x + batch_norm(convolved()(h, b), 1.0))


def pooled(x: Array) -> Array:
    """Return the largest of each 2 by 2."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def recurrent(x: Array, w: Array, u: Array) -> Array:
    """Run a recurrent network, time first."""
    start = jnp.zeros((*x.shape[1:-1], u.shape[0]), x.dtype)
    return lax.scan(lambda h, t: ((n := jnp.tanh(t @ w + h @ u)), n), start, x)[1]


MLP = {
    "data": ("16,32:a,-", "32,64:-,-", "64,32:-,-"),
    "model": ("16,32:-,-", "32,64:-,a", "64,32:a,-"),
    "both": ("16,32:a,-", "32,64:-,b", "64,32:b,-"),
    "fsdp": ("256,32:ab,-", "32,64:ab,-", "64,32:ab,-"),
    "fsdp2": ("256,32:a,-", "32,64:a,b", "64,32:b,a"),
}
QKVO = ("32,8,4:-,b,-",) * 3 + ("8,4,32:b,-,-",)
WHOLE = ("32,8,4:-,-,-",) * 3 + ("8,4,32:-,-,-",)
HIDDEN = ("32,128:-,b", "128,32:b,-")


def programs() -> Iterator[Program]:
    """Yield the rows of this part of the table."""
    for mesh in ("2", "4", "8", "2x2", "2x4", "4x2"):
        for name in MLP:
            if ("b" in "".join(MLP[name])[5:]) != ("x" in mesh):
                continue
            yield Program(f"mlp/{name}/{mesh}", mesh, mlp, MLP[name])
            yield Program(f"mlp step/{name}/{mesh}", mesh, step(mlp), MLP[name])
    for name in ("data", "fsdp"):
        x, a, b = (t.replace("ab", "a") for t in MLP[name])
        yield Program(f"adam/{name}", "8", adam, (x, a, b, a, b, a, b))
    x, a, b = MLP["fsdp2"]
    yield Program("adam/fsdp2", "2x4", adam, (x, a, b, a, b, a, b))
    zero = ("32,64:a,-", "64,32:a,-")
    yield Program("adam/zero", "8", adam, ("256,32:a,-", "32,64:-,-", "64,32:-,-", *zero, *zero))
    bf16 = tuple(f"bf16 {text}".replace("bf16", "bfloat16") for text in MLP["both"])
    yield Program("mlp step/bf16", "2x4", step(mlp), bf16)
    yield Program("layer norm/sharded", "2x4", layer_norm, ("16,32:a,b", "32"))
    yield Program("layer norm step", "2x4", step(layer_norm), ("16,32:a,b", "32:b"))
    inputs = "4,16,32:a,-,-"
    yield Program("attention/heads", "2x4", attention, (inputs, *QKVO))
    yield Program("attention step/heads", "2x4", step(attention), (inputs, *QKVO))
    yield Program("attention/data", "4", attention, (inputs, *WHOLE))
    yield Program("attention/queries by sequence", "2x2", attention, ("4,16,32:a,b,-", *WHOLE))
    yield Program("block", "2x4", block, (inputs, *QKVO, *HIDDEN))
    yield Program("block step", "2x4", step(block), (inputs, *QKVO, *HIDDEN))
    yield Program("sequence block", "2x4", sequence_block, (inputs, *QKVO, *HIDDEN))
    yield Program("sequence block step", "2x4", step(sequence_block), (inputs, *QKVO, *HIDDEN))
    fsdp = ("32,8,4:a,b,-",) * 3 + ("8,4,32:b,-,a", "32,128:a,b", "128,32:b,a")
    yield Program("block step/fsdp2", "2x4", step(block), ("32,16,32:a,-,-", *fsdp))
    cache = ("4,8,32,16:a,b,-,-",) * 2
    new = ("int32<32 ", "4,8,1,16:a,b,-,-")
    yield Program("decode/heads", "2x4", decode, ("4,8,16:a,b,-", *cache, *new))
    cache = ("4,8,32,16:a,-,b,-",) * 2
    yield Program("decode/sequence", "2x4", decode, ("4,8,16:a,-,-", *cache, new[0], "4,8,1,16"))
    mixture = ("8,16,32:a,-,-", "32,8:-,-", "8,32,64:a,-,-", "8,64,32:a,-,-")
    yield Program("experts", "4", experts, mixture)
    yield Program("experts step", "4", step(experts), mixture)
    wide = ("8,16,32:a,-,-", "32,8:-,-", "8,32,64:a,-,b", "8,64,32:a,b,-")
    yield Program("experts/model", "2x4", experts, wide)
    yield Program("cross entropy/batch", "8", cross_entropy, ("16,64:a,-", "int32<64 16:a"))
    yield Program("cross entropy/vocab", "2x4", cross_entropy, ("16,64:a,b", "int32<64 16:a"))
    head = ("16,32:a,-", "32,64:-,b", "int32<64 16:a")
    yield Program("cross entropy/one hot", "2x4", one_hot_entropy, head)
    yield Program("cross entropy step", "2x4", jax.grad(one_hot_entropy, (0, 1)), head)
    words = ("int32<64 8,16:a,-", "64,32:b,-", "32,64:-,b", "64,32:b,-")
    yield Program("language model/rows", "2x4", language_model, words)
    words = ("int32<64 8,16:a,-", "64,32:-,b", "32,64:-,b", "64,32:b,-")
    yield Program("language model/columns", "2x4", language_model, words)
    words = ("int32<64 8,16:a,-", "64,32:-,-", "32,64:-,-", "64,32:-,-")
    yield Program("language model/data", "8", language_model, words)
    stack = {"data": "6,32,32:-,-,-", "columns": "6,32,32:-,-,b", "rows": "6,32,32:-,b,-"}
    for name, layers in stack.items():
        yield Program(f"scanned/{name}", "2x4", scanned, ("16,32:a,-", layers))
        yield Program(f"scanned step/{name}", "2x4", step(scanned), ("16,32:a,-", layers))
    yield Program("scanned/layers", "2", scanned, ("16,32:-,-", "6,32,32:a,-,-"))
    deep = ("16,32:a,-", "6,32,64:-,-,b", "6,64,32:-,b,-")
    yield Program("scanned mlp step", "2x4", step(scanned_mlp), deep)
    deep = ("256,32:ab,-", "4,32,64:-,ab,-", "4,64,32:-,ab,-")
    yield Program("scanned mlp step/fsdp", "2x4", step(scanned_mlp), deep)
    image, kernel = "4,16,16,8", "3,3,8,16"
    for name, both in {
        "batch": (f"{image}:a,-,-,-", kernel),
        "features": (f"{image}:a,-,-,-", f"{kernel}:-,-,-,b"),
        "channels": (f"{image}:a,-,-,b", f"{kernel}:-,-,b,-"),
        "space": (f"{image}:a,b,-,-", f"{kernel}:-,-,-,-"),
        "both sides": (f"{image}:-,a,b,-", f"{kernel}:-,-,-,-"),
    }.items():
        yield Program(f"convolution/{name}", "2x4", convolved(), both)
        yield Program(f"convolution step/{name}", "2x4", step(convolved()), both)
    space = (f"{image}:a,b,-,-", kernel)
    yield Program("convolution/strided", "2x4", convolved(2), space)
    yield Program("convolution/valid", "2x4", convolved(1, "VALID"), space)
    by_channel = (f"{image}:-,-,-,a", "3,3,1,8:-,-,-,a")
    yield Program("convolution/depthwise", "4", convolved(groups=8), by_channel)
    yield Program("batch norm", "2x4", batch_norm, (f"{image}:a,b,-,-", "8"))
    two = ("3,3,8,8:-,-,-,-",) * 2
    yield Program("residual step/data", "4", step(residual), (f"{image}:a,-,-,-", *two))
    yield Program("residual/space", "4", residual, (f"{image}:-,a,-,-", *two))
    yield Program("pooled/batch", "2x4", pooled, (f"{image}:a,-,-,b",))
    yield Program("pooled/space", "4", pooled, (f"{image}:-,a,-,-",))
    weights = ("8,16:-,-", "16,16:-,-")
    yield Program("recurrent/data", "4", recurrent, ("6,16,8:-,a,-", *weights))
    yield Program("recurrent step", "4", step(recurrent), ("6,16,8:-,a,-", *weights))
    yield Program("recurrent/units", "4", recurrent, ("6,16,8", "8,16:-,a", "16,16:-,a"))
