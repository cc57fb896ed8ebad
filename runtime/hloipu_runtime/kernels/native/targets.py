"""Rows of a table that updates go to, named by integers of any type."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Targets(NamedTuple):
    """Rows of a table, named one after another."""

    numbers: Array
    """Integers, flat; those that are no row's, negative ones too, name none."""
    rows: int
    """Of a group."""
    group: int
    """How many numbers name rows of the first group, then of the second, …"""

    def flat(self) -> Array:
        """Return them as rows of the whole table, int64; -1 of those that name none."""
        is_inside = inside(self.numbers, self.rows - 1)
        flat = self.numbers.astype(np.int64)
        if self.group < flat.size:
            grouped = flat.reshape(-1, self.group)
            grouped += np.arange(len(grouped))[:, np.newaxis] * self.rows
        if not is_inside.all():
            flat[~is_inside] = -1
        return flat

    def pieces(self, most: int) -> Iterator[tuple[slice, slice, Array, Array | None]]:
        """Yield pieces of at most so many numbers: which they are, the rows of their group.

        Then the numbers as int64, and which of the piece name rows; None: all.
        """
        for begin in range(0, self.numbers.size, self.group):
            first = begin // self.group * self.rows
            for start in range(begin, begin + self.group, most):
                piece = slice(start, min(start + most, begin + self.group))
                numbers = self.numbers[piece]
                is_inside = inside(numbers, self.rows - 1)
                kept = None if is_inside.all() else np.flatnonzero(is_inside)
                at = numbers if kept is None else numbers[kept]
                yield piece, slice(first, first + self.rows), at.astype(np.int64), kept


def inside(column: Array, limit: int) -> Array:
    """Mark starts in [0, limit]: one unsigned comparison refuses negative ones too."""
    if limit < 0:
        return np.zeros(column.shape, np.bool_)
    most = top(limit, column.dtype)
    return np.asarray(np.less_equal(column.view(most.dtype), most))


@lru_cache(maxsize=4096)
def top(limit: int, dtype: np.dtype[Any]) -> Array:
    """Return a limit, or the largest start of a type if that is less, as an unsigned number."""
    return np.array(min(limit, int(np.iinfo(dtype).max)), f"u{dtype.itemsize}")
