"""Allocation of always-live variables, and grids that share tiles."""

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.memory.requests import Request
from hloipu_runtime.memory.tile_classes import TileClasses
from hloipu_runtime.program.mapping import Tiles

Numbers = NDArray[np.int64]
Marks = NDArray[np.bool_]
MOST_EXACT = 256
"""With more grids, two of them are taken to share tiles if they do so from end to end."""


class Ground:
    """Variables that are always live, below all others; and which grids share tiles."""

    def __init__(self, classes: TileClasses, grids: list[Tiles]) -> None:
        self.number_of = {grid: n for n, grid in enumerate(dict.fromkeys(grids))}
        self.members = [classes.members[grid] for grid in self.number_of]
        self.is_exact = len(self.members) <= MOST_EXACT
        self.marks = np.zeros((len(self.members) if self.is_exact else 0, classes.count), np.bool_)
        for row, members in zip(self.marks, self.members, strict=False):
            row[members] = True
        ends = [_ends(members) for members in self.members]
        self.first, self.last = np.array(ends, np.int64).reshape(-1, 2).T
        self.meeting: dict[int, Marks] = {}
        self.gaps: dict[int, tuple[Numbers, Numbers]] = {}

    def meets(self, grid: int) -> Marks:
        """Return which grids share a tile with a grid; with very many, which may."""
        if not self.is_exact:
            near: Marks = (self.first <= self.last[grid]) & (self.last >= self.first[grid])
            return near
        found = self.meeting.get(grid)
        if found is None:
            exact: Marks = np.any(self.marks[:, self.members[grid]], axis=1)
            found = self.meeting[grid] = exact
        return found

    def lay(self, always: list[int], requests: list[Request], addresses: list[int]) -> None:
        """Place what is always live."""
        count = len(always)
        low, high, grids = (np.zeros(count, np.int64) for _ in range(3))
        for placed, number in enumerate(always):
            size, grid = requests[number].size, self.number_of[requests[number].grid]
            taken = self.meets(grid)[grids[:placed]]
            address = lowest(low[:placed][taken], high[:placed][taken], size)
            addresses[number] = address
            low[placed], high[placed], grids[placed] = address, address + size, grid
        self.low, self.high, self.grids = low, high, grids

    def top(self) -> int:
        """Return the first address that is above all of it, on all tiles."""
        return int(self.high.max(initial=0))

    def taken(self, grid: int) -> tuple[Numbers, Numbers]:
        """Return where memory is taken always on any tile of a grid, from below, in few blocks."""
        found = self.gaps.get(grid)
        if found is None:
            here = self.meets(grid)[self.grids]
            low, high = self.low[here], self.high[here]
            order = np.argsort(low, kind="stable")
            low = np.concatenate([[0], low[order]])
            high = np.maximum.accumulate(np.concatenate([[0], high[order]]))
            starts = np.concatenate([[True], low[1:] > high[:-1]])
            ends = np.concatenate([starts[1:], [True]])
            found = self.gaps[grid] = (low[starts], high[ends])
        return found


def _ends(members: slice | Numbers) -> tuple[int, int]:
    """Return the first and the last class of a grid."""
    if isinstance(members, slice):
        return members.start, members.stop - 1
    return int(members[0]), int(members[-1])


def lowest(low: Numbers, high: Numbers, size: int) -> int:
    """Return the lowest address with `size` bytes free of some blocks."""
    if not len(low):
        return 0
    order = low.argsort()
    tops = np.maximum.accumulate(high[order])
    low = low[order]
    if low[0] >= size:
        return 0
    free = low[1:] - tops[:-1] >= size
    where = int(free.argmax()) if len(free) else 0
    if len(free) and free[where]:
        return int(tops[where])
    return int(tops[-1])


def lowest_of_several(low: Numbers, high: Numbers, size: int, count: int) -> list[int]:
    """Return the lowest addresses for `count` equal things, as `lowest` would one by one."""
    if not size:
        return [lowest(low, high, size)] * count
    order = low.argsort()
    starts = np.concatenate([[0], np.maximum.accumulate(high[order])])
    found: list[int] = []
    rooms = np.maximum(low[order] - starts[:-1], 0) // size
    for gap in rooms.nonzero()[0].tolist():
        start, room = int(starts[gap]), int(rooms[gap])
        found += range(start, start + size * min(room, count - len(found)), size)
        if len(found) == count:
            return found
    top = int(starts[-1])
    return [*found, *range(top, top + size * (count - len(found)), size)]
