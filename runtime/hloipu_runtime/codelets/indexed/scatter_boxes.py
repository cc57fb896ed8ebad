"""Scatter of few windows on many tiles side by side, without indexing elements.

Parts of tiles that follow each other in memory are one box of the whole tensor. A window that all
tiles share is cut to what falls into the box, and combined in one go.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hloipu_runtime.codelets.core.codelet import Array, Block, Blocks
from hloipu_runtime.codelets.core.placing import first_start, is_shared, line_of_starts
from hloipu_runtime.codelets.indexed.scatter_parts import window_sizes
from hloipu_runtime.kernels.core.monoids import Combiner
from hloipu_runtime.kernels.core.movement import Index as Places
from hloipu_runtime.kernels.core.movement import index_of
from hloipu_runtime.kernels.gather import index_columns
from hloipu_runtime.kernels.scatter import FEW_WINDOWS, ScatterDimensions
from hloipu_runtime.kernels.scatter_rows import combine_window


def scatter_few(
    dims: ScatterDimensions,
    operands: Blocks,
    indices: Block,
    updates: Blocks,
    combiner: Combiner | str,
    element_types: Sequence[str],
) -> bool:
    """Combine a few windows into the operands' own arrays; False where that takes another way.

    The arrays of `operands` are the results' memory, written.
    """
    if not all(_is_one(block) for block in (indices, *updates)):
        return False
    boxes = [_box_of(block) for block in operands]
    block = operands[0]
    sizes = window_sizes(dims, len(block.part), updates[0].part)
    count = _count(dims, indices)
    windows = [_windows_first(_once(u), dims, (count, *sizes)) for u in updates]
    first = [first_start(block, d) for d in range(len(sizes))]
    tables = [box for box in boxes if box is not None]
    if len(tables) != len(boxes):
        return False
    for number, corner in enumerate(_corners(dims, _once(indices), len(sizes), count)):
        bounds = zip(corner, sizes, block.whole, strict=True)
        if not all(0 <= at <= whole - size for at, size, whole in bounds):
            continue
        low = [max(at, begin) for at, begin in zip(corner, first, strict=True)]
        ends = zip(corner, sizes, first, tables[0].shape, strict=True)
        high = [min(at + size, begin + length) for at, size, begin, length in ends]
        if any(a >= b for a, b in zip(low, high, strict=True)):
            continue
        there = _cut(low, high, first)
        here = _cut(low, high, corner)
        combine_window(
            [table[there] for table in tables],
            [window[number][here] for window in windows],
            combiner,
            element_types,
        )
    return True


def is_few(dims: ScatterDimensions, indices: Block) -> bool:
    """Whether windows are so few that `scatter_few` may serve."""
    return _count(dims, indices) <= FEW_WINDOWS and not dims.input_batching_dims


def _count(dims: ScatterDimensions, indices: Block) -> int:
    return prod(n for d, n in enumerate(indices.part) if d != dims.index_vector_dim)


def _is_one(block: Block) -> bool:
    """Whether all tiles share one copy of the whole."""
    shared = all(is_shared(block.data, axis) for axis in range(len(block.grid)))
    return shared and block.part == block.whole


def _once(block: Block) -> Array:
    return np.asarray(block.data[(0,) * len(block.grid)])


def _cut(low: Sequence[int], high: Sequence[int], first: Sequence[int]) -> Places:
    """Return the index of a box in an array that begins at `first`."""
    return index_of(slice(a - f, b - f) for a, b, f in zip(low, high, first, strict=True))


def _box_of(block: Block) -> Array | None:
    """Return the parts of all tiles as one box of the whole, a view; None where they are no box."""
    array, rank = block.data, len(block.grid)
    shape, strides, used = [], [], set()
    for d, size in enumerate(block.part):
        axis, starts = line_of_starts(block, d)
        stride = array.strides[rank + d]
        strides.append(stride)
        shape.append(size * len(starts))
        if axis < 0:
            continue
        apart = all(b - a == size for a, b in pairwise(starts.tolist()))
        if not apart or array.strides[axis] != size * stride or axis in used:
            return None
        used.add(axis)
    if any(n > 1 and axis not in used for axis, n in enumerate(block.grid)):
        return None
    return as_strided(array, tuple(shape), tuple(strides), writeable=array.flags.writeable)


def _windows_first(update: Array, dims: ScatterDimensions, shape: Sequence[int]) -> Array:
    """Bring an update to (window number, the operand's dimensions)."""
    batch = [d for d in range(update.ndim) if d not in dims.update_window_dims]
    return update.transpose((*batch, *dims.update_window_dims)).reshape(shape)


def _corners(dims: ScatterDimensions, indices: Array, rank: int, count: int) -> list[list[int]]:
    """Return where each window begins, in every dimension of the operand."""
    shape, starts = index_columns(
        indices, dims.index_vector_dim, dims.scatter_dims_to_operand_dims, ()
    )
    columns = {d: np.broadcast_to(x, shape).reshape(-1).tolist() for d, x in starts.items()}
    return [[columns[d][n] if d in columns else 0 for d in range(rank)] for n in range(count)]
