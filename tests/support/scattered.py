"""A scatter element by element: what its kernels are compared with."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hloipu_runtime.kernels.scatter import ScatterDimensions
from tests.support.arrays import Array

Combine = Callable[[Any, Any], Any]
"""Makes an element of what was there and of an update's."""


def scattered(
    operand: Array, indices: Array, updates: Array, dims: ScatterDimensions, combine: Combine
) -> Array:
    """Combine element by element, in order, as openxla.org's operation semantics say it."""
    out = operand.copy()
    vector = dims.index_vector_dim
    if vector == indices.ndim:
        indices = indices[..., np.newaxis]
    absent = {*dims.inserted_window_dims, *dims.input_batching_dims}
    kept = [d for d in range(operand.ndim) if d not in absent]
    batch = [d for d in range(updates.ndim) if d not in dims.update_window_dims]
    for number in np.ndindex(*(updates.shape[d] for d in batch)):
        start = [0] * operand.ndim
        for k, d in enumerate(dims.scatter_dims_to_operand_dims):
            full = list(number)
            full.insert(vector, k)
            start[d] = int(indices[tuple(full)])
        for d, b in zip(dims.input_batching_dims, dims.scatter_indices_batching_dims, strict=True):
            start[d] = number[b - (b > vector)]
        size = [1] * operand.ndim
        for d, place in zip(kept, dims.update_window_dims, strict=True):
            size[d] = updates.shape[place]
        if any(not 0 <= s <= n - w for s, n, w in zip(start, operand.shape, size, strict=True)):
            continue
        for within in np.ndindex(*size):
            at = [0] * updates.ndim
            for d, place in zip(batch, number, strict=True):
                at[d] = place
            for d, place in zip(kept, dims.update_window_dims, strict=True):
                at[place] = within[d]
            target = tuple(s + w for s, w in zip(start, within, strict=True))
            out[target] = combine(out[target], updates[tuple(at)])
    return out
