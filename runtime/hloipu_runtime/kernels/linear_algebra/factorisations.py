"""Cholesky decomposition and triangular solve of batches of matrices, without scipy."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.linalg import _umath_linalg  # not public, but the only one of numpy's that takes f32

from hloipu_runtime.kernels.contractions.dot import round_result
from hloipu_runtime.kernels.contractions.matmul import matmul, multiplying
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.quiet import quietly

TRANSPOSES = ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")
_BLOCK = 32
_MOST_KEPT = 1 << 16
"""Elements of inverses whose memory is kept for the next solve like this; *assumed*."""


def cholesky(a: Array, lower: bool, element_type: str) -> Array:
    """Return L with a = L L^H (lower), or U with a = U^H U, for a batch [..., n, n].

    Reads the named triangle only and leaves zeros in the other. A matrix that is not positive
    definite gives NaN in every element, as on XLA:CPU. Narrow floats are computed in float32, and
    so is f32, which `numpy.linalg.cholesky` takes three times as long to compute in f64.
    """
    if a.size == 0:
        return a.copy()
    factorise = _umath_linalg.cholesky_lo if lower else _umath_linalg.cholesky_up
    with quietly():
        factor = factorise(a, signature=f"{a.dtype.char}->{a.dtype.char}")
    # Each element is part of the one on the diagonal of its row, or column.
    failed = np.isnan(factor.diagonal(0, -2, -1))
    if np.count_nonzero(failed):
        factor[failed.any(axis=-1)] = np.nan
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
    with quietly():
        x = _solve(a, b, lower, unit_diagonal)
    return round_result(x if left_side else x.swapaxes(-1, -2), element_type, b.dtype)


def _solve(a: Array, b: Array, lower: bool, unit_diagonal: bool) -> Array:
    n = a.shape[-1]
    idle = _idle(a.shape, a.dtype, lower, unit_diagonal)
    try:
        inverses = idle.pop()  # asked for at once: a thread may take the last one
    except IndexError:
        inverses = _Inverses(a.shape, a.dtype, lower, unit_diagonal)
    inverse = inverses.of(a)
    x = np.empty(b.shape, b.dtype)
    blocks = inverses.blocks if lower else reversed(inverses.blocks)
    for (start, stop), block in zip(blocks, inverse if lower else reversed(inverse), strict=True):
        rows, place = b[..., start:stop, :], x[..., start:stop, :]
        if lower and start > 0:
            rows = rows - matmul(a[..., start:stop, :start], x[..., :start, :])
        elif not lower and stop < n:
            rows = rows - matmul(a[..., start:stop, stop:], x[..., stop:, :])
        product = matmul(block, rows, place)
        if product is not place:
            place[...] = product
    if inverses.size <= _MOST_KEPT:
        idle.append(inverses)
    return x


class _Inverses:
    """Inverses of the blocks on the diagonal, and the calls that make them, which are prepared.

    The inverse of [[A, 0], [C, D]] is [[A', 0], [D' (-C) A', D']], A' and D' the inverses of A and
    D: sizes are doubled from 1 up, all blocks of one size at once.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], lower: bool, unit_diagonal: bool
    ) -> None:
        *batch, n, _ = shape
        count = -(-n // _BLOCK)
        size = min(1 << (n - 1).bit_length(), _BLOCK)
        negated = np.zeros((*batch, count, size, size), dtype)
        inverse = np.zeros_like(negated)
        self.size = inverse.size
        self.blocks = [(i * _BLOCK, min((i + 1) * _BLOCK, n)) for i in range(count)]
        """Where each begins and ends."""
        within = [
            (..., i, *(slice(stop - start),) * 2) for i, (start, stop) in enumerate(self.blocks)
        ]
        self._inverse = [inverse[x] for x in within]
        self._places = [
            (negated[x], (..., *(slice(*ends),) * 2))
            for x, ends in zip(within, self.blocks, strict=True)
        ]
        # The last block may be short; ones on its diagonal keep the rest of it invertible.
        diagonal, inverted = (np.einsum("...ii->...i", x) for x in (negated, inverse))
        diagonal[...] = -1
        self._calls: list[Callable[[], object]] = []
        if unit_diagonal:
            inverted[...] = 1
        else:
            self._calls.append(partial(np.divide, -np.ones((), dtype), diagonal, inverted))
        half = 1
        while half < size:
            split = (*batch, count, size // (2 * half), 2 * half, size // (2 * half), 2 * half)
            pairs, known = (
                np.einsum("...iaib->...iab", x.reshape(split)) for x in (negated, inverse)
            )
            first, second = slice(0, half), slice(half, None)
            ends_of = (second, first) if lower else (first, second)
            right, left = (known[..., x, x] for x in reversed(ends_of))
            given, wanted = pairs[..., *ends_of], known[..., *ends_of]
            corner = np.empty(given.shape, dtype)
            multiply = multiplying(given.shape, given.shape)
            self._calls.append(_product_call(multiply, given, right, corner))
            self._calls.append(_product_call(multiply, left, corner, wanted))
            half *= 2

    def of(self, a: Array) -> list[Array]:
        """Return the inverse of each block, of all matrices of a batch."""
        for place, index in self._places:
            np.negative(a[index], place)
        for call in self._calls:
            call()
        return self._inverse


def _product_call(
    multiply: Callable[..., Array], a: Array, b: Array, out: Array
) -> Callable[[], object]:
    if isinstance(multiply, np.ufunc):
        return partial(multiply, a, b, out)

    def put() -> None:
        product = multiply(a, b, out)
        if product is not out:
            out[...] = product

    return put


@lru_cache(maxsize=64)
def _idle(
    shape: tuple[int, ...], dtype: np.dtype[Any], lower: bool, unit_diagonal: bool
) -> list[_Inverses]:
    """Return the list of prepared inverses of this form that no solve is using."""
    return []
