"""Matrix products of storage arrays: BLAS without needless copies, and exact integer products.

BLAS computes only floats. Integers take the same road: an integer operand is cut into digits so
short that a float product of digits is exact, and the digits' products are added modulo 2^bits.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.kernels.contractions.blas_threads import ALWAYS_ONE_THREAD_FLOPS, blas_matmul
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.native.settings import settings

Bilinear = Callable[[Array, Array], Array]

_FLOAT32_EXACT = 1 << 24
_FLOAT64_EXACT = 1 << 53
_FEW_PRODUCTS = 1 << 12
"""Below this many scalar products numpy's own integer loops beat the set-up of an exact split."""
_TINY_PRODUCTS = 32
_SMALL_PRODUCTS = 1 << 10
_MANY_MATRICES = 64


def matmul(lhs: Array, rhs: Array, out: Array | None = None) -> Array:
    """Return lhs @ rhs for [..., m, k] and [..., k, n] of one dtype and equal leading dims.

    The result is `out`, written, or where it takes another way an array of its own.

    Float and complex matrices go to BLAS, after a copy where its strides cannot be taken (numpy
    would fall back to scalar loops). Shapes on which a BLAS call is not worth its start are
    written as multiply-add; integers, which wrap around, belong here only in such shapes.
    """
    m, k = lhs.shape[-2:]
    n = rhs.shape[-1]
    if k == 1:
        outer: Array = np.multiply(lhs, rhs, out=out)
        return outer
    if lhs.ndim > 2 and m == n == 1:
        dots: Array = np.einsum("...k,...k->...", lhs[..., 0, :], rhs[..., 0])
        return dots[..., None, None]
    if lhs.dtype.kind in "iu" and (m == 1 or n == 1):
        if n == 1:
            columns: Array = np.einsum("...mk,...k->...m", lhs, rhs[..., 0])
            return columns[..., None]
        rows: Array = np.einsum("...k,...kn->...n", lhs[..., 0, :], rhs)
        return rows[..., None, :]
    tiny = lhs.ndim > 2 and k > 0 and m * k * n <= _TINY_PRODUCTS
    if tiny and prod(lhs.shape[:-2]) >= _MANY_MATRICES:
        return _matrices_minor(lhs, rhs)
    if prod(lhs.shape[:-2]) >= _MANY_MATRICES and m * k * n <= _SMALL_PRODUCTS:
        return _of_many(lhs, rhs, out)
    return blas_matmul(for_blas(lhs), for_blas(rhs), 2.0 * m * k * n, out)


def multiplying(lhs: tuple[int, ...], rhs: tuple[int, ...]) -> Callable[..., Array]:
    """Return what `matmul` does with floats of these shapes that lie as BLAS takes them."""
    (m, k), n, batch = lhs[-2:], rhs[-1], lhs[:-2]
    flops = 2.0 * m * k * n
    if k == 1:
        return np.multiply
    is_tiny = m * k * n <= _TINY_PRODUCTS and prod(batch) >= _MANY_MATRICES
    if batch and (m == n == 1 or is_tiny):
        return matmul
    if prod(batch) >= _MANY_MATRICES and m * k * n <= _SMALL_PRODUCTS:
        return _of_many
    if flops <= ALWAYS_ONE_THREAD_FLOPS:
        return np.matmul
    return lambda a, b, out=None: blas_matmul(a, b, flops, out)


def _of_many(a: Array, b: Array, out: Array | None = None) -> Array:
    """Multiply many small matrices, by a compiled kernel where it gives the bits of BLAS.

    The kernel takes them row-major alone, and BLAS may add up others in another order.
    """
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    if settings().compiles and a.shape[:-2] == b.shape[:-2]:
        from hloipu_runtime.kernels.native.tiny_products import multiply_natively

        made = multiply_natively(a, b, out)
        if made is not None:
            return made
    product: Array = np.matmul(a, b, out=out)
    return product


def is_one_call(lhs: Array, rhs: Array) -> bool:
    """Whether `matmul` of floats is one call of BLAS on the operands where they lie."""
    (m, k), n, batch = lhs.shape[-2:], rhs.shape[-1], lhs.shape[:-2]
    if k == 1 or (batch and (m == n == 1 or m * k * n <= _TINY_PRODUCTS)):
        return False
    if prod(batch) >= _MANY_MATRICES and m * k * n <= _SMALL_PRODUCTS:
        return lhs.flags.c_contiguous and rhs.flags.c_contiguous
    return for_blas(lhs) is lhs and for_blas(rhs) is rhs


def is_cheap_in_integers(m: int, k: int, n: int, matrices: int) -> bool:
    """Tell whether numpy's integer loops beat exact float digits for this many such products."""
    if min(m, k, n) <= 1 or m * k * n * matrices <= _FEW_PRODUCTS:
        return True
    return m * k * n <= _SMALL_PRODUCTS and matrices >= _MANY_MATRICES


def _matrices_minor(lhs: Array, rhs: Array) -> Array:
    """Multiply many tiny matrices with the index of the matrix as the innermost loop."""
    rank = lhs.ndim
    order = (rank - 2, rank - 1, *range(rank - 2))
    a, b = np.ascontiguousarray(lhs.transpose(order)), np.ascontiguousarray(rhs.transpose(order))
    total = a[:, 0, None] * b[None, 0]
    term = np.empty_like(total)
    for i in range(1, a.shape[1]):
        np.multiply(a[:, i, None], b[None, i], out=term)
        total += term
    moved: Array = total.transpose((*range(2, rank), 0, 1))
    return moved


def for_blas(matrix: Array) -> Array:
    """Return matrices as BLAS takes them: themselves, or a copy."""
    row, column = matrix.strides[-2:]
    rows, columns = matrix.shape[-2:]
    item = matrix.itemsize
    if column == item and (row >= columns * item or rows == 1) and row % item == 0:
        return matrix
    if row == item and (column >= rows * item or columns == 1) and column % item == 0:
        return matrix
    return np.ascontiguousarray(matrix)


def exact_integer(
    product: Bilinear, lhs: Array, rhs: Array, terms: int, dtype: np.dtype[Any]
) -> Array:
    """Return product(lhs, rhs) exactly modulo 2^bits of the integer `dtype`.

    `product` is bilinear, adds at most `terms` scalar products per result element, and accepts
    float32 and float64 arrays of the operands' shapes.
    """
    lhs, rhs = _modulo(lhs, dtype), _modulo(rhs, dtype)
    left, right = _magnitude(lhs), _magnitude(rhs)
    largest = left * right * max(terms, 1)
    if largest <= _FLOAT32_EXACT:
        single = product(lhs.astype(np.float32), rhs.astype(np.float32))
        return single.astype(np.int32).astype(dtype)
    if largest <= _FLOAT64_EXACT:
        double = product(lhs.astype(np.float64), rhs.astype(np.float64))
        return double.astype(np.int64).astype(dtype)
    digit_bits = 1 + (52 - max(terms - 1, 1).bit_length()) // 2
    digits_left, digits_right = _digits(lhs, left, digit_bits), _digits(rhs, right, digit_bits)
    total: Array | None = None
    for i, a in enumerate(digits_left):
        for j, b in enumerate(digits_right):
            shift = digit_bits * (i + j)
            if shift >= 8 * dtype.itemsize:
                continue
            # Shifted in place: arithmetic on 0-d results would make scalars, whose overflow warns.
            part = product(a, b).astype(np.int64)
            np.left_shift(part, shift, out=part)
            total = part if total is None else np.add(total, part, out=total)
    return np.asarray(total).astype(dtype)


def _modulo(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return x as signed integers congruent modulo 2^bits of `dtype`, small in magnitude."""
    if x.dtype.kind == "b":
        return x.view(np.int8)
    if x.dtype.itemsize < dtype.itemsize:
        return x
    return x.astype(np.dtype(f"int{8 * dtype.itemsize}"), copy=False)


def _magnitude(x: Array) -> int:
    if x.size == 0:
        return 0
    return max(int(x.max()), -int(x.min()))


def _digits(x: Array, magnitude: int, digit_bits: int) -> list[Array]:
    """Split into balanced digits of `digit_bits` bits, least significant first, as float64."""
    rest = x.astype(np.int64)
    half = 1 << (digit_bits - 1)
    digits = []
    while magnitude > half:
        low = ((rest + half) & (2 * half - 1)) - half
        digits.append(low.astype(np.float64))
        rest = (rest - low) >> digit_bits
        magnitude = (magnitude >> digit_bits) + 1
    digits.append(rest.astype(np.float64))
    return digits
