"""Gather.

The operand is seen through a sliding window over the indexed dimensions, so that one advanced
index (or one `take`) copies whole slices; nothing is indexed element by element.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.movement import contiguous, index_of
from hloipu_runtime.kernels.native.settings import settings

Sizes = tuple[int, ...]

_MOST_LAID = 1 << 14
"""Elements of a result that is laid row-major: a copy takes numpy a microsecond, and what reads
small arrays is compiled, or adds up in another order, only where they lie so."""


@dataclass(frozen=True, slots=True)
class GatherDimensions:
    """The dimension numbers of a gather, as HLO text names them."""

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    index_vector_dim: int
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


def index_columns(
    indices: Array,
    index_vector_dim: int,
    index_map: Sequence[int],
    batching: Sequence[tuple[int, int]],
) -> tuple[tuple[int, ...], dict[int, Array]]:
    """Split an index array into one array of starts per operand dimension, in its own dtype.

    `batching` pairs an operand dimension with the dimension of `indices` that runs along it.
    Returns the batch shape and the starts, each of (or broadcasting to) the batch shape.
    """
    if index_vector_dim == indices.ndim:
        indices = indices[..., np.newaxis]
    others = (d for d in range(indices.ndim) if d != index_vector_dim)
    vectors = indices.transpose((*others, index_vector_dim))
    batch_shape = vectors.shape[:-1]
    starts: dict[int, Array] = {d: vectors[..., k] for k, d in enumerate(index_map)}
    for operand_dim, indices_dim in batching:
        axis = indices_dim - (indices_dim > index_vector_dim)
        along = [1] * len(batch_shape)
        along[axis] = batch_shape[axis]
        starts[operand_dim] = np.arange(batch_shape[axis]).reshape(along)
    return batch_shape, starts


def clamp_starts(starts: Array, limit: int) -> Array:
    """Clamp start indices of any integer dtype into [0, limit], as int64."""
    if starts.dtype.kind == "u":
        # In the index's own dtype: a huge u64 would turn negative as int64.
        top = min(limit, int(np.iinfo(starts.dtype).max))
        clamped: Array = np.minimum(starts, starts.dtype.type(top))
    else:
        clamped = np.minimum(np.maximum(starts, 0), limit, dtype=np.int64)
    return clamped.astype(np.int64, copy=False)


def gather(
    operand: Array, indices: Array, dims: GatherDimensions, slice_sizes: Sequence[int]
) -> Array:
    """Pick the slice of `slice_sizes` at each index vector; starts are clamped into bounds.

    The result's batch dimensions are those of `indices` without the index vector; the kept
    dimensions of the slice stand at `offset_dims`.
    """
    return gathering(operand.shape, indices.shape, dims, tuple(slice_sizes))(operand, indices)


@lru_cache(maxsize=4096)
def gathering(
    shape: Sizes, indices_shape: Sizes, dims: GatherDimensions, slice_sizes: Sizes
) -> Callable[[Array, Array], Array]:
    """Return `gather` for operands and indices of these shapes."""
    rank = len(shape)
    batching = tuple(zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True))
    indexed = {*dims.start_index_map, *dims.operand_batching_dims}
    # A dimension whose slice is whole can only start at 0: it needs no index.
    moving = [d for d in sorted(indexed) if shape[d] != slice_sizes[d]]
    still = [d for d in range(rank) if d not in moving]
    limits = {d: shape[d] - slice_sizes[d] for d in indexed}
    window_dims = [d for d in moving if slice_sizes[d] != 1] + still
    place = _placing(dims, window_dims, len(indices_shape), rank)
    trim = index_of(slice(None if d in moving else n) for d, n in enumerate(slice_sizes))
    anything = np.zeros(indices_shape, np.int64)
    batch_shape, starts = index_columns(
        anything, dims.index_vector_dim, dims.start_index_map, batching
    )
    along = {d: clamp_starts(starts[d], limits[d]) for d, _ in batching}
    at_of: dict[int, tuple[Any, ...]] = {
        d: (*(slice(None),) * dims.index_vector_dim, k, ...)
        if dims.index_vector_dim < len(indices_shape)
        else (...,)
        for k, d in enumerate(dims.start_index_map)
    }

    def general(operand: Array, indices: Array) -> Array:
        columns = [
            along[d] if d in along else clamp_starts(indices[at_of[d]], limits[d]) for d in moving
        ]
        return place(_pick(operand[trim], moving, still, columns, slice_sizes, batch_shape))

    singles = all(slice_sizes[d] == (1 if d in moving else shape[d]) for d in range(rank))
    leading = [d for d in (*moving, *still) if shape[d] != 1]
    if not moving or not singles or leading != sorted(leading) or 0 in shape:
        return general
    from hloipu_runtime.kernels.index_rows import index_rows

    rows = index_rows(
        indices_shape, dims.index_vector_dim, dims.start_index_map, batching, limits,
        [(d, shape[d]) for d in moving],
    )  # fmt: skip
    table_shape = (-1, *(shape[d] for d in still))
    clamped = rows.clamped
    apart = dims.index_vector_dim >= len(indices_shape) - 1 and not batching
    has_points = apart and all(shape[d] == 1 for d in still) and bool(rows.starts)
    bounds = tuple((x.limit + 1, x.pitch) for x in rows.starts)
    taken_shape = (*rows.batch, *(1 for _ in still))

    def by_rows(operand: Array, indices: Array) -> Array:
        if not operand.flags.c_contiguous:
            return general(operand, indices)
        if has_points and settings().compiles:
            from hloipu_runtime.kernels.native.points import take_points

            taken = take_points(operand, indices, bounds, taken_shape)
            if taken is not None:
                return place(taken)
        return place(operand.reshape(table_shape).take(clamped(indices), axis=0, mode="clip"))

    return by_rows


def _placing(
    dims: GatherDimensions, window_dims: Sequence[int], indices_rank: int, rank: int
) -> Callable[[Array], Array]:
    """Return what brings slices to the result's order of dimensions.

    They come batch first; `window_dims` are the operand's dimensions of the axes that follow.
    """
    batch_rank = indices_rank - (dims.index_vector_dim < indices_rank)
    dropped = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    kept = [d for d in range(rank) if d not in dropped]
    gone = tuple(batch_rank + i for i, d in enumerate(window_dims) if d in dropped)
    present = [d for d in window_dims if d not in dropped]
    single = [d for d in kept if d not in present]  # indexed, one long, but not collapsed
    new: tuple[Any, ...] = (..., *(np.newaxis for _ in single))
    order = _order([(present + single).index(d) for d in kept], batch_rank, dims.offset_dims)
    is_ordered = order == sorted(order)

    if not gone and not single and is_ordered:
        return np.asarray

    def place(picked: Array) -> Array:
        picked = np.asarray(picked)  # numpy takes single elements as numbers
        if gone:
            picked = picked.squeeze(gone)
        if single:
            picked = picked[new]
        if is_ordered:
            return picked
        moved = picked.transpose(order)
        return moved if moved.size > _MOST_LAID else np.ascontiguousarray(moved)

    return place


def _order(window: Sequence[int], batch_rank: int, offset_dims: Sequence[int]) -> list[int]:
    """Return the transposition that puts window axes, in operand order, at `offset_dims`."""
    order = [-1] * (batch_rank + len(window))
    for place, source in zip(offset_dims, window, strict=True):
        order[place] = batch_rank + source
    batch_axes = iter(range(batch_rank))
    return [next(batch_axes) if source < 0 else source for source in order]


def _pick(
    x: Array,
    moving: list[int],
    still: list[int],
    columns: list[Array],
    slice_sizes: Sequence[int],
    batch_shape: tuple[int, ...],
) -> Array:
    """Return the slices, batch first, then indexed dimensions that are long, then the others."""
    if not moving:
        return np.broadcast_to(x, (*batch_shape, *x.shape))
    sliding = [d for d in moving if slice_sizes[d] != 1]
    if len(moving) == 1 and not sliding:
        return _take_rows(x, moving[0], columns[0], batch_shape)
    order = (*moving, *still)
    view = x.transpose(order)
    if not sliding and view.size and view.flags.c_contiguous:
        rows = columns[0]
        for d, column in zip(moving[1:], columns[1:], strict=True):
            rows = rows * x.shape[d] + column
        table = view.reshape((-1, *(x.shape[d] for d in still)))
        return table.take(np.broadcast_to(rows, batch_shape), axis=0, mode="clip")
    # Numbers would give a view.
    columns = [
        np.asarray(c) if c.shape == batch_shape else np.broadcast_to(c, batch_shape)
        for c in columns
    ]
    if not sliding:
        return np.asarray(view[tuple(columns)])
    windows = as_strided(
        view,
        (
            *(x.shape[d] - slice_sizes[d] + 1 for d in moving),
            *(slice_sizes[d] for d in sliding),
            *(x.shape[d] for d in still),
        ),
        (
            *(x.strides[d] for d in moving),
            *(x.strides[d] for d in sliding),
            *(x.strides[d] for d in still),
        ),
        writeable=False,
    )
    return windows[tuple(columns)]


def _take_rows(x: Array, axis: int, column: Array, batch_shape: tuple[int, ...]) -> Array:
    """Take single positions along one axis; batch dimensions come first in the result."""
    if column.shape != batch_shape:
        column = np.broadcast_to(column, batch_shape)
    is_few = column.size * 4 < x.shape[axis]
    if axis == 0 and (x.flags.c_contiguous or not is_few):
        return contiguous(x).take(column, axis=0, mode="clip")
    if is_few:
        # Indexing the strided view touches only what is asked for.
        return np.moveaxis(x, axis, 0)[column]
    taken = np.take(x, column, axis=axis, mode="clip")
    batch_axes = range(axis, axis + len(batch_shape))
    return np.moveaxis(taken, tuple(batch_axes), tuple(range(len(batch_shape))))
