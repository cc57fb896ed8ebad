"""Classes of ops that networks are made of, each at a real size, with what they need at least."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax import lax

from tools.bench.codegen.kernel import F16, F32, S32, WIDTH, array
from tools.bench.codegen.limits import Needs
from tools.fidelity import vertex_formulas as popops
from tools.fidelity.vertex_formulas import Library, all_of

TILES = 1472
_SOFTMAX = "popnn/NonLinearity.cpp:71"
_SOFTMAX_GRADIENT = "popnn/NonLinearity.cpp:152"
_NORM = "poplin/Norms.cpp:130, :262, :300"
_NORM_GRADIENT = "poplin/Norms.cpp:375, :432, :443"


@dataclass(frozen=True, slots=True)
class OpClass:
    """One class at one size."""

    name: str
    size: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    needs: Needs
    """Of loads, stores and products."""
    float_slots: float = 0
    """Bundles with a float op that all elements together need at least."""
    library: Library | None = None
    """What poplibs estimates for a tile; None: no estimate of it is read here."""


def _tile(count: int) -> int:
    return -(-count // TILES)


def _case(
    name: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    results: int,
    *,
    slots: float = 0,
    products: int = 0,
    library: Library | None = None,
) -> OpClass:
    """Return a class whose operands are loaded once; `results`: bytes that are stored."""
    kind = max(arguments, key=lambda x: prod(x.shape))
    loaded = sum(prod(x.shape) * x.dtype.itemsize for x in arguments)
    size = f"{kind.dtype} {'x'.join(map(str, kind.shape))}"
    needs = Needs(products, "f16", loaded, results)
    return OpClass(name, size, function, arguments, needs, slots, library)


def _gradient(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return the gradients of the first `count` operands, from that of the result, the last."""

    def gradients(*arguments: Any) -> Any:
        *given, upstream = arguments
        _, back = jax.vjp(function, *given)
        return back(upstream)[:count]

    return gradients


def _softmax(x: Any) -> Any:
    return jax.nn.softmax(x, axis=-1)


def _softmax_gradient(y: Any, g: Any) -> Any:
    return y * (g - (y * g).sum(-1, keepdims=True))


def softmaxes() -> Iterator[OpClass]:
    """Yield softmax of attention scores, forward and backward."""
    sizes = (8, 12, 128, 128)
    n, length = prod(sizes), sizes[-1]
    rows = _tile(n // length)
    for kind, exp in ((F16, 4), (F32, 6)):
        width = WIDTH[kind]
        lanes = 8 // width
        forward = all_of(
            [
                popops.reduce_rows(rows, length, width),
                popops.by_row(rows, length, width),
                popops.unary(rows * length, width, exp),
                popops.reduce_rows(rows, length, width),
                popops.by_row(rows, length, width),
            ],
            _SOFTMAX,
        )
        x = array(kind, *sizes)
        # Maximum, difference, exponential, sum of two vectors at once, product.
        slots = n / lanes * (3.5 + exp)
        yield _case("softmax", _softmax, (x,), n * width, slots=slots, library=forward)
        backward = all_of(
            [
                popops.binary(rows * length, width),
                popops.reduce_rows(rows, length, width),
                popops.by_row(rows, length, width),
                popops.binary(rows * length, width),
            ],
            _SOFTMAX_GRADIENT,
        )
        slots = n / lanes * 3.5
        yield _case(
            "softmax gradient", _softmax_gradient, (x, x), n * width, slots=slots, library=backward
        )


def _norm(axes: tuple[int, ...]) -> Callable[..., Any]:
    """Return a norm over axes as networks have it: statistics in f32, the rest in the type."""

    def norm(x: Any, scale: Any, shift: Any) -> Any:
        wide = x.astype(F32)
        mean = wide.mean(axes, keepdims=True)
        power = (wide * wide).mean(axes, keepdims=True)
        root = lax.rsqrt(jnp.maximum(power - mean * mean, 0) + 1e-5)
        return (x - mean.astype(x.dtype)) * root.astype(x.dtype) * scale + shift

    return norm


def _group_norm(x: Any, scale: Any, shift: Any) -> Any:
    parts = x.reshape(*x.shape[:-1], 8, x.shape[-1] // 8)
    wide = parts.astype(F32)
    mean = wide.mean((1, 2, 4), keepdims=True)
    power = (wide * wide).mean((1, 2, 4), keepdims=True)
    root = lax.rsqrt(jnp.maximum(power - mean * mean, 0) + 1e-5)
    made = (parts - mean.astype(x.dtype)) * root.astype(x.dtype)
    return made.reshape(x.shape) * scale + shift


def _inference(x: Any, mean: Any, variance: Any, scale: Any, shift: Any) -> Any:
    root = scale * lax.rsqrt(variance + 1e-5)
    return ((x - mean) * root + shift).astype(F16)


def _library_norm(rows: int, length: int, width: int, channels: int) -> tuple[Library, Library]:
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
    backward = all_of([own, own, add, *joint, affine, own, own, scaled, own], _NORM_GRADIENT)
    return forward, backward


def norms() -> Iterator[OpClass]:
    """Yield layer, batch and group norms."""
    sizes = (8, 128, 768)
    n = prod(sizes)
    for kind in (F16, F32):
        width, lanes = WIDTH[kind], 8 // WIDTH[kind]
        forward, backward = _library_norm(_tile(8 * 128), 768, width, 0)
        x, v = array(kind, *sizes), array(kind, 768)
        layer = _norm((-1,))
        yield _case("layer norm", layer, (x, v, v), n * width, slots=n / lanes * 5, library=forward)
        yield _case(
            "layer norm gradients", _gradient(layer, 3), (x, v, v, x), n * width,
            slots=n / lanes * 12, library=backward,
        )  # fmt: skip
    n = 16 * 56 * 56 * 64
    x, v, wide = array(F16, 16, 56, 56, 64), array(F16, 64), array(F32, 64)
    forward, backward = _library_norm(1, _tile(n) // 16 * 16, 2, 16)
    batch = _norm((0, 1, 2))
    slots = n / 4
    yield _case("batch norm", batch, (x, v, v), n * 2, slots=5 * slots, library=forward)
    yield _case(
        "batch norm gradients", _gradient(batch, 3), (x, v, v, x), n * 2,
        slots=9 * slots, library=backward,
    )  # fmt: skip
    once = popops.by_channel(_tile(n) // 16, 16, 2)
    scaled = all_of([once, once], "popnn/BatchNorm.cpp:batchNormalise")
    for name, statistics in (("batch norm inference", v), ("same, constants f32", wide)):
        yield _case(
            name, _inference, (x, *[statistics] * 4), n * 2, slots=2 * slots, library=scaled
        )
    yield _case("group norm", _group_norm, (x, v, v), n * 2, slots=5 * slots, library=forward)


def nonlinearities() -> Iterator[OpClass]:
    """Yield gelus, forward and backward, and the gradient of relu."""
    sizes = (8, 128, 3072)
    n, share = prod(sizes), _tile(prod(sizes))
    x = array(F16, *sizes)

    def tanh(x: Any) -> Any:
        return jax.nn.gelu(x, approximate=True)

    def exact(x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    def relu(y: Any, g: Any) -> Any:
        return jnp.where(y > 0, g, 0)

    for name, function, forward, own, bundles in (
        ("gelu, tanh", tanh, popops.nonlinearity(share, 2, 5), 8, 15),
        ("gelu, erf", exact, popops.unary(share, 2, 64), 15, 15),
    ):
        back = popops.nonlinearity_gradient(share, 2, 5 if own == 8 else 15)
        yield _case(name, function, (x,), n * 2, slots=n / 4 * own, library=forward)
        yield _case(
            f"{name}, gradient", _gradient(function, 1), (x, x), n * 2,
            slots=n / 4 * bundles, library=back,
        )  # fmt: skip
    back = popops.nonlinearity_gradient(share, 2, 3)
    yield _case("relu gradient", relu, (x, x), n * 2, slots=n / 4 * 3, library=back)


def moving() -> Iterator[OpClass]:
    """Yield lookups, joins, sums and other classes that mostly move data."""
    n = 8 * 128 * 768
    x, ids = array(F16, 8 * 128, 768), array(S32, 8 * 128)
    table = array(F16, 30522, 768)

    def keep(x: Any, bits: Any) -> Any:
        return jnp.where(bits < jnp.uint32(0xE6666666), x * F16(1 / 0.9), F16(0))

    drop = popops.dropout(_tile(n), 2)
    bits = jax.ShapeDtypeStruct((8 * 128, 768), jnp.uint32)
    yield _case("dropout, bits given", keep, (x, bits), n * 2, slots=n / 4 * 2, library=drop)
    yield _case("embedding", lambda t, i: t[i], (table, ids), n * 2)
    yield _case(
        "embedding gradient", lambda t, i, g: t.at[i].add(g), (table, ids, x), 30522 * 768 * 2
    )
    yield _case("concatenate", lambda a, b: jnp.concatenate([a, b], 1), (x, x), n * 4)
    yield _case("split", lambda a: jnp.split(a, 3, 1), (array(F16, 8 * 128, 2304),), n * 6)
    yield _case("transpose", lambda a: a.T, (x,), n * 2)
    yield _case("cumsum", lambda a: jnp.cumsum(a, 1), (array(F32, 1024, 768),), n * 4)
    rows = popops.reduce_rows(1, 768, 2)
    yield _case("sum of rows", lambda a: a.sum(1), (x,), 2048, slots=n / 8, library=rows)
    yield _case("argmax", lambda a: jnp.argmax(a, 1), (array(F32, 1024, 1000),), 4096)
    yield _case("top-k", lambda a: lax.top_k(a, 8), (array(F32, 1024, 1000),), 65536)


def updates() -> Iterator[OpClass]:
    """Yield optimizers' updates of one weight."""
    w = array(F32, 1024, 4096)
    n = prod(w.shape)

    def adamw(w: Any, m: Any, v: Any, g: Any) -> Any:
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        return w - 1e-3 * (m / (jnp.sqrt(v) + 1e-6) + 0.01 * w), m, v

    def lamb(w: Any, m: Any, v: Any, g: Any) -> Any:
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        u = m / (jnp.sqrt(v) + 1e-6) + 0.01 * w
        ratio = jnp.sqrt((w * w).sum()) / jnp.sqrt((u * u).sum())
        return w - 1e-3 * ratio * u, m, v

    # Ten products and sums of a vector; a root takes ten slots, a quotient six.
    yield _case("AdamW update", adamw, (w, w, w, w), 12 * n, slots=n / 2 * 26)
    yield _case("LAMB update", lamb, (w, w, w, w), 12 * n, slots=n / 2 * 27)


def products() -> Iterator[OpClass]:
    """Yield products and weight gradients that are far from the AMP's rate."""
    q = array(F16, 96, 128, 64)
    p = array(F16, 96, 128, 128)
    count = 96 * 128 * 128 * 64
    yield _case(
        "QK of heads", lambda a, b: jnp.einsum("hqd,hkd->hqk", a, b), (q, q),
        2 * prod(p.shape), products=count,
    )  # fmt: skip
    yield _case(
        "PV of heads", lambda a, b: jnp.einsum("hqk,hkd->hqd", a, b), (p, q),
        2 * prod(q.shape), products=count,
    )  # fmt: skip

    def gradient(window: int, groups: int) -> Callable[..., Any]:
        def convolve(x: Any, kernel: Any) -> Any:
            return lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=groups,
            )  # fmt: skip

        def weights(x: Any, g: Any) -> Any:
            sizes = (window, window, x.shape[-1] // groups, g.shape[-1])
            _, back = jax.vjp(lambda k: convolve(x, k), jnp.zeros(sizes, F16))
            return back(g)[0]

        return weights

    x = array(F16, 4, 56, 56, 64)
    positions = 4 * 56 * 56
    yield _case("weight gradient, 1x1", gradient(1, 1), (x, x), 2 * 64 * 64,
                products=positions * 64 * 64)  # fmt: skip
    yield _case("weight gradient, 3x3", gradient(3, 1), (x, x), 18 * 64 * 64,
                products=positions * 9 * 64 * 64)  # fmt: skip
    yield _case("weight gradient, depthwise 3x3", gradient(3, 64), (x, x), 18 * 64,
                slots=positions * 64 / 4 * 9)  # fmt: skip


def op_classes() -> Iterator[OpClass]:
    """Yield all classes."""
    for family in (softmaxes, norms, nonlinearities, moving, updates, products):
        yield from family()
