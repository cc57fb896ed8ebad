"""Dot on arrays of known sizes, to be called again and again."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hloipu_runtime.kernels.contractions.blas_threads import blas_matmul
from hloipu_runtime.kernels.contractions.contraction import DotDimensions, contract
from hloipu_runtime.kernels.contractions.dot import dot_general
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.storage import storage_dtype

Sizes = tuple[int, ...]
Product = Callable[..., Array]
"""From two operands, and perhaps an array `out` for the result, to the result.

For one call of BLAS `out` is row-major; in other products it may be left alone.
"""


def dotting(lhs: Sizes, rhs: Sizes, dims: DotDimensions, element_type: str) -> Product:
    """Return `dot_general` for operands of these shapes; floating-point warnings are off."""

    def general(a: Array, b: Array, out: Array | None = None) -> Array:
        return dot_general(a, b, dims, element_type)

    if element_type not in ("f32", "f64"):
        return general
    if not is_matrix_product(lhs, rhs, dims, element_type):
        dtype = storage_dtype(element_type)

        def of_floats(a: Array, b: Array, out: Array | None = None) -> Array:
            return contract(a, b, dims, out) if a.dtype is b.dtype is dtype else general(a, b)

        return of_floats
    return _of_matrices(lhs, rhs, dims, storage_dtype(element_type), general)


def is_matrix_product(lhs: Sizes, rhs: Sizes, dims: DotDimensions, element_type: str) -> bool:
    """Whether `dotting` is one call of BLAS, which may write to `out`."""
    if len(lhs) != 2 or len(rhs) != 2 or len(dims.lhs_contracting) != 1 or dims.lhs_batch:
        return False
    return element_type in ("f32", "f64") and lhs[dims.lhs_contracting[0]] > 1


def _of_matrices(
    lhs: Sizes, rhs: Sizes, dims: DotDimensions, dtype: np.dtype[Any], general: Product
) -> Product:
    """Return the product of two matrices by one call of BLAS, where their layout is one for it."""
    turns_lhs, turns_rhs = dims.lhs_contracting[0] == 0, dims.rhs_contracting[0] == 1
    flops = 2.0 * lhs[0] * lhs[1] * (rhs[0] if turns_rhs else rhs[1])

    def product(a: Array, b: Array, out: Array | None = None) -> Array:
        if a.dtype is not dtype or b.dtype is not dtype or not (a.flags.forc and b.flags.forc):
            return general(a, b)
        return blas_matmul(a.T if turns_lhs else a, b.T if turns_rhs else b, flops, out)

    return product
