"""Target rows of scattered updates, from integer indices of any type."""

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

    def flat(self, first: int = 0) -> Array:
        """Return them as rows of the whole table, int64; -1 of those that name none.

        `first` is the first row of the first group.
        """
        is_inside = inside(self.numbers, self.rows - 1)
        flat = self.numbers.astype(np.int64)
        if self.group < flat.size:
            grouped = flat.reshape(-1, self.group)
            grouped += np.arange(len(grouped))[:, np.newaxis] * self.rows
        if first:
            flat += first
        if not is_inside.all():
            flat[~is_inside] = -1
        return flat

    def pieces(self, most: int) -> Iterator[tuple[slice, Array]]:
        """Yield pieces of about so many numbers: which they are, and `flat` of them."""
        groups = max(1, most // self.group)
        span = groups * self.group
        for begin in range(0, self.numbers.size, span):
            end = min(begin + span, self.numbers.size)
            step = most if groups == 1 else span
            for start in range(begin, end, step):
                piece = slice(start, min(start + step, end))
                part = self._replace(numbers=self.numbers[piece])
                yield piece, part.flat(begin // self.group * self.rows)


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
