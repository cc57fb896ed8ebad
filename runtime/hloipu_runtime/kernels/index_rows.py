"""Converts index vectors to row numbers of a table.

What sizes and dimension numbers decide is decided once: how each start stands in the index array,
its bounds, what one step of it is in rows, and what batching dimensions add.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.blocks import Array

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

    def clamped(self, indices: Array) -> Array:
        """Return the row of each vector, starts clamped to their bounds first; int64."""
        rows = self.base
        for at, limit, pitch in self.starts:
            if not pitch:
                continue
            column = indices.reshape(self.batch) if at is None else indices[at]
            column = _clamped(column, limit)
            if pitch != 1:
                column = np.multiply(column, pitch)
            rows = column if rows is None else np.add(rows, column)
        return np.zeros(self.batch, np.int64) if rows is None else rows

    def checked(self, indices: Array) -> tuple[Array, Array | None]:
        """Return the row of each vector, int64, and which are within bounds; None: all are.

        Rows of those that are not mean nothing.
        """
        rows, valid = self.base, None
        for at, limit, pitch in self.starts:
            column = indices.reshape(self.batch) if at is None else indices[at]
            inside = _inside(column, limit)
            if np.count_nonzero(inside) != inside.size:
                valid = inside if valid is None else np.logical_and(valid, inside)
            if not pitch:
                continue
            column = column.astype(np.int64)
            if pitch != 1:
                column = np.multiply(column, pitch)
            rows = column if rows is None else np.add(rows, column)
        return (np.zeros(self.batch, np.int64) if rows is None else rows), valid


def _clamped(column: Array, limit: int) -> Array:
    """Clamp starts of any integer type into [0, limit], as int64."""
    if column.dtype.kind == "u":
        # In the index's own dtype: a huge u64 would turn negative as int64.
        return np.asarray(np.minimum(column, _top(limit, column.dtype))).astype(np.int64)
    wide = np.asarray(column).astype(np.int64)
    np.maximum(wide, _ZERO, out=wide)
    np.minimum(wide, _number(limit), out=wide)
    return wide


def _inside(column: Array, limit: int) -> Array:
    """Mark starts in [0, limit]: one unsigned comparison refuses negative ones too."""
    if limit < 0:
        return np.zeros(column.shape, np.bool_)
    top = _top(limit, column.dtype)
    return np.asarray(np.less_equal(column.view(top.dtype), top))


@lru_cache(maxsize=4096)
def _top(limit: int, dtype: np.dtype[Any]) -> Array:
    """Return a limit, or the largest start of a type if that is less, as an unsigned number."""
    return np.array(min(limit, int(np.iinfo(dtype).max)), f"u{dtype.itemsize}")


_number = lru_cache(maxsize=4096)(np.array)
_ZERO = np.array(0)


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
    return IndexRows(starts, batch, base)
