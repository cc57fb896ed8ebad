"""Op classes that work on rows: sums, softmax, norms, losses, as jax.nn and flax write them."""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tools.bench.codegen.kernel import F16, F32, S32, WIDTH, array
from tools.fidelity import vertex_formulas as popops
from tools.fidelity.op_class import OpClass, gradient, op_class, tile
from tools.fidelity.vertex_formulas import PoplibsEstimate, all_of

_SOFTMAX = "popnn/NonLinearity.cpp:71"
_SOFTMAX_GRADIENT = "popnn/NonLinearity.cpp:152"
_NORM = "poplin/Norms.cpp:130, :262, :300"
_NORM_GRADIENT = "poplin/Norms.cpp:375, :432, :443"


def reductions() -> Iterator[OpClass]:
    """Yield sums and maxima along rows, columns and of everything."""
    n = 1024 * 768
    for kind in (F16, F32):
        x, width = array(kind, 1024, 768), WIDTH[kind]
        rows = popops.reduce_rows(1, 768, width)
        yield op_class("sum of rows", lambda a: a.sum(1), (x,), slots=n * width / 16, poplibs=rows)
        yield op_class("max of rows", lambda a: a.max(1), (x,), slots=n * width / 8, poplibs=rows)
        # 46 tiles share 1,024 rows of 24 columns each, and as many partial sums are added.
        columns = all_of([popops.reduce_columns(32, 17, width), popops.reduce_columns(32, 1, 4)])
        yield op_class("sum of columns", lambda a: a.sum(0), (x,), slots=n * width / 16,
                       poplibs=columns)  # fmt: skip
    everything = all_of([popops.reduce_rows(1, tile(n), 4), popops.reduce_rows(1, 1472, 4)])
    yield op_class("sum of all", lambda a: a.sum(), (x,), slots=n / 4, poplibs=everything)


def softmaxes() -> Iterator[OpClass]:
    """Yield softmax of attention scores and log-softmax of words, forward and backward."""
    for name, function, sizes in (
        ("softmax", jax.nn.softmax, (8, 12, 128, 128)),
        ("log-softmax", jax.nn.log_softmax, (160, 8192)),
    ):
        n, length = prod(sizes), sizes[-1]
        rows = max(1, tile(n // length))
        length = min(length, tile(n))
        for kind, exp, log in ((F16, 4, 4), (F32, 6, 12))[: 2 if name == "softmax" else 1]:
            width = WIDTH[kind]
            lanes = 8 // width
            reduction = popops.reduce_rows(rows, length, width)
            each = popops.by_row(rows, length, width)
            product = popops.binary(rows * length, width)
            power = popops.unary(rows * length, width, exp)
            last = [popops.unary(rows, width, log)] if name != "softmax" else []
            forward = all_of([reduction, each, power, reduction, *last, each], _SOFTMAX)
            back = [product, reduction, each, product]
            if name != "softmax":
                back = [power, reduction, each, product]
            x = array(kind, *sizes)
            # Maximum, difference, exponential, sum of two vectors at once, product.
            yield op_class(name, function, (x,), slots=n / lanes * (3.5 + exp), poplibs=forward)
            yield op_class(f"{name} gradient", gradient(function, 1), (x, x),
                           slots=n / lanes * (3.5 + exp),
                           poplibs=all_of([forward, *back], _SOFTMAX_GRADIENT))  # fmt: skip

    def from_result(y: Any, g: Any) -> Any:
        return y * (g - (y * g).sum(-1, keepdims=True))

    x = array(F16, 8, 12, 128, 128)
    rows = tile(8 * 12 * 128)
    product, reduction = popops.binary(rows * 128, 2), popops.reduce_rows(rows, 128, 2)
    yield op_class(
        "softmax gradient, result kept", from_result, (x, x), slots=prod(x.shape) / 4 * 3.5,
        poplibs=all_of(
            [product, reduction, popops.by_row(rows, 128, 2), product], _SOFTMAX_GRADIENT
        ),
    )  # fmt: skip


def losses() -> Iterator[OpClass]:
    """Yield cross entropy, of classes and of words, with its gradient."""

    def loss(logits: Any, labels: Any) -> Any:
        wide = jax.nn.log_softmax(logits.astype(F32))
        return -jnp.take_along_axis(wide, labels[:, None], 1).mean()

    def one_hot(logits: Any, labels: Any) -> Any:
        wide = jax.nn.log_softmax(logits.astype(F32))
        return -(wide * jax.nn.one_hot(labels, logits.shape[-1])).sum(-1).mean()

    for name, function, sizes in (
        ("cross entropy, gather", loss, (160, 8192)),
        ("cross entropy, one-hot", one_hot, (256, 1000)),
    ):
        share = tile(prod(sizes))
        softmax = [popops.reduce_rows(1, share, 4), popops.by_scalar(share, 4),
                   popops.unary(share, 4, 6), popops.reduce_rows(1, share, 4),
                   popops.by_scalar(share, 4)]  # fmt: skip
        both = all_of([*softmax, popops.loss(share, 4), popops.reduce_rows(1, share, 4)],
                      "popnn/Loss.cpp")  # fmt: skip
        x, labels = array(F16, *sizes), array(S32, sizes[0])
        yield op_class(name, jax.value_and_grad(function), (x, labels), poplibs=both)


def _flax(axes: tuple[int, ...], inside: Any = F32) -> Callable[..., Any]:
    """Return a norm over axes as flax has it: statistics in f32, the rest in `inside`."""

    def norm(x: Any, scale: Any, shift: Any) -> Any:
        wide = x.astype(F32)
        mean = wide.mean(axes, keepdims=True)
        power = (wide * wide).mean(axes, keepdims=True)
        variance = jnp.maximum(power - mean * mean, 0)
        if inside == F32:
            y = (x - mean) * (lax.rsqrt(variance + 1e-5) * scale) + shift
            return y.astype(x.dtype)
        root = lax.rsqrt(variance + 1e-5).astype(x.dtype)
        return (x - mean.astype(x.dtype)) * root * scale + shift

    return norm


def _root_mean_square(x: Any, scale: Any) -> Any:
    wide = x.astype(F32)
    root = lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
    return (wide * (root * scale)).astype(x.dtype)


def _group_norm(x: Any, scale: Any, shift: Any) -> Any:
    parts = x.reshape(*x.shape[:-1], 8, x.shape[-1] // 8)
    wide = parts.astype(F32)
    mean = wide.mean((1, 2, 4), keepdims=True)
    power = (wide * wide).mean((1, 2, 4), keepdims=True)
    root = lax.rsqrt(jnp.maximum(power - mean * mean, 0) + 1e-5)
    normal = (parts - mean.astype(x.dtype)) * root.astype(x.dtype)
    return normal.reshape(x.shape) * scale + shift


def _inference(x: Any, mean: Any, variance: Any, scale: Any, shift: Any) -> Any:
    root = scale * lax.rsqrt(variance + 1e-5)
    return ((x - mean) * root + shift).astype(F16)


def _poplibs_norm(
    rows: int, length: int, width: int, channels: int
) -> tuple[PoplibsEstimate, PoplibsEstimate]:
    """Return poplin's norm of a tile's rows, forward and backward, by rows or by channels.

    `channels`: those of a tile where statistics go down columns; 0: where they go along rows.
    """
    n = rows * length
    if channels:
        reduction = popops.reduce_columns(n // channels, channels, width)
        own = popops.by_channel(n // channels, channels, width)
    else:
        reduction = popops.reduce_rows(rows, length, width)
        own = popops.by_row(rows, length, width)
    affine = popops.by_channel(n // (channels or length), channels or length, width)
    add = popops.binary(n, width)
    forward = all_of([reduction, reduction, own, own, affine, affine], _NORM)
    # Gradients of scale and shift, of the statistics, and of the operand.
    columns = popops.reduce_columns(n // (channels or length), channels or length, width)
    joint = [columns, columns] if channels else [columns, columns, add, reduction, reduction]
    scaled = popops.scaled_add(n, width)
    # What the gradient alone is given whitened, ours has to whiten first.
    backward = all_of(
        [reduction, reduction, own, own, own, own, add, *joint, affine, own, own, scaled, own],
        _NORM_GRADIENT,
    )
    return forward, backward


def norms() -> Iterator[OpClass]:
    """Yield layer, batch and group norms; gradients whiten the operand first."""
    sizes = (8, 128, 768)
    n = prod(sizes)
    for kind, inside, label in ((F16, F16, ""), (F16, F32, ", f32 inside"), (F32, F32, "")):
        width, lanes = WIDTH[kind], 8 // WIDTH[inside]
        forward, backward = _poplibs_norm(tile(8 * 128), 768, width, 0)
        layer = _flax((-1,), inside)
        x, v = array(kind, *sizes), array(inside, 768)
        yield op_class(f"layer norm{label}", layer, (x, v, v), slots=n / lanes * 5,
                       poplibs=forward)  # fmt: skip
        yield op_class(f"layer norm{label}, gradients", gradient(layer, 3), (x, v, v, x),
                       slots=n / lanes * 12, poplibs=backward)  # fmt: skip
    x, v = array(F16, *sizes), array(F32, 768)
    row = popops.reduce_rows(tile(8 * 128), 768, 2)
    own, affine = popops.by_row(tile(8 * 128), 768, 2), popops.by_channel(tile(8 * 128), 768, 2)
    yield op_class("RMS norm", _root_mean_square, (x, v), slots=n / 2 * 2,
                   poplibs=all_of([row, own, affine], _NORM))  # fmt: skip
    n = 16 * 56 * 56 * 64
    slots = n / 4
    x, v, wide = array(F16, 16, 56, 56, 64), array(F16, 64), array(F32, 64)
    forward, backward = _poplibs_norm(1, tile(n) // 16 * 16, 2, 16)
    for inside, label in ((F16, ""), (F32, ", f32 inside")):
        batch = _flax((0, 1, 2), inside)
        vector = array(inside, 64)
        factor = 4 * WIDTH[inside] // 8
        yield op_class(f"batch norm{label}", batch, (x, vector, vector), slots=5 * slots * factor,
                       poplibs=forward)  # fmt: skip
        yield op_class(f"batch norm{label}, gradients", gradient(batch, 3), (x, vector, vector, x),
                       slots=9 * slots * factor, poplibs=backward)  # fmt: skip
    once = popops.by_channel(tile(n) // 16, 16, 2)
    scaled = all_of([once, once], "popnn/BatchNorm.cpp:batchNormalise")
    for label, statistics in (("", v), (", constants f32", wide)):
        yield op_class(f"batch norm inference{label}", _inference, (x, *[statistics] * 4),
                       slots=2 * slots, poplibs=scaled)  # fmt: skip
    yield op_class("group norm", _group_norm, (x, v, v), slots=5 * slots, poplibs=forward)
    yield op_class("group norm, gradients", gradient(_group_norm, 3), (x, v, v, x),
                   slots=9 * slots, poplibs=backward)  # fmt: skip
