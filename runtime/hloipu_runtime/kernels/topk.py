"""The k greatest or least elements of each row, with their places."""

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.extrema import total_order_keys
from hloipu_runtime.kernels.core.movement import contiguous
from hloipu_runtime.kernels.native.settings import settings
from hloipu_runtime.kernels.sorting import (
    SortKey,
    argsort_by_keys,
    ascending_keys,
    packed_with,
    values_of_keys,
)

_FEW = 8
"""Up to one element in so many is found by a bound rather than sorted out with its place."""

_HIGH = np.uint64(0xFFFFFFFF00000000)

_SHORT = 64
"""Shorter rows are sorted as a whole, which takes less than to look for the best of each."""

_BLOCK_ELEMENTS = 1 << 17
"""Of rows looked at together: their keys stay in the second-level cache."""


def topk(x: Array, k: int, *, largest: bool = True) -> tuple[Array, Array]:
    """Return the k greatest (or least) elements along the last axis, best first, and s32 places.

    Equal elements come in the order of their places. Floats compare in total order, as XLA:CPU
    compares them: NaN with a clear sign bit is greatest, with a set one least, +0 is above -0.
    """
    x = contiguous(x)
    shape = (*x.shape[:-1], k)
    if not x.size or not k:
        return np.zeros(shape, x.dtype), np.zeros(shape, np.int32)
    rows = x.reshape(-1, x.shape[-1])
    number, count = rows.shape
    places = None
    if k < count and settings().compiles:
        from hloipu_runtime.kernels.native.best_of_rows import best_natively

        places = best_natively(rows, k, largest=largest)
    if places is None:
        if count <= _SHORT and x.itemsize <= 4 and x.dtype.kind in "fiu":
            at = np.broadcast_to(np.arange(count, dtype=np.uint32), x.shape)
            return best_pairs(x, at, k, largest=largest)
        places = _all_places(rows, k, largest=largest)
    best = rows.reshape(-1).take(places + np.arange(0, number * count, count)[:, np.newaxis])
    return best.reshape(shape), places.astype(np.int32).reshape(shape)


def best_pairs(
    values: Array, places: Array, k: int, *, largest: bool, last: Array | None = None
) -> tuple[Array, Array]:
    """Return the k best of (value, u32 place) pairs along the last axis, and s32 places.

    Values have at most 32 bits; equal ones go by their places. Pairs marked in `last` go behind
    all others.
    """
    key = SortKey(0, descending=largest)
    ranks = ascending_keys(values, key)
    packed = packed_with(ranks, places)
    if last is not None:
        np.bitwise_or(packed, _HIGH, out=packed, where=last)
    packed.sort(axis=-1)
    halves = packed[..., :k].view("<u4")
    best = values_of_keys(halves[..., 1::2].astype(ranks.dtype), key, values)
    return best, halves[..., ::2].astype(np.int32)


def _all_places(rows: Array, k: int, *, largest: bool) -> Array:
    """Return the places, int64, of the k best of each row."""
    number, count = rows.shape
    if not 0 < _FEW * k <= count:
        return _places(rows, k, largest=largest)
    step = max(1, _BLOCK_ELEMENTS // count)
    starts = range(0, number, step)
    return np.concatenate(
        [_few_places(rows[start : start + step], k, largest=largest) for start in starts]
    )


def _few_places(rows: Array, k: int, *, largest: bool) -> Array:
    """Find the k best of each row among the elements that are not beyond a bound.

    The bound is the k-th best of the best of groups: k elements at least are no worse.
    """
    keys = total_order_keys(rows) if rows.dtype.kind == "f" else rows
    if keys.dtype.kind == "b":
        keys = keys.view(np.uint8)
    if not largest:
        keys = ~keys
    if k == 1:
        return np.asarray(keys.argmax(axis=-1))[:, np.newaxis]
    number, count = keys.shape
    groups = 4 * k
    each = count // groups
    best = keys
    if each > 1:
        best = keys[:, : each * groups].reshape(number, each, groups).max(axis=1)
        if each * groups < count:
            rest = keys[:, each * groups :]
            np.maximum(best[:, : rest.shape[1]], rest, out=best[:, : rest.shape[1]])
    at = best.shape[1] - k
    bounds = np.partition(best, at, axis=-1)[:, at : at + 1]
    chosen = np.flatnonzero(keys >= bounds)
    ends = np.searchsorted(chosen, np.arange(1, number + 1) * count)
    lengths = np.diff(ends, prepend=0)
    most = int(lengths.max())
    if most > max(_FEW * k, count // _FEW):
        return _places(rows, k, largest=largest)
    # As many of each row, in the order of places: what fills up is beyond all, or equal and later.
    at_row = np.repeat(np.arange(number), lengths)
    slots = np.arange(chosen.size) - (ends - lengths)[at_row]
    candidates = keys.reshape(-1)[chosen]
    if keys.dtype.kind == "u":
        candidates = (candidates ^ (np.iinfo(keys.dtype).max // 2 + 1)).view(f"i{keys.itemsize}")
    places = chosen - at_row * count
    if keys.itemsize <= 4 and count < 1 << 32:
        packed = np.full((number, most), np.iinfo(np.int64).max)
        packed[at_row, slots] = ~candidates.astype(np.int64) << 32 | places
        packed.sort(axis=-1)
        return packed[:, :k] & 0xFFFFFFFF
    filled = np.full((number, most), np.iinfo(candidates.dtype).max, candidates.dtype)
    filled[at_row, slots] = ~candidates
    where = np.zeros((number, most), np.int64)
    where[at_row, slots] = places
    order = np.argsort(filled, axis=-1, kind="stable")[:, :k]
    return np.take_along_axis(where, order, axis=-1)


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
