"""Sorting by one key of at most 32 bits, packed with its place into 64 bits."""

from collections.abc import Sequence

import numpy as np

from hloipu_runtime.codelets.core.codelet import Array
from hloipu_runtime.kernels.core.extrema import has_negative_zero
from hloipu_runtime.kernels.sorting import SortKey, ascending_keys, packed_with, values_of_keys

_HIGH = np.uint64(0xFFFFFFFF00000000)


CACHED_ELEMENTS = 1 << 15
"""Sorted at once: with what is made of each, some 30 bytes, they stay in a second-level cache."""


def sort_packed(
    arrays: Sequence[Array],
    axis: int,
    key: SortKey,
    places: int,
    count: int,
    wanted: int,
    backwards: Array | None = None,
) -> list[Array]:
    """Sort along an axis by `key`, then by the operand of places; those from `count` on go last.

    Returns the first `wanted` arrays. Keys are at most 32 bits wide, places s32. Keys of filling
    become zeros. `backwards`, which broadcasts to the shape, tells which rows are sorted the other
    way round.
    """
    shape = arrays[0].shape
    longest = max(range(len(shape)), key=lambda d: shape[d] * (d != axis))
    step = max(1, CACHED_ELEMENTS * shape[longest] // max(arrays[0].size, 1))
    if longest != axis and step < shape[longest]:
        turns = None if backwards is None else np.broadcast_to(backwards, shape)
        wholes = [np.empty(shape, x.dtype) for x in arrays[:wanted]]
        for start in range(0, shape[longest], step):
            rows = (*(slice(None),) * longest, slice(start, start + step))
            part, turned = [x[rows] for x in arrays], None if turns is None else turns[rows]
            pieces = sort_packed(part, axis, key, places, count, wanted, turned)
            for whole, piece in zip(wholes, pieces, strict=True):
                whole[rows] = piece
        return wholes
    x, at = np.ascontiguousarray(arrays[key.operand]), arrays[places].view(np.uint32)
    filling = at >= np.uint32(count)
    is_filled = bool(filling.any())
    if is_filled:
        x = np.where(filling, x.dtype.type(0), x)
    ranks = ascending_keys(x, key)
    packed = packed_with(ranks, at)
    if is_filled:
        # Its places are above all others, so that among equal ranks it goes last.
        np.bitwise_or(packed, _HIGH, out=packed, where=filling)
    turned = None if backwards is None else np.uint64(0) - backwards.astype(np.uint64)
    if turned is not None:
        packed ^= turned
    if {key.operand, places} == set(range(len(arrays))) and _is_invertible(x, key):
        packed.sort(axis=axis)
        if turned is not None:
            packed ^= turned
        halves = packed.view("<u4").reshape(*packed.shape, 2)
        at = halves[..., 0].copy()
        values = values_of_keys(halves[..., 1].astype(ranks.dtype), key, x)
        if is_filled:
            np.copyto(values, values.dtype.type(0), where=at >= np.uint32(count))
        return [at.view(np.int32) if n == places else values for n in range(wanted)]
    order = np.argsort(packed, axis=axis)
    return taken([x if n == key.operand else arrays[n] for n in range(wanted)], order, axis)


def taken(arrays: Sequence[Array], order: Array, axis: int) -> list[Array]:
    """Return arrays of one shape with the elements along an axis in the given order."""
    shape = order.shape
    inner = int(np.prod(shape[axis + 1 :], dtype=np.int64))
    length = shape[axis]
    flat = order.reshape(-1, length, inner)
    if inner > 1:
        flat = flat * inner
        flat += np.arange(inner)
    if flat.shape[0] > 1:
        flat = flat + np.arange(flat.shape[0])[:, np.newaxis, np.newaxis] * (length * inner)
    return [x.reshape(-1).take(flat.reshape(-1), mode="clip").reshape(shape) for x in arrays]


def _is_invertible(x: Array, key: SortKey) -> bool:
    """Whether ranks say which bits a value has."""
    if x.dtype.kind != "f" or key.order == "total":
        return True
    return not (has_negative_zero([x]) or np.isnan(x).any())
