"""Products of f32 matrices in pieces that OpenBLAS multiplies without packing them first.

OpenBLAS copies both matrices into blocks before it multiplies, which for a matrix of few rows takes
as long as multiplying. On processors with AVX-512 it multiplies small ones where they lie
(OpenMathLib/OpenBLAS: kernel/x86_64/sgemm_small_kernel_permit_skylakex.c). Pieces of the result
that are as small have each a sum of all terms, and all pieces are one call of numpy.
"""

from functools import cache, lru_cache

import numpy as np

from hloipu_runtime.kernels.contractions.blas_threads import SMALL_PRODUCTS, blas_libraries
from hloipu_runtime.kernels.core.blocks import Array

_F32 = np.dtype(np.float32)
_AVX512 = frozenset({"SkylakeX", "Cooperlake", "SapphireRapids"})
_MOST_TURNED, _FEWEST_TERMS = 1200, 128
"""Most elements of a piece whose terms lie side by side in both matrices, as OpenBLAS says, and the
fewest terms that such a piece pays for (measured on Zen 4 with OpenBLAS 0.3.31)."""
_ROWS, _ROWS_BY_TURNED, _COLUMNS = (64, 32, 24, 12), (64, 32), (64, 32)
"""Rows or columns of a piece, the best first: whole blocks of the kernels, whole cache lines."""


@cache
def multiplies_in_place() -> bool:
    """Whether the BLAS that is loaded is an OpenBLAS with kernels for small matrices."""
    return any(
        library.internal_api == "openblas" and getattr(library, "architecture", "") in _AVX512
        for library in blas_libraries()
    )


@lru_cache(maxsize=4096)
def _pieces(m: int, k: int, n: int, *, turns_a: bool, turns_b: bool) -> tuple[int, int]:
    """Return the rows of a piece and its columns; zero: all."""
    most = SMALL_PRODUCTS // k
    if m * n <= most:
        return 0, 0
    if turns_b and not turns_a:
        most = min(most, _MOST_TURNED) if k >= _FEWEST_TERMS else 0
        return 0, next((x for x in (32, 16) if x < n and x * m <= most), 0)
    rows = next((x for x in (_ROWS_BY_TURNED if turns_b else _ROWS) if x < m and x * n <= most), 0)
    return rows, 0 if rows else next((x for x in _COLUMNS if x < n and x * m <= most), 0)


def product(a: Array, b: Array, out: Array | None) -> Array:
    """Return `np.matmul` of matrices or stacks of them, on one thread of BLAS, in `out` if given.

    Every element is a sum of all its terms, in an order that depends on shapes and layouts alone.
    """
    if a.dtype is not _F32 or b.dtype is not _F32 or not multiplies_in_place():
        whole: Array = np.matmul(a, b, out=out)
        return whole
    item = _F32.itemsize
    m, k = a.shape[-2:]
    n = b.shape[-1]
    rows, columns = _pieces(m, k, n, turns_a=a.strides[-1] != item, turns_b=b.strides[-1] != item)
    if not rows and not columns:
        whole = np.matmul(a, b, out=out)
        return whole
    if out is None:
        out = np.empty((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), m, n), _F32)
    if rows:
        cut = m - m % rows
        _many(a[..., :cut, :], b, out[..., :cut, :], rows)
        if cut < m:
            np.matmul(a[..., cut:, :], b, out=out[..., cut:, :])
    else:
        cut = n - n % columns
        # The same with everything turned over.
        turned = out.swapaxes(-1, -2)
        _many(b[..., :cut].swapaxes(-1, -2), a.swapaxes(-1, -2), turned[..., :cut, :], columns)
        if cut < n:
            np.matmul(a, b[..., cut:], out=out[..., cut:])
    return out


def _many(a: Array, b: Array, out: Array, rows: int) -> None:
    """Write the product of a's pieces of so many rows, side by side, and b."""
    pieces = a.reshape(*a.shape[:-2], -1, rows, a.shape[-1])
    np.matmul(pieces, b[..., None, :, :], out=out.reshape(*out.shape[:-2], -1, rows, out.shape[-1]))
