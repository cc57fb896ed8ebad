"""Converts index vectors to row numbers of a table.

What sizes and dimension numbers decide is decided once: how each start stands in the index array,
its bounds, what one step of it is in rows, and what batching dimensions add.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.native.targets import Targets, inside, top

Sizes = tuple[int, ...]


class Start(NamedTuple):
    """One start of each index vector."""

    at: tuple[Any, ...] | None
    """Where the starts stand among the indices; None: they are all of these."""
    limit: int
    """The largest start within bounds; negative: there is none."""
    pitch: int
    """Rows from one start to the next; 0: rows are not numbered by it."""


@dataclass(frozen=True, slots=True, eq=False)
class IndexRows:
    """How index arrays of one shape name rows; `index_rows` makes it."""

    starts: tuple[Start, ...]
    batch: Sizes
    """The shape of the row numbers."""
    base: Array | None
    """What batching dimensions add, of the batch shape."""
    most: int
    """The last row."""

    group: int = 0
    """So many indices are row numbers as they are, within rows of their own; 0: they are not."""

    def clamped(self, indices: Array) -> Array:
        """Return the row of each vector, starts clamped to their bounds first.

        Where one start is the row, it is left to whoever takes rows to clamp it.
        """
        rows, narrow = self.base, self.most < 1 << 31 and indices.dtype == np.int32
        for at, limit, pitch in self.starts:
            if not pitch:
                continue
            column = indices.reshape(self.batch) if at is None else indices[at]
            if limit == self.most and self.base is None and indices.dtype.kind == "i":
                return column
            column = _clamped(column, limit, np.int32 if narrow else np.int64)
            if pitch != 1:
                np.multiply(column, pitch, out=column)
            rows = column if rows is None else np.add(rows, column)
        return np.zeros(self.batch, np.int64) if rows is None else rows

    def targets(self, indices: Array) -> Targets:
        """Return the row of each vector; those out of bounds are no row's."""
        if self.group and indices.itemsize >= 4:
            return Targets(indices.reshape(-1), self.starts[0].limit + 1, self.group)
        rows, valid = self.checked(indices)
        if valid is not None:
            rows = np.where(valid, rows, -1)
        return Targets(rows.reshape(-1), self.most + 1, rows.size)

    def checked(self, indices: Array) -> tuple[Array, Array | None]:
        """Return the row of each vector, and which are within bounds; None: all are.

        Rows of those that are not mean nothing.
        """
        rows, valid = self.base, None
        short = rows is None and self.most < 1 << 31 and indices.dtype == np.int32
        dtype = np.int32 if short else np.int64
        for at, limit, pitch in self.starts:
            column = indices.reshape(self.batch) if at is None else indices[at]
            is_inside = inside(column, limit)
            if not is_inside.all():
                valid = is_inside if valid is None else np.logical_and(valid, is_inside)
            if not pitch:
                continue
            if pitch != 1:
                column = np.multiply(column, pitch, dtype=dtype, casting="unsafe")
            elif rows is None:
                column = column.astype(dtype)
            rows = column if rows is None else np.add(rows, column, dtype=dtype, casting="unsafe")
        return (np.zeros(self.batch, np.int64) if rows is None else rows), valid


def _clamped(column: Array, limit: int, dtype: type[np.signedinteger[Any]]) -> Array:
    """Clamp starts of any integer type into [0, limit], as signed integers."""
    if column.dtype.kind == "u":
        # In the index's own dtype: a huge u64 would turn negative as int64.
        return np.asarray(np.minimum(column, top(limit, column.dtype))).astype(dtype)
    inside = np.asarray(np.maximum(column, dtype(0), dtype=dtype))
    return np.asarray(np.minimum(inside, dtype(limit), out=inside if inside.ndim else None))


def index_rows(
    indices: Sizes,
    vector_dim: int,
    index_map: Sequence[int],
    batching: Sequence[tuple[int, int]],
    limits: Mapping[int, int],
    rows: Sequence[tuple[int, int]],
) -> IndexRows:
    """Return how indices of a shape name rows.

    `vector_dim` is the dimension of `indices` that holds the vectors, or its rank; `index_map` the
    table's dimension of each of their elements; `batching` pairs such dimensions with those of
    `indices` that run along them. `limits` are the largest starts. `rows` are the table's
    dimensions that rows are numbered by, and their sizes; starts in others are 0 or do not count.
    """
    batch = tuple(n for d, n in enumerate(indices) if d != vector_dim)
    pitches = {d: prod(n for _, n in rows[k + 1 :]) for k, (d, _) in enumerate(rows)}
    alone = vector_dim == len(indices) or indices[vector_dim] == 1
    before = (slice(None),) * vector_dim
    starts = tuple(
        Start(None if alone else (*before, k, ...), limits[d], pitches.get(d, 0))
        for k, d in enumerate(index_map)
    )
    base: Array | None = None
    for d, axis in batching:
        if d in pitches:
            place = axis - (axis > vector_dim)
            along = [1] * len(batch)
            along[place] = batch[place]
            counts = np.arange(batch[place]).reshape(along) * pitches[d]
            base = counts if base is None else base + counts
    if base is not None:
        base = np.ascontiguousarray(np.broadcast_to(base, batch))
    most = prod(n for _, n in rows) - 1
    return IndexRows(starts, batch, base, most, _group_of(starts, base, most, prod(batch)))


LARGE_GROUP = 256
"""Indices of a group from which on it pays to go group by group."""


def _group_of(starts: Sequence[Start], base: Array | None, most: int, count: int) -> int:
    """Return `IndexRows.group`."""
    if most < 0 or not count or len(starts) != 1:
        return 0
    if starts[0].at is not None or starts[0].pitch != 1:
        return 0
    rows = starts[0].limit + 1
    if base is None:
        return count if starts[0].limit == most else 0
    groups = (most + 1) // max(rows, 1)
    if groups * rows != most + 1 or count % groups or count // groups < LARGE_GROUP:
        return 0
    in_order = np.repeat(np.arange(groups) * rows, count // groups)
    return count // groups if np.array_equal(in_order, base.reshape(-1)) else 0
