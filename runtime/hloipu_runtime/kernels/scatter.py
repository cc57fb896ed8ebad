"""The general scatter: windows of updates combined into operands, duplicates in index order."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from hloipu_runtime.kernels.blocks import Array
from hloipu_runtime.kernels.gather import index_columns
from hloipu_runtime.kernels.monoids import Combiner
from hloipu_runtime.kernels.movement import contiguous, index_of
from hloipu_runtime.kernels.scatter_rows import combine_rows, combine_window

FEW_WINDOWS = 8
"""So few windows are combined one by one: no target has to be computed or sorted."""

LARGE_WINDOW_ELEMENTS = 2048
"""Windows so large that one call for each costs less than indexing their elements."""


@dataclass(frozen=True, slots=True)
class ScatterDimensions:
    """The dimension numbers of a scatter, as HLO text names them."""

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    index_vector_dim: int
    input_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()


def scatter(
    operands: Sequence[Array],
    indices: Array,
    updates: Sequence[Array],
    dims: ScatterDimensions,
    combiner: Combiner | str,
    element_types: Sequence[str],
    *,
    unique_indices: bool = False,
    in_place: bool = False,
) -> list[Array]:
    """Combine each window of `updates` into the operands at its index vector.

    A window any part of which is out of bounds is skipped. Windows that meet are combined one
    after another in row-major order of their indices. `combiner` is a monoid's name, `"assign"`
    (the update replaces), or a region on (operands.., updates..). With `in_place` the operands
    themselves are changed where their layout allows: for callers who know them to be dead.
    """
    shape = operands[0].shape
    window_shape = _window_shape(shape, updates[0].shape, dims)
    batch_shape, starts = _starts(shape, window_shape, indices, dims)
    moving = [d for d in sorted(starts) if window_shape[d] != shape[d]]
    still = [d for d in range(len(shape)) if d not in moving]
    count = prod(batch_shape)
    columns = {d: np.broadcast_to(s, batch_shape).reshape(-1) for d, s in starts.items()}
    valid = _valid(columns, shape, window_shape, count)
    windows = [_windows_first(u, dims, window_shape, count) for u in updates]

    if count <= FEW_WINDOWS or prod(window_shape) >= LARGE_WINDOW_ELEMENTS:
        out = _owned(operands, in_place)
        for number in np.flatnonzero(valid).tolist():
            corner = [int(columns[d][number]) if d in columns else 0 for d in range(len(shape))]
            at = index_of(slice(s, s + n) for s, n in zip(corner, window_shape, strict=True))
            combine_window(
                [o[at] for o in out], [w[number] for w in windows], combiner, element_types
            )
        return out
    order = (*moving, *still)
    tables = [np.transpose(o, order) for o in operands]
    tables = _owned(tables, in_place and all(t.flags.c_contiguous for t in tables))
    targets, rows = _flat_rows(columns, windows, moving, still, shape, window_shape, valid)
    row_shape = tuple(shape[d] for d in still)
    flat = [t.reshape(-1, prod(row_shape)) for t in tables]
    combine_rows(flat, targets, rows, combiner, element_types, unique_indices)
    return [t.transpose(np.argsort(order)) for t in tables]


def _owned(arrays: Sequence[Array], in_place: bool) -> list[Array]:
    """Return arrays that may be written: the operands themselves, or row-major copies."""
    if in_place and all(a.flags.writeable for a in arrays):
        return list(arrays)
    fresh = [(a, contiguous(a)) for a in arrays]
    return [a.copy() if b is a else b for a, b in fresh]


def _window_shape(
    shape: tuple[int, ...], update_shape: tuple[int, ...], dims: ScatterDimensions
) -> tuple[int, ...]:
    """Return the window's size along every operand dimension, 1 where it has none."""
    sizes = iter(update_shape[d] for d in dims.update_window_dims)
    absent = {*dims.inserted_window_dims, *dims.input_batching_dims}
    return tuple(1 if d in absent else next(sizes) for d in range(len(shape)))


def _starts(
    shape: tuple[int, ...],
    window_shape: tuple[int, ...],
    indices: Array,
    dims: ScatterDimensions,
) -> tuple[tuple[int, ...], dict[int, Array]]:
    """Return the batch shape and int64 starts by operand dimension; -1 stands for any too large."""
    batching = tuple(zip(dims.input_batching_dims, dims.scatter_indices_batching_dims, strict=True))
    batch_shape, starts = index_columns(
        indices, dims.index_vector_dim, dims.scatter_dims_to_operand_dims, batching
    )
    for d, column in starts.items():
        wide = column.astype(np.int64)
        if column.dtype == np.uint64:
            wide[column > np.uint64(np.iinfo(np.int64).max)] = -1
        starts[d] = wide
    for d, size in enumerate(window_shape):
        if size != shape[d] and d not in starts:
            starts[d] = np.zeros((1,) * len(batch_shape), np.int64)
    return batch_shape, starts


def _valid(
    columns: dict[int, Array], shape: Sequence[int], window_shape: Sequence[int], count: int
) -> Array:
    """Mark the windows that lie wholly inside the operand."""
    valid = np.ones(count, bool)
    for d, column in columns.items():
        # One unsigned comparison refuses negative starts too.
        limit = shape[d] - window_shape[d]
        valid &= column.view(np.uint64) <= np.uint64(limit) if limit >= 0 else False
    return valid


def _windows_first(
    update: Array, dims: ScatterDimensions, window_shape: tuple[int, ...], count: int
) -> Array:
    """Bring an update to (window number, the operand's dimensions)."""
    window_axes = dims.update_window_dims
    batch_axes = [d for d in range(update.ndim) if d not in window_axes]
    moved = update.transpose((*batch_axes, *window_axes))
    if not moved.flags.c_contiguous:
        moved = contiguous(moved)
    return moved.reshape(count, *window_shape)


def _flat_rows(
    columns: dict[int, Array],
    windows: Sequence[Array],
    moving: Sequence[int],
    still: Sequence[int],
    shape: tuple[int, ...],
    window_shape: tuple[int, ...],
    valid: Array,
) -> tuple[Array, list[Array]]:
    """Turn windows into rows over the still dimensions and each row's target in the moving ones."""
    every = bool(valid.all())
    picked = [w if every else w[valid] for w in windows]
    count = picked[0].shape[0]
    targets = np.zeros((count, *(1 for _ in moving)), np.int64)
    pitch = 1
    for position in range(len(moving) - 1, -1, -1):
        d = moving[position]
        column = columns[d] if every else columns[d][valid]
        places = column.reshape(-1, *(1 for _ in moving))
        if window_shape[d] != 1:
            along = [1] * (len(moving) + 1)
            along[position + 1] = window_shape[d]
            places = places + np.arange(window_shape[d]).reshape(along)
        targets = targets + places * pitch
        pitch *= shape[d]
    row_size = prod(window_shape[d] for d in still)
    axes = (0, *(1 + d for d in moving), *(1 + d for d in still))
    rows = [p.transpose(axes).reshape(-1, row_size) for p in picked]
    return targets.reshape(-1), rows
