"""Addresses: no two things that take memory at the same time on the same tile overlap.

A variable has one address on all its tiles. Finding the least memory is hard in general (dynamic
storage allocation: Garey and Johnson, Computers and Intractability, SR2). Two rules serve: largest
first, each at the lowest address that is free over all its time (as XLA's and TFLite's planners
do; within 2 % of what is live at once on drawn programs), and first needed first, each in the
tightest gap.
"""

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.memory.liveness import Ranges
from hloipu_runtime.memory.tile_classes import TileClasses
from hloipu_runtime.program.mapping import Tiles

Numbers = NDArray[np.int64]
Marks = NDArray[np.bool_]
MOST_SORTED_BY_SIZE = 20_000
"""More requests than this are placed by time alone, in a time that grows with what is live."""
_MOST_RANGES = 64
"""A request with more ranges is taken to be live in between."""


class Request(NamedTuple):
    """Memory that one variable asks for on every tile of its grid."""

    size: int
    """In bytes, a multiple of the allocation grain."""
    grid: Tiles
    ranges: Ranges


def place(
    requests: list[Request], points: int, classes: TileClasses, floor: Numbers, most_bytes: int
) -> list[int]:
    """Return the address of each request, those of always live ones below the others where it pays.

    `floor` is the first free byte on each class of tiles. Up to `most_bytes` there is no need to
    look for a better way.
    """
    ground = _Ground(classes, floor, [request.grid for request in requests])
    addresses = [0] * len(requests)
    always = [n for n, r in enumerate(requests) if r.ranges == ((0, points - 1),)]
    always.sort(key=lambda n: (-requests[n].grid.count, -requests[n].size, n))
    ground.lay(always, requests, addresses)
    fixed = set(always)
    passing = [n for n in range(len(requests)) if n not in fixed]
    rules = (_by_size, _by_time) if len(passing) <= MOST_SORTED_BY_SIZE else (_by_time,)
    least = -1
    for rule in rules:
        found = rule(passing, requests, ground)
        top = max((a + requests[n].size for a, n in zip(found, passing, strict=True)), default=0)
        if least < 0 or top < least:
            least = top
            for number, address in zip(passing, found, strict=True):
                addresses[number] = address
        if least <= most_bytes:
            break
    return addresses


class _Ground:
    """What never moves: code and variables that are always live; and which grids share tiles."""

    def __init__(self, classes: TileClasses, floor: Numbers, grids: list[Tiles]) -> None:
        self.number_of = {grid: n for n, grid in enumerate(dict.fromkeys(grids))}
        self.members = [classes.members[grid] for grid in self.number_of]
        self.floors = [int(floor[classes_of_grid].max()) for classes_of_grid in self.members]
        self.classes = classes.count
        self.blocks: list[tuple[int, int, int]] = []
        self.meeting: dict[int, Marks] = {}
        self.gaps: dict[int, tuple[Numbers, Numbers]] = {}

    def meets(self, grid: int) -> Marks:
        """Return which grids share a tile with a grid."""
        found = self.meeting.get(grid)
        if found is None:
            marks = np.zeros(self.classes, np.bool_)
            marks[self.members[grid]] = True
            found = np.fromiter((bool(marks[members].any()) for members in self.members), np.bool_)
            self.meeting[grid] = found
        return found

    def lay(self, always: list[int], requests: list[Request], addresses: list[int]) -> None:
        """Place what is always live."""
        count = len(always)
        low, high, grids = (np.zeros(count, np.int64) for _ in range(3))
        for placed, number in enumerate(always):
            size, grid = requests[number].size, self.number_of[requests[number].grid]
            taken = self.meets(grid)[grids[:placed]]
            address = _lowest(low[:placed][taken], high[:placed][taken], size, self.floors[grid])
            addresses[number] = address
            low[placed], high[placed], grids[placed] = address, address + size, grid
        self.low, self.high, self.grids = low, high, grids

    def taken(self, grid: int) -> tuple[Numbers, Numbers]:
        """Return where memory is taken always on any tile of a grid, from below, in few blocks."""
        found = self.gaps.get(grid)
        if found is None:
            here = self.meets(grid)[self.grids]
            low, high = self.low[here], self.high[here]
            order = np.argsort(low, kind="stable")
            low = np.concatenate([[0], low[order]])
            high = np.maximum.accumulate(np.concatenate([[self.floors[grid]], high[order]]))
            starts = np.concatenate([[True], low[1:] > high[:-1]])
            ends = np.concatenate([starts[1:], [True]])
            found = self.gaps[grid] = (low[starts], high[ends])
        return found


def _lowest(low: Numbers, high: Numbers, size: int, floor: int) -> int:
    """Return the lowest address from `floor` up with `size` bytes free of some blocks."""
    if not len(low):
        return floor
    order = low.argsort()
    tops = np.maximum.accumulate(high[order])
    np.maximum(tops, floor, out=tops)
    low = low[order]
    if low[0] - floor >= size:
        return floor
    free = low[1:] - tops[:-1] >= size
    where = int(free.argmax()) if len(free) else 0
    if len(free) and free[where]:
        return int(tops[where])
    return int(tops[-1])


def _tightest(low: Numbers, high: Numbers, size: int) -> int:
    """Return the address of the smallest gap of `size` bytes or more between blocks from 0 up."""
    order = low.argsort()
    tops = np.maximum.accumulate(high[order])
    gaps = low[order][1:] - tops[:-1]
    gaps[gaps < size] = _HUGE
    where = int(gaps.argmin()) if len(gaps) else 0
    if len(gaps) and gaps[where] < _HUGE:
        return int(tops[where])
    return int(tops[-1])


_HUGE = 1 << 62


def _hull(ranges: Ranges) -> Ranges:
    return ranges if len(ranges) <= _MOST_RANGES else ((ranges[0][0], ranges[-1][1]),)


def _by_size(passing: list[int], requests: list[Request], ground: _Ground) -> list[int]:
    """Largest first, each at the lowest address that is free over all its points."""
    order = sorted(
        range(len(passing)),
        key=lambda n: (-requests[passing[n]].size, -requests[passing[n]].grid.count, n),
    )
    rows = sum(len(_hull(requests[n].ranges)) for n in passing)
    first, last, low, high, grids = (np.zeros(rows, np.int64) for _ in range(5))
    addresses = [0] * len(passing)
    row = 0
    for n in order:
        size, tiles, ranges = requests[passing[n]]
        ranges = _hull(ranges)
        grid = ground.number_of[tiles]
        taken = np.zeros(row, np.bool_)
        for begin, end in ranges:
            taken |= (first[:row] <= end) & (last[:row] >= begin)
        found = taken.nonzero()[0]
        found = found[ground.meets(grid)[grids[found]]]
        bottom_low, bottom_high = ground.taken(grid)
        address = _lowest(
            np.concatenate([bottom_low, low[found]]),
            np.concatenate([bottom_high, high[found]]),
            size,
            0,
        )
        addresses[n] = address
        for begin, end in ranges:
            first[row], last[row], low[row], high[row] = begin, end, address, address + size
            grids[row] = grid
            row += 1
    return addresses


def _by_time(passing: list[int], requests: list[Request], ground: _Ground) -> list[int]:
    """First needed first, each in the tightest gap between what is live; holes in time count."""
    hulls = [(requests[n].ranges[0][0], requests[n].ranges[-1][1]) for n in passing]
    order = sorted(range(len(passing)), key=lambda n: (hulls[n][0], -requests[passing[n]].size, n))
    low, high, grids = (np.zeros(64, np.int64) for _ in range(3))
    addresses = [0] * len(passing)
    slots: list[int] = []
    ending: list[tuple[int, int]] = []
    count = 0
    for n in order:
        begin, end = hulls[n]
        while ending and ending[0][0] < begin:
            slots.append(heappop(ending)[1])
            low[slots[-1]] = high[slots[-1]] = 0
        size, tiles, _ = requests[passing[n]]
        grid = ground.number_of[tiles]
        live = ground.meets(grid)[grids[:count]] & (high[:count] > 0)
        bottom_low, bottom_high = ground.taken(grid)
        address = _tightest(
            np.concatenate([bottom_low, low[:count][live]]),
            np.concatenate([bottom_high, high[:count][live]]),
            size,
        )
        addresses[n] = address
        if not slots:
            if count == len(low):
                low, high, grids = (
                    np.concatenate([x, np.zeros_like(x)]) for x in (low, high, grids)
                )
            slots.append(count)
            count += 1
        slot = slots.pop()
        low[slot], high[slot], grids[slot] = address, address + size, grid
        heappush(ending, (end, slot))
    return addresses
