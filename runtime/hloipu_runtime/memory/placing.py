"""Allocates addresses: no overlap in time, tile and memory.

A variable has one address on all its tiles. Finding the least memory is hard (dynamic storage
allocation: Garey and Johnson, Computers and Intractability, SR2), and what is live at once is not
always enough. Addresses are given out from below: of all requests the one that can lie lowest is
next, as in best-fit strip packing (Burke, Kendall and Whitwell, Operations Research 52(4), 2004),
which Sekiyama et al. (arXiv 1804.10001) use for neural networks and MiniMalloc (Moffitt, ASPLOS
2023) for X that wastes memory, the requests
that stick out are moved to the front, and all is placed again, as in squeaky wheel optimization
(Joslin and Clements, Journal of Artificial Intelligence Research 10, 1999).
"""

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.memory.requests import Live, Requests, TileClasses, fullest_during, live_rows

Marks = NDArray[np.bool_]
Numbers = NDArray[np.int64]
MOST_GRIDS = 4096
"""Of so many grids it is remembered which have tiles in common: 16 MB."""
MOST_AT_ONCE = 4096
"""Requests whose conflicts are found all together: 16 MB."""
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
        if len(requests) <= MOST_AT_ONCE:
            self._keep_all(len(requests))

    def of(self, number: int) -> Numbers:
        """Return the requests that conflict with one, itself among them."""
        conflicting = self._kept.get(number)
        return self._keep(number, self._live_with(number)) if conflicting is None else conflicting

    def _keep(self, number: int, others: Numbers) -> Numbers:
        """Return those of other requests that have tiles in common with one; keep while few."""
        conflicting: Numbers = others[self._meets(int(self._grid[number]), self._grid[others])]
        self._room -= len(conflicting)
        if self._room >= 0:
            self._kept[number] = conflicting
        return conflicting

    def _keep_all(self, count: int) -> None:
        """Find the conflicts of all requests together; those that are live are bits of a number."""
        bits, owner = [1 << number for number in range(count)], self._owner.tolist()
        ended: list[list[int]] = [[] for _ in range(self._points + 1)]
        for number, end in zip(owner, self._end.tolist(), strict=True):
            ended[end].append(number)
        met, live, row = [0] * count, 0, 0
        for point in range(self._points):
            for number in ended[point]:
                live ^= bits[number]
            first = row
            while row < len(owner) and self._begins[row] == point:
                live |= bits[owner[row]]
                row += 1
            for number in owner[first:row]:
                met[number] |= live
        size_bytes = -(-count // 8)
        packed = b"".join(number.to_bytes(size_bytes, "little") for number in met)
        rows = np.frombuffer(packed, np.uint8).reshape(count, size_bytes)
        meet = np.unpackbits(rows, axis=1, count=count, bitorder="little").view(np.bool_)
        meet |= meet.T
        for number, meets in enumerate(meet):
            if self._room > 0:
                self._keep(number, meets.nonzero()[0])

    def _live_with(self, number: int) -> Numbers:
        """Return the requests that are live when one is, itself among them."""
        rows = self._rows_of[number]
        if len(rows) == 1:
            overlap = self._end[: self._after[rows[0]]] > self._begins[rows[0]]
        else:
            overlap = self._overlapping(rows)
        near: Numbers = self._owner[overlap.nonzero()[0]]
        if self._has_holes:
            once = np.zeros(len(self._grid), np.bool_)
            once[near] = True
            near = once.nonzero()[0]
        return near

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


GOOD_PERCENT = 1
"""Waste that is not worth another try."""
TRIES = 8
"""Assumed: with so many, placing takes a tenth of the time that such a program takes to compile."""
MOST_PLACED = 16_000
"""Requests to place in all tries after the first, each of which takes 10 to 40 microseconds."""
DECISIVE = 4
"""So many times as many of both where it may depend on them whether a program fits."""
_PLACED = np.iinfo(np.int64).max


class Placement(NamedTuple):
    """Address of each request, and the extent on each class of tiles."""

    addresses: list[int]
    extent: Numbers


def place(
    requests: Requests, classes: TileClasses, used_bytes: Numbers, live: Live, most: int
) -> Placement:
    """Return addresses from 0 up for all requests.

    On each class of tiles, `used_bytes` bytes are used for other things; a tile has `most`.
    """
    least = int((used_bytes + live.most_bytes).max(initial=0))
    conflicts = Conflicts(requests, classes)
    floors = [int(used_bytes[classes.members[grid]].max(initial=0)) for grid in requests.grids]
    above = requests.sizes + np.array(floors, np.int64)[requests.grid]
    """What a tile needs at least for each request, if that lies at address 0."""
    best, need = np.zeros(len(requests), np.int64), least
    for tries, addresses in enumerate(_tries(requests, conflicts, live, above, least), 1):
        needed = int((addresses + above).max())
        if tries == 1 or needed < need:
            best, need = addresses, needed
        is_decisive = least <= most < need
        limit = (DECISIVE if is_decisive else 1) * min(TRIES, MOST_PLACED // len(requests))
        is_good = 100 * need <= (100 + GOOD_PERCENT) * least and not is_decisive
        if tries >= limit or is_good:
            break
    return Placement(best.tolist(), _extent(requests, best, classes))


def _tries(
    requests: Requests, conflicts: Conflicts, live: Live, above: Numbers, least: int
) -> Iterator[Numbers]:
    """Yield addresses by one order after the other, for ever."""
    if not len(requests):
        return
    best_order, best, need = np.zeros(0, np.int64), np.zeros(0, np.int64), _PLACED
    for order in _orders(requests, conflicts, live):
        addresses = lowest_first(requests.sizes, conflicts, order)
        yield addresses
        needed = int((addresses + above).max())
        if needed < need:
            best_order, best, need = order, addresses, needed
    order, addresses = best_order, best
    while True:
        ends = (addresses + above)[order]
        highest = int(ends.max())
        sticks_out = 2 * ends >= highest + least
        order = np.concatenate([order[sticks_out], order[~sticks_out]])
        addresses = lowest_first(requests.sizes, conflicts, order)
        yield addresses


def _orders(requests: Requests, conflicts: Conflicts, live: Live) -> Iterator[Numbers]:
    """Yield orders of requests: which goes first of those that can lie equally low."""
    first, last, owner = conflicts.rows
    lengths = np.zeros(len(requests), np.int64)
    np.add.at(lengths, owner, last - first + 1)
    tiles = np.array([grid.count for grid in requests.grids], np.int64)[requests.grid]
    volumes = requests.sizes.astype(np.float64) * lengths * tiles
    fullest = fullest_during(conflicts.rows, live, len(requests))
    yield np.lexsort([-lengths, -volumes, -fullest])
    yield np.lexsort([-fullest, -volumes])
    yield np.lexsort([-volumes, -lengths, -fullest])


def lowest_first(sizes: Numbers, conflicts: Conflicts, order: Numbers) -> Numbers:
    """Return addresses of requests, given out from below; of equal ones the first in `order` wins.

    A request that is placed lifts those in conflict with it above its end, so that each lies on
    another one or at address 0.
    """
    place_of = np.empty(len(order), np.int64)
    place_of[order] = np.arange(len(order))
    lowest = np.zeros(len(order), np.int64)
    """By place in the order: the lowest address above all placed ones in conflict with it."""
    addresses = np.zeros(len(order), np.int64)
    size_of, numbers = sizes.tolist(), order.tolist()
    for _ in numbers:
        place = int(lowest.argmin())
        number = numbers[place]
        address = int(lowest[place])
        addresses[number] = address
        lowest[place] = _PLACED
        lifted = place_of[conflicts.of(number)]
        lowest[lifted] = np.maximum(lowest[lifted], address + size_of[number])
    return addresses


def _extent(requests: Requests, addresses: Numbers, classes: TileClasses) -> Numbers:
    """Return the highest address in use, and one, on each class of tiles."""
    tops = np.zeros(len(requests.grids), np.int64)
    np.maximum.at(tops, requests.grid, addresses + requests.sizes)
    extent = np.zeros(classes.count, np.int64)
    for grid, top in zip(requests.grids, tops.tolist(), strict=True):
        members = classes.members[grid]
        extent[members] = np.maximum(extent[members], top)
    return extent
