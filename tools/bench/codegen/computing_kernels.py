"""Kernels that compute: products, convolutions, and what networks are made of."""

import os
from collections.abc import Iterator
from math import prod
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax import lax

from tools.bench.codegen.kernel import F16, F32, NAMES, WIDTH, Kernel, array, kernel
from tools.bench.codegen.limits import Needs

# --- products -------------------------------------------------------------------------------------


def _matmul(
    name: str,
    kind: Any,
    batch: int,
    m: int,
    k: int,
    n: int,
    *,
    target: float = 0,
    options: tuple[tuple[str, object], ...] = (),
) -> Kernel:
    operands = (array(kind, batch, m, k), array(kind, batch, k, n))
    if batch == 1:
        operands = (array(kind, m, k), array(kind, k, n))
    width = WIDTH[kind]
    needs = Needs(
        batch * m * k * n,
        NAMES[kind],
        batch * (m * k + k * n) * width,
        batch * m * n * width,
        because=f"{batch} x {m} x {k} x {n} products",
    )
    return kernel("matmul", name, jnp.matmul, operands, needs, target=target, options=options)


def products() -> Iterator[Kernel]:
    """Yield matrix products: square, tall, skinny, of a batch, of vectors."""
    yield _matmul("square f16 4096", F16, 1, 4096, 4096, 4096, target=0.60)
    most = (("available_memory_proportion", 0.8),)
    yield _matmul(
        "square f16 4096, memory 0.8", F16, 1, 4096, 4096, 4096, target=0.60, options=most
    )
    yield _matmul("square f16 1024", F16, 1, 1024, 1024, 1024)
    yield _matmul("square f32 2048", F32, 1, 2048, 2048, 2048)
    yield _matmul("tall f16 65536x256x256", F16, 1, 65536, 256, 256)
    yield _matmul("skinny f16 16x4096x4096", F16, 1, 16, 4096, 4096)
    yield _matmul("deep f32 128x32768x128", F32, 1, 128, 32768, 128)
    yield _matmul("batched f16 96 x 384x64x384", F16, 96, 384, 64, 384)
    yield _matmul("vector f32 1x4096x4096", F32, 1, 1, 4096, 4096)


# --- convolutions ---------------------------------------------------------------------------------


def _convolution(name: str, batch: int, side: int, cin: int, cout: int, k: int, by: int) -> Kernel:
    made = -(-side // by)
    operands = (array(F16, batch, side, side, cin), array(F16, k, k, cin, cout))
    needs = Needs(
        batch * made * made * k * k * cin * cout,
        "f16",
        2 * sum(prod(x.shape) for x in operands),
        2 * batch * made * made * cout,
        because=f"{batch} x {made}^2 x {k}^2 x {cin} x {cout} products",
    )

    def convolve(image: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(
            image, kernel, (by, by), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    return kernel("convolution", name, convolve, operands, needs)


def convolutions() -> Iterator[Kernel]:
    """Yield convolutions of ResNet-50, four images in f16."""
    yield _convolution("7x7/2 3->64 at 224", 4, 224, 3, 64, 7, 2)
    yield _convolution("1x1 256->64 at 56", 4, 56, 256, 64, 1, 1)
    yield _convolution("3x3 64 at 56", 4, 56, 64, 64, 3, 1)
    yield _convolution("3x3 256 at 14", 4, 14, 256, 256, 3, 1)
    yield _convolution("1x1 512->2048 at 7", 4, 7, 512, 2048, 1, 1)


# --- what networks are made of --------------------------------------------------------------------


def _layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    rest = x - mean
    return rest * lax.rsqrt((rest * rest).mean(-1, keepdims=True) + 1e-5) * scale + shift


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("hqd,hkd->hqk", q, k) * 0.125
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores), v)


def networks() -> Iterator[Kernel]:
    """Yield softmax, layer norm, attention and elementwise work."""
    rows, width = 8192, 1024
    count = rows * width
    x = array(F32, rows, width)
    once = Needs(
        loaded_bytes=4 * count, stored_bytes=4 * count, because="x once in and once out, 4 B each"
    )
    yield kernel("network", "softmax f32 8192x1024", jax.nn.softmax, (x,), once)
    vector = array(F32, width)
    yield kernel("network", "layer norm f32 8192x1024", _layer_norm, (x, vector, vector), once)
    heads, length, depth = 16, 512, 64
    query = array(F16, heads, length, depth)
    needs = Needs(
        2 * heads * length * length * depth,
        "f16",
        3 * 2 * heads * length * depth,
        2 * heads * length * depth,
        because="2 x 16 x 512^2 x 64 products",
    )
    yield kernel("network", "attention f16 16x512x64", _attention, (query,) * 3, needs)
    many = 1 << 24
    vector = array(F32, many)
    needs = Needs(
        loaded_bytes=8 * many, stored_bytes=4 * many, because="2 operands in, 1 result out, 4 B"
    )
    yield kernel("elementwise", "add f32 16M", jnp.add, (vector, vector), needs, target=0.65)
    halves = array(F16, many)
    needs = Needs(
        loaded_bytes=4 * many, stored_bytes=2 * many, because="2 operands in, 1 result out, 2 B"
    )
    yield kernel("elementwise", "add f16 16M", jnp.add, (halves, halves), needs, target=0.65)
    needs = Needs(
        loaded_bytes=4 * 4096, stored_bytes=4 * 4096, because="4096 x 4 B in, as many out"
    )
    yield kernel("elementwise", "erf f32 4096", jax.scipy.special.erf, (array(F32, 4096),), needs)
