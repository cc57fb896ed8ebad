"""Scatter on many tiles at once, each with ranges of the operands.

All tiles of a class go through one call of the kernel: a grid axis becomes one more coordinate of
each window, one more dimension of the windows, or a batch dimension.

Few windows on many tiles side by side need no index for each element: parts of tiles that follow
each other in memory are one box of the whole tensor. A window that all
tiles share is cut to what falls into the box, and combined in one go.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hloipu_runtime.codelets.core.placing import first_start, is_shared, line_of_starts
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, Sizes
from hloipu_runtime.kernels.core.monoids import Combiner
from hloipu_runtime.kernels.core.movement import Index as Places
from hloipu_runtime.kernels.core.movement import index_of
from hloipu_runtime.kernels.gather import index_columns
from hloipu_runtime.kernels.native.targets import inside
from hloipu_runtime.kernels.scatter import FEW_WINDOWS, ScatterDimensions
from hloipu_runtime.kernels.scatter_rows import combine_window

NOWHERE = -1
"""A start that the kernel skips, as it skips all that is out of bounds."""


class Axis(Enum):
    """What a grid axis is to the kernel."""

    COORDINATE = "coordinate"
    """Tiles share windows and each has a range: the tile is part of a window's place."""
    WINDOW = "window"
    """Tiles share places and each has a part of every window."""
    BATCH = "batch"
    """Each tile has windows or places of its own."""


@dataclass
class PartScatter:
    """One call of the kernel for all tiles of a class."""

    dims: ScatterDimensions
    indices: Array
    updates: list[Array]


def window_sizes(dims: ScatterDimensions, rank: int, updates: Sizes) -> list[int]:
    """Return the window's size along every operand dimension, 1 where windows have none."""
    sizes = [1] * rank
    for d, place in window_dimensions(dims, rank):
        sizes[d] = updates[place]
    return sizes


def window_dimensions(dims: ScatterDimensions, rank: int) -> list[tuple[int, int]]:
    """Pair the operand dimensions that windows have with those of the updates."""
    absent = {*dims.inserted_window_dims, *dims.input_batching_dims}
    kept = (d for d in range(rank) if d not in absent)
    return list(zip(kept, dims.update_window_dims, strict=True))


def batch_places(dims: ScatterDimensions, indices_rank: int) -> list[tuple[int, int]]:
    """Pair the dimensions of indices, but the vector's, with those of the updates."""
    others = [d for d in range(indices_rank) if d != dims.index_vector_dim]
    total = len(others) + len(dims.update_window_dims)
    places = (d for d in range(total) if d not in dims.update_window_dims)
    return list(zip(others, places, strict=True))


def scatter_parts(
    dims: ScatterDimensions, operand: Block, indices: Block, updates: Blocks
) -> PartScatter:
    """Return the kernel's call for operands of shape grid + part, whatever their ranges are."""
    return _Call(dims, operand, indices, updates).part_scatter()


@dataclass
class _Call:
    """A call under construction. All arrays of places have the shape `leading` + trailing ones."""

    dims: ScatterDimensions
    operand: Block
    indices: Block
    updates: Blocks
    axes: list[Axis] = field(default_factory=list)
    columns: dict[int, Array] = field(default_factory=dict)
    """Place of each window along an axis of the operand array, grid axes included."""

    def part_scatter(self) -> PartScatter:
        dims, rank = self.dims, len(self.operand.grid)
        windows = window_sizes(dims, len(self.operand.part), self.updates[0].whole)
        whole = self.operand.whole
        lines = [line_of_starts(self.operand, d) for d in range(len(whole))]
        ranged = [
            d
            for d, size in enumerate(windows)
            if d not in dims.input_batching_dims
            and self.operand.part[d] != whole[d]
            and size != whole[d]
        ]
        self._classify({lines[d][0] for d in ranged})
        valid = self._read_places(windows)
        expanded = [d for d in ranged if windows[d] > 1]
        for number, d in enumerate(expanded):
            self._expand(d, windows[d], number, len(expanded))
        valid = valid.reshape(valid.shape + (1,) * len(expanded))
        for d in ranged:
            axis, starts = lines[d]
            valid = self._localise(d, axis, starts, valid)
        vectors = self._vectors(valid)
        batch = [axis for axis in range(rank) if self.axes[axis] is Axis.BATCH]
        kept = [axis for axis in range(rank) if self.axes[axis] is Axis.WINDOW]
        inserted = [axis for axis in range(rank) if self.axes[axis] is Axis.COORDINATE]
        first = vectors.ndim - 1
        pairs = window_dimensions(dims, len(whole))
        still = [place for d, place in pairs if d not in expanded]
        moved = [dict(pairs)[d] for d in expanded]
        vector = dims.index_vector_dim
        return PartScatter(
            ScatterDimensions(
                update_window_dims=tuple(range(first, first + len(kept) + len(still))),
                inserted_window_dims=tuple(
                    sorted(
                        [*inserted, *(rank + d for d in (*dims.inserted_window_dims, *expanded))]
                    )
                ),
                scatter_dims_to_operand_dims=tuple(sorted(self.columns)),
                index_vector_dim=0,
                input_batching_dims=(*batch, *(rank + d for d in dims.input_batching_dims)),
                scatter_indices_batching_dims=(
                    *range(1, 1 + len(batch)),
                    *(
                        1 + len(batch) + d - (d > vector)
                        for d in dims.scatter_indices_batching_dims
                    ),
                ),
            ),
            vectors,
            [self._windows(u, batch, kept, moved, still) for u in self.updates],
        )

    def _classify(self, range_axes: set[int]) -> None:
        """Say what each grid axis is to the kernel."""
        for axis in range(len(self.operand.grid)):
            places_shared = is_shared(self.indices.data, axis)
            windows_shared = all(is_shared(u.data, axis) for u in self.updates)
            if axis in range_axes and places_shared and windows_shared:
                self.axes.append(Axis.COORDINATE)
            elif axis not in range_axes and places_shared:
                self.axes.append(Axis.WINDOW)
            else:
                self.axes.append(Axis.BATCH)

    def _once(self, x: Array) -> Array:
        """Drop the grid axes along which tiles share places."""
        return x[(*(slice(None) if a is Axis.BATCH else 0 for a in self.axes), ...)]

    def _read_places(self, windows: Sequence[int]) -> Array:
        """Read the columns of the indices; return which windows lie in the whole operand."""
        rank = len(self.operand.grid)
        vectors = self._once(self.indices.data)
        if self.dims.index_vector_dim == len(self.indices.part):
            vectors = vectors[..., np.newaxis]
        batch = sum(axis is Axis.BATCH for axis in self.axes)
        vectors = np.moveaxis(vectors, batch + self.dims.index_vector_dim, -1)
        valid = np.ones(vectors.shape[:-1], bool)
        for k, d in enumerate(self.dims.scatter_dims_to_operand_dims):
            column = vectors[..., k]
            limit = self.operand.whole[d] - windows[d]
            # Before the sizes are compared as int64: a huge u64 would turn negative there.
            valid &= inside(column, limit)
            self.columns[rank + d] = column.astype(np.int64)
        return valid

    def _expand(self, dimension: int, size: int, number: int, count: int) -> None:
        """Make of each window as many as it has elements along a dimension, each of size 1."""
        rank = len(self.operand.grid)
        if number == 0:
            for key, column in self.columns.items():
                self.columns[key] = column.reshape(column.shape + (1,) * count)
        along = [1] * count
        along[number] = size
        key = rank + dimension
        self.columns[key] = self.columns.get(key, np.zeros((), np.int64)) + np.arange(size).reshape(
            along
        )

    def _localise(self, dimension: int, axis: int, starts: Array, valid: Array) -> Array:
        """Count places from where ranges begin; return which windows fall into one."""
        rank, part = len(self.operand.grid), self.operand.part[dimension]
        key = rank + dimension
        column = self.columns.get(key, np.zeros((1,) * valid.ndim, np.int64))
        if axis >= 0 and self.axes[axis] is Axis.COORDINATE:
            holder = self.columns[axis] = self._holders(starts, column, dimension)
            begin = starts.take(holder)
        elif axis >= 0:
            along = [1] * max(column.ndim, valid.ndim)
            along[sum(a is Axis.BATCH for a in self.axes[:axis])] = -1
            begin = starts.reshape(along)
        else:
            begin = starts[0]
        self.columns[key] = column - begin
        return valid & (self.columns[key] >= 0) & (self.columns[key] < part)

    def _holders(self, starts: Array, column: Array, dimension: int) -> Array:
        """Return the number of the last range that begins at or before each place, or the first."""
        size = self.operand.whole[dimension]
        if column.size < size:
            return np.asarray(np.maximum(np.searchsorted(starts, column, "right") - 1, 0))
        # Many places: each one's range is looked up.
        holders = np.repeat(np.arange(starts.size), np.diff(starts, append=size))
        return np.asarray(holders.take(column - starts[0], mode="clip"))

    def _vectors(self, valid: Array) -> Array:
        """Return index vectors, first, with those of skipped windows nowhere."""
        columns = [self.columns[key] for key in sorted(self.columns)]
        shape = np.broadcast_shapes(valid.shape, *(c.shape for c in columns))
        vectors = np.empty((len(columns), *shape), np.int64)
        for k, column in enumerate(columns):
            vectors[k] = column
        if not valid.all():
            np.copyto(vectors[:1], NOWHERE, where=~valid)  # one vector alone is no array
        return vectors

    def _windows(
        self,
        update: Block,
        batch: Sequence[int],
        kept: Sequence[int],
        moved: Sequence[int],
        still: Sequence[int],
    ) -> Array:
        """Bring updates to (batch axes, batch, elements made windows, window axes, windows)."""
        rank = len(update.grid)
        left = [axis for axis in range(rank) if self.axes[axis] is not Axis.COORDINATE]
        data = update.data[(*(slice(None) if axis in left else 0 for axis in range(rank)), ...)]
        scattered = [place for _, place in batch_places(self.dims, len(self.indices.part))]
        order = (
            *(left.index(axis) for axis in batch),
            *(len(left) + place for place in (*scattered, *moved)),
            *(left.index(axis) for axis in kept),
            *(len(left) + place for place in still),
        )
        return data.transpose(order)


def window_pieces(dims: ScatterDimensions, operand: Sizes, updates: Sizes) -> tuple[int, int]:
    """Return how many contiguous pieces the windows of a tile are, and the elements of one."""
    elements = prod(updates)
    if not elements:
        return 0, 0
    run = 1
    sizes = window_sizes(dims, len(operand), updates)
    for size, whole in zip(reversed(sizes), reversed(operand), strict=True):
        run *= min(size, whole) if whole else 1
        if size != whole:
            break
    return elements // run, run


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
