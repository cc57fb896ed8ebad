"""Gather on many tiles at once, with grid axes as dimensions of the kernel."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.placing import is_shared
from hloipu_runtime.codelets.core.tensors import Array, Block, Sizes
from hloipu_runtime.kernels.gather import GatherDimensions, clamp_starts, gather


class GridAxes(NamedTuple):
    """Which grid axes two arrays keep; an axis along which an array is stored once is dropped."""

    first: tuple[int, ...]
    second: tuple[int, ...]

    @property
    def both(self) -> tuple[int, ...]:
        """Axes along which both arrays differ."""
        return tuple(axis for axis in self.first if axis in self.second)

    @property
    def kept(self) -> tuple[int, ...]:
        """Axes along which the result differs."""
        return tuple(sorted({*self.first, *self.second}))


def grid_axes(rank: int, first: Array, second: Array) -> GridAxes:
    """Find the axes of a grid along which each array differs from tile to tile."""
    return GridAxes(
        tuple(axis for axis in range(rank) if not is_shared(first, axis)),
        tuple(axis for axis in range(rank) if not is_shared(second, axis)),
    )


def stored_once(x: Array, rank: int, kept: Sequence[int]) -> Array:
    """Drop the grid axes that are not kept."""
    return x[(*(slice(None) if axis in kept else 0 for axis in range(rank)), ...)]


def gather_parts(
    operand: Array, indices: Array, rank: int, dims: GatherDimensions, slice_sizes: Sequence[int]
) -> Array:
    """Gather on every tile of a grid of `rank` axes, which come first in all arrays.

    Where the table is stored once, tiles' indices are more indices into it; where the indices are,
    tiles' tables are longer slices; where neither is, the axis is a batch dimension.
    """
    grid = tuple(map(max, zip(operand.shape[:rank], indices.shape[:rank], strict=True)))
    axes = grid_axes(rank, operand, indices)
    before_table, before_places = len(axes.first), len(axes.second)
    windows = [axis for axis in axes.first if axis not in axes.second]
    gathered = gather(
        stored_once(operand, rank, axes.first),
        stored_once(indices, rank, axes.second),
        GatherDimensions(
            offset_dims=(
                *(axes.kept.index(axis) for axis in windows),
                *behind(len(axes.kept), dims.offset_dims),
            ),
            collapsed_slice_dims=behind(before_table, dims.collapsed_slice_dims),
            start_index_map=behind(before_table, dims.start_index_map),
            index_vector_dim=before_places + dims.index_vector_dim,
            operand_batching_dims=(
                *(axes.first.index(axis) for axis in axes.both),
                *behind(before_table, dims.operand_batching_dims),
            ),
            start_indices_batching_dims=(
                *(axes.second.index(axis) for axis in axes.both),
                *behind(before_places, dims.start_indices_batching_dims),
            ),
        ),
        (*(grid[axis] if axis in windows else 1 for axis in axes.first), *slice_sizes),
    )
    for axis in range(rank):
        if axis not in axes.kept:
            gathered = np.expand_dims(gathered, axis)
    return np.broadcast_to(gathered, (*grid, *gathered.shape[rank:]))


def behind(count: int, dimensions: Sequence[int]) -> tuple[int, ...]:
    """Return the axes of dimensions that stand behind `count` others."""
    return tuple(count + d for d in dimensions)


class Offset(NamedTuple):
    """A dimension of the table that slices keep, and the result's dimension that it becomes."""

    table: int
    result: int


def offsets(dims: GatherDimensions, rank: int) -> list[Offset]:
    """Pair the table's kept dimensions with the result's."""
    dropped = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    kept = (d for d in range(rank) if d not in dropped)
    return [Offset(*pair) for pair in zip(kept, dims.offset_dims, strict=True)]


def batch_dimensions(dims: GatherDimensions, rank: int) -> Iterator[tuple[int, int]]:
    """Pair the dimensions of indices, but the vector's, with the result's; `rank` is of indices."""
    others = (d for d in range(rank) if d != dims.index_vector_dim)
    places = (d for d in range(rank + len(dims.offset_dims)) if d not in dims.offset_dims)
    return zip(others, places, strict=False)


class Places(NamedTuple):
    """Clamped starts in the whole table, by dimension of it: arrays of `shape`, or broadcasting.

    `shape` is grid + batch; a grid axis along which tiles share all starts has length 1.
    """

    columns: dict[int, Array]
    shape: Sizes
    grid_rank: int

    @property
    def batch_rank(self) -> int:
        """Number of batch dimensions."""
        return len(self.shape) - self.grid_rank

    def shifted(self, dimension: int, by: Array | int) -> None:
        """Add, for each tile, how far its part begins from where the start counts from."""
        shift = np.asarray(by, np.int64)
        ahead = (1,) * (self.grid_rank - shift.ndim)
        shift = shift.reshape(ahead + shift.shape + (1,) * self.batch_rank)
        self.columns[dimension] = self.columns.get(dimension, 0) + shift

    def vectors(self) -> Array:
        """Return index vectors, last, of the columns in order of their dimensions."""
        columns = [self.columns[d] for d in sorted(self.columns)]
        if not columns:
            return np.zeros((*self.shape, 0), np.int64)
        shape = np.broadcast_shapes(self.shape, *(column.shape for column in columns))
        return np.stack([np.broadcast_to(column, shape) for column in columns], axis=-1)


def places_of(
    dims: GatherDimensions, slice_sizes: Sequence[int], indices: Block, table_shape: Sizes
) -> Places:
    """Clamp the starts that indices give, as the whole table's sizes say."""
    rank = len(indices.grid)
    once = indices.data[
        tuple(
            slice(0, 1) if axis < rank and step == 0 else slice(None)
            for axis, step in enumerate(indices.data.strides)
        )
    ]
    if dims.index_vector_dim == len(indices.part):
        once = once[..., np.newaxis]
    vectors = np.moveaxis(once, rank + dims.index_vector_dim, -1)
    columns = {
        d: clamp_starts(vectors[..., k], table_shape[d] - slice_sizes[d])
        for k, d in enumerate(dims.start_index_map)
    }
    return Places(columns, vectors.shape[:-1], rank)


def local_dims(dims: GatherDimensions, places: Places) -> GatherDimensions:
    """Return dimension numbers for the index vectors of `places`, but for the grid."""
    vector = dims.index_vector_dim
    return GatherDimensions(
        dims.offset_dims,
        dims.collapsed_slice_dims,
        tuple(sorted(places.columns)),
        places.batch_rank,
        dims.operand_batching_dims,
        tuple(d - (d > vector) for d in dims.start_indices_batching_dims),
    )
