"""Which requests conflict: those that are live at one point on one tile."""

from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.memory.requests import Requests, live_rows
from hloipu_runtime.memory.tile_classes import TileClasses

Numbers = NDArray[np.int64]
Marks = NDArray[np.bool_]
MOST_RANGES = 64
"""A request with more ranges is taken to be live in between."""
MOST_GRIDS = 4096
"""Of so many grids it is remembered which have tiles in common: 16 MB."""
MOST_KEPT = 1 << 22
"""Conflicts that are remembered: 32 MB."""


class Conflicts:
    """The conflicts of each request, found when they are asked for, and remembered while few.

    Finding those of one request takes time in proportion to the number of ranges, looking them up
    again in proportion to their own.
    """

    def __init__(self, requests: Requests, classes: TileClasses) -> None:
        ranges = [
            some if len(some) <= MOST_RANGES else ((some[0][0], some[-1][1]),)
            for some in requests.ranges
        ]
        self.rows = live_rows(ranges)
        first, self._last, self._owner = self.rows
        self._first = first.tolist()
        self._after = np.searchsorted(first, self._last, side="right").tolist()
        """Of each range, the next one that begins when it has ended."""
        self._grid_of_row = requests.grid[self._owner]
        self._grid = requests.grid.tolist()
        by_owner = np.argsort(self._owner, kind="stable").tolist()
        ends = [0, *accumulate(len(some) for some in ranges)]
        self._rows_of = [by_owner[low:high] for low, high in pairwise(ends)]
        marks = np.zeros((len(requests.grids), -(-classes.count // 64) * 64), np.bool_)
        for row, grid in zip(marks[:, : classes.count], requests.grids, strict=True):
            row[classes.members[grid]] = True
        self._marks = np.packbits(marks, axis=1).view(np.uint64)
        self._meeting: dict[int, Marks] = {}
        self._kept: dict[int, Numbers] = {}
        self._room = MOST_KEPT

    def of(self, number: int) -> Numbers:
        """Return the requests that conflict with one, itself among them."""
        found = self._kept.get(number)
        if found is None:
            found = self._found(number)
            self._room -= len(found)
            if self._room >= 0:
                self._kept[number] = found
        return found

    def _found(self, number: int) -> Numbers:
        grid = self._grid[number]
        parts = []
        for row in self._rows_of[number]:
            near = (self._last[: self._after[row]] >= self._first[row]).nonzero()[0]
            parts.append(self._owner[near[self._meets(grid, self._grid_of_row[near])]])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _meets(self, grid: int, others: Numbers) -> Marks:
        """Return which of other grids have a tile in common with a grid."""
        if len(self._marks) > MOST_GRIDS:
            here: Marks = (self._marks[others] & self._marks[grid]).any(axis=1)
            return here
        found = self._meeting.get(grid)
        if found is None:
            found = self._meeting[grid] = (self._marks & self._marks[grid]).any(axis=1)
        return found[others]
