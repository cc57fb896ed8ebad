"""Cholesky decomposition and triangular solve of batches of matrices, without scipy."""

import numpy as np
from numpy.linalg import _umath_linalg  # not public, but the only one of numpy's that takes f32

from hloipu_runtime.kernels.contractions.dot import round_result
from hloipu_runtime.kernels.contractions.matmul import matmul
from hloipu_runtime.kernels.core.blocks import Array

TRANSPOSES = ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")
_BLOCK = 32


def cholesky(a: Array, lower: bool, element_type: str) -> Array:
    """Return L with a = L L^H (lower), or U with a = U^H U, for a batch [..., n, n].

    Reads the named triangle only and leaves zeros in the other. A matrix that is not positive
    definite gives NaN in every element, as on XLA:CPU. Narrow floats are computed in float32, and
    so is f32, which `numpy.linalg.cholesky` takes three times as long to compute in f64.
    """
    if a.size == 0:
        return a.copy()
    factorise = _umath_linalg.cholesky_lo if lower else _umath_linalg.cholesky_up
    with np.errstate(all="ignore"):
        factor = factorise(a, signature=f"{a.dtype.char}->{a.dtype.char}")
    factor[np.isnan(factor.real).any(axis=(-1, -2))] = np.nan
    return round_result(factor, element_type, a.dtype)


def triangular_solve(
    a: Array,
    b: Array,
    element_type: str,
    *,
    left_side: bool,
    lower: bool,
    unit_diagonal: bool,
    transpose_a: str,
) -> Array:
    """Solve op(a) x = b (left_side) or x op(a) = b for a batch of triangular a [..., n, n].

    `transpose_a`, one of TRANSPOSES, is op. Only the named triangle of a is read, without its
    diagonal if `unit_diagonal`. The inverses of small diagonal blocks are formed and the rest is
    matrix products, as in XLA's own expansion.
    """
    if b.size == 0:
        return b.copy()
    if transpose_a == "ADJOINT":
        a = a.conj()
    flipped = transpose_a != "NO_TRANSPOSE"
    if not left_side:
        # x op(a) = b is op(a)^T x^T = b^T.
        flipped, b = not flipped, b.swapaxes(-1, -2)
    if flipped:
        a, lower = a.swapaxes(-1, -2), not lower
    with np.errstate(all="ignore"):
        x = _solve(a, b, lower, unit_diagonal)
    return round_result(x if left_side else x.swapaxes(-1, -2), element_type, b.dtype)


def _solve(a: Array, b: Array, lower: bool, unit_diagonal: bool) -> Array:
    n = a.shape[-1]
    starts = range(0, n, _BLOCK)
    inverses = _inverse_diagonal_blocks(a, lower, unit_diagonal)
    x = np.empty(b.shape, b.dtype)
    for start in starts if lower else reversed(starts):
        stop = min(start + _BLOCK, n)
        rows = b[..., start:stop, :]
        if lower and start > 0:
            rows = rows - matmul(a[..., start:stop, :start], x[..., :start, :])
        elif not lower and stop < n:
            rows = rows - matmul(a[..., start:stop, stop:], x[..., stop:, :])
        inverse = inverses[..., start // _BLOCK, : stop - start, : stop - start]
        x[..., start:stop, :] = matmul(inverse, rows)
    return x


def _inverse_diagonal_blocks(a: Array, lower: bool, unit_diagonal: bool) -> Array:
    """Return the inverses of the blocks on the diagonal, [..., block, row, column].

    The inverse of [[A, 0], [C, D]] is [[A', 0], [-D' C A', D']], A' and D' the inverses of A and
    D: sizes are doubled from 1 up, all blocks of one size at once.
    """
    n = a.shape[-1]
    count = -(-n // _BLOCK)
    size = min(1 << (n - 1).bit_length(), _BLOCK)
    blocks = np.zeros((*a.shape[:-2], count, size, size), a.dtype)
    # The last block may be short; ones on its diagonal keep the rest of it invertible.
    diagonal = np.einsum("...ii->...i", blocks)
    diagonal[...] = 1
    for i in range(count):
        start, stop = i * _BLOCK, min((i + 1) * _BLOCK, n)
        blocks[..., i, : stop - start, : stop - start] = a[..., start:stop, start:stop]
    if unit_diagonal:
        diagonal[...] = 1
    inverse = np.zeros_like(blocks)
    np.divide(1, diagonal, out=np.einsum("...ii->...i", inverse))
    half = 1
    while half < size:
        split = (*a.shape[:-2], count, size // (2 * half), 2 * half, size // (2 * half), 2 * half)
        pairs = np.einsum("...iaib->...iab", blocks.reshape(split))
        known = np.einsum("...iaib->...iab", inverse.reshape(split))
        upper_left, lower_right = known[..., :half, :half], known[..., half:, half:]
        if lower:
            corner = matmul(pairs[..., half:, :half], upper_left)
            known[..., half:, :half] = -matmul(lower_right, corner)
        else:
            corner = matmul(pairs[..., :half, half:], lower_right)
            known[..., :half, half:] = -matmul(upper_left, corner)
        half *= 2
    return inverse
