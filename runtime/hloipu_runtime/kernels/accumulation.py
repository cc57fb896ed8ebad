"""Cumulative sums along an axis, in linear time and with pairwise error."""

from math import prod

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.movement import contiguous
from hloipu_runtime.kernels.native.settings import settings

CHUNK_ELEMENTS = 1 << 16
"""Elements widened to float64 at once."""

BLOCK = 128
"""Terms added one after another where no wider type is at hand."""

WIDE_SLAB_ELEMENTS = 1024
"""Slabs so large that one call for each step along an outer axis costs little."""


def accumulate(x: Array, axis: int, ufunc: np.ufunc) -> Array:
    """Return the totals of `x[0..i]` along `axis`, in the dtype of `x`.

    float32 sums and products run in float64 and are rounded at each place; float64 and complex
    ones run in blocks.
    """
    outer, count, inner = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    if x.size == 0:
        return x
    if inner == 1:
        try:
            rows = x.reshape(outer, count, copy=False)
        except ValueError:  # no view has these strides
            rows = contiguous(x).reshape(outer, count)
        return _rows(rows, ufunc).reshape(x.shape)
    if outer * inner >= WIDE_SLAB_ELEMENTS:
        return _slabs(contiguous(x).reshape(outer, count, inner), ufunc).reshape(x.shape)
    moved = np.moveaxis(x, axis, -1)
    rows = contiguous(moved).reshape(-1, count)
    return np.moveaxis(_rows(rows, ufunc).reshape(moved.shape), -1, axis)


def _is_rounding(x: Array, ufunc: np.ufunc) -> bool:
    """Whether the operation rounds, so that the order of the terms shows."""
    return x.dtype.kind in "fc" and ufunc in (np.add, np.multiply)


def _rows(rows: Array, ufunc: np.ufunc) -> Array:
    """Accumulate along the rows of a matrix."""
    dtype = rows.dtype
    if not _is_rounding(rows, ufunc):
        return np.asarray(ufunc.accumulate(contiguous(rows), axis=1, dtype=dtype))
    if dtype != np.float32:
        return _in_blocks(contiguous(rows), ufunc)
    if settings().compiles:
        from hloipu_runtime.kernels.native.running import run_natively

        made = run_natively(rows, str(ufunc.__name__))
        if made is not None:
            return made
    out = np.empty(rows.shape, dtype)
    count, length = rows.shape
    step = max(1, CHUNK_ELEMENTS // length)
    for first in range(0, count, step):
        block = slice(first, first + step)
        if length <= CHUNK_ELEMENTS:
            out[block] = ufunc.accumulate(rows[block], axis=1, dtype=np.float64)
            continue
        carry = None
        for start in range(0, length, CHUNK_ELEMENTS):
            piece = rows[block, start : start + CHUNK_ELEMENTS].astype(np.float64)
            if carry is not None:
                piece[:, 0] = ufunc(carry, piece[:, 0])
            ufunc.accumulate(piece, axis=1, out=piece)
            carry = piece[:, -1]
            out[block, start : start + CHUNK_ELEMENTS] = piece
    return out


def _in_blocks(rows: Array, ufunc: np.ufunc) -> Array:
    """Accumulate inside blocks, accumulate the blocks' totals, then carry them in."""
    count, length = rows.shape
    if length <= BLOCK:
        return np.asarray(ufunc.accumulate(rows, axis=1))
    whole = length - length % BLOCK
    out = np.empty(rows.shape, rows.dtype)
    blocked = rows[:, :whole].reshape(count, -1, BLOCK)
    inside = out[:, :whole].reshape(count, -1, BLOCK)
    ufunc.accumulate(blocked, axis=2, out=inside)
    totals = _in_blocks(np.ascontiguousarray(inside[:, :, -1]), ufunc)
    ufunc(totals[:, :-1, np.newaxis], inside[:, 1:], out=inside[:, 1:])
    if whole != length:
        tail = out[:, whole:]
        ufunc.accumulate(rows[:, whole:], axis=1, out=tail)
        ufunc(totals[:, -1:], tail, out=tail)
    return out


def _slabs(x: Array, ufunc: np.ufunc) -> Array:
    """Accumulate along the middle axis of (outer, count, inner), one slab at a time."""
    out = np.empty(x.shape, x.dtype)
    widen = _is_rounding(x, ufunc) and x.dtype == np.float32
    if not widen and _is_rounding(x, ufunc) and x.shape[1] > BLOCK:
        moved = contiguous(x.transpose(0, 2, 1)).reshape(-1, x.shape[1])
        summed = _in_blocks(moved, ufunc).reshape(x.shape[0], x.shape[2], x.shape[1])
        return summed.transpose(0, 2, 1)
    total = x[:, 0].astype(np.float64 if widen else x.dtype)
    out[:, 0] = x[:, 0]
    for k in range(1, x.shape[1]):
        ufunc(total, x[:, k], out=total)
        out[:, k] = total
    return out
