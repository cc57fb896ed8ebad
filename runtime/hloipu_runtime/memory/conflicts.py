"""Conflicting requests: live at one point on one tile."""

from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.memory.requests import Requests, live_rows
from hloipu_runtime.memory.tile_classes import TileClasses

Numbers = NDArray[np.int64]
Marks = NDArray[np.bool_]
MOST_GRIDS = 4096
"""Of so many grids it is remembered which have tiles in common: 16 MB."""
MOST_KEPT = 1 << 22
"""Conflicts that are remembered: 32 MB."""


class Conflicts:
    """The conflicts of each request, found when they are asked for, and remembered while few.

    Finding those of one request takes time in proportion to all ranges, looking them up again in
    proportion to its own.
    """

    def __init__(self, requests: Requests, classes: TileClasses) -> None:
        self.rows = live_rows(requests.ranges)
        first, last, self._owner = self.rows
        starts, self._begin = np.unique(first, return_inverse=True)
        self._end = np.searchsorted(starts, last, side="right")
        """Ranges by points at which one begins, from one to before another; two that overlap have
        such a point in common."""
        self._begins = self._begin.tolist()
        self._after = np.searchsorted(first, last, side="right").tolist()
        """Of each range, the next one that begins when it has ended."""
        self._points = len(starts)
        self._grid = requests.grid
        self._has_holes = len(first) > len(requests)
        by_owner = np.argsort(self._owner, kind="stable").tolist()
        ends = [0, *accumulate(len(request_ranges) for request_ranges in requests.ranges)]
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
        conflicting = self._kept.get(number)
        if conflicting is None:
            conflicting = self._found(number)
            self._room -= len(conflicting)
            if self._room >= 0:
                self._kept[number] = conflicting
        return conflicting

    def _found(self, number: int) -> Numbers:
        rows = self._rows_of[number]
        if len(rows) == 1:
            overlap = self._end[: self._after[rows[0]]] > self._begins[rows[0]]
        else:
            overlap = self._overlapping(rows)
        near = self._owner[overlap.nonzero()[0]]
        if self._has_holes:
            once = np.zeros(len(self._grid), np.bool_)
            once[near] = True
            near = once.nonzero()[0]
        conflicting: Numbers = near[self._meets(int(self._grid[number]), self._grid[near])]
        return conflicting

    def _overlapping(self, rows: list[int]) -> Marks:
        live = np.zeros(self._points + 1, np.int64)
        np.add.at(live, self._begin[rows], 1)
        np.add.at(live, self._end[rows], -1)
        before = np.zeros(self._points + 1, np.int64)
        live[:-1].cumsum().cumsum(out=before[1:])
        overlapping: Marks = before[self._end] > before[self._begin]
        return overlapping

    def _meets(self, grid: int, other_grids: Numbers) -> Marks:
        """Return which of other grids have a tile in common with a grid."""
        if len(self._marks) > MOST_GRIDS:
            has_common_tile: Marks = (self._marks[other_grids] & self._marks[grid]).any(axis=1)
            return has_common_tile
        meeting = self._meeting.get(grid)
        if meeting is None:
            meeting = self._meeting[grid] = (self._marks & self._marks[grid]).any(axis=1)
        return meeting[other_grids]
