"""The k greatest or least elements of each row, with their places."""

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.extrema import total_order_keys
from hloipu_runtime.kernels.core.movement import contiguous
from hloipu_runtime.kernels.sorting import SortKey, argsort_by_keys, ascending_keys

_FEW = 8
"""Up to one element in so many is found by a threshold rather than sorted out with its place."""


def topk(x: Array, k: int, *, largest: bool = True) -> tuple[Array, Array]:
    """Return the k greatest (or least) elements along the last axis, best first, and s32 places.

    Equal elements come in the order of their places. Floats compare in total order, as XLA:CPU
    compares them: NaN with a clear sign bit is greatest, with a set one least, +0 is above -0.
    """
    x = contiguous(x)
    places = _few_places(x, k, largest=largest)
    if places is None:
        places = _places(x, k, largest=largest)
    return np.take_along_axis(x, places, axis=-1), places.astype(np.int32)


def _few_places(x: Array, k: int, *, largest: bool) -> Array | None:
    """Find the elements not beyond the k-th best; None where k is large, or more than k are."""
    count = x.shape[-1]
    if x.size == 0 or not 0 < _FEW * k <= count:
        return None
    if x.dtype.kind == "f":
        keys = total_order_keys(x)
    else:
        keys = x.view(np.uint8) if x.dtype.kind == "b" else x
    if k == 1:
        first = keys.argmax(axis=-1) if largest else keys.argmin(axis=-1)
        return np.asarray(first)[..., np.newaxis]
    rows = keys.reshape(-1, count)
    at = count - k if largest else k - 1
    bounds = np.partition(rows, at, axis=-1)[:, at : at + 1]
    chosen = np.flatnonzero(rows >= bounds if largest else rows <= bounds)
    if chosen.size != rows.shape[0] * k:
        return None
    best = rows.reshape(-1)[chosen].reshape(-1, k)
    order = np.argsort(~best if largest else best, axis=-1, kind="stable")
    places = np.take_along_axis(chosen.reshape(-1, k) % count, order, axis=-1)
    return places.reshape(*x.shape[:-1], k)


def _places(x: Array, k: int, *, largest: bool) -> Array:
    keys = ascending_keys(x, SortKey(0, descending=largest))
    count = x.shape[-1]
    if 0 < k < count and keys.itemsize <= 4 and count < 1 << 32:
        # Places in the low half make all keys differ: a partition is then exact.
        packed = keys.astype(np.uint64) << np.uint64(32) | np.arange(count, dtype=np.uint64)
        packed.partition(k - 1, axis=-1)
        best = np.sort(packed[..., :k], axis=-1)
        return (best & np.uint64(0xFFFFFFFF)).view(np.int64)
    return argsort_by_keys([keys])[..., :k]
