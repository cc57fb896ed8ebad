"""Allocation requests: bytes, tiles, live ranges; the live maximum on classes of tiles.

No placement needs less than is live at once on a class of tiles.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.memory.liveness import Ranges
from hloipu_runtime.program.mapping import Tiles

Numbers = NDArray[np.int64]
Classes = slice | Numbers
"""Numbers of classes."""
_GRIDS_AT_ONCE = 4096
"""Grids that are compared in one go: 6 MB of marks for the tiles of a GC200."""


@dataclass(frozen=True, eq=False)
class TileClasses:
    """The classes of one IPU's tiles, numbered by their first tile."""

    of_tile: Numbers
    """Class of each tile."""
    first_tile: Numbers
    """Lowest tile of each class."""
    members: dict[Tiles, Classes]
    """Classes that make up each grid."""

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.first_tile)

    def grids_of(self, number: int) -> set[Tiles]:
        """Return the grids that a class is part of."""
        marks = np.zeros(self.count, np.bool_)
        marks[number] = True
        return {grid for grid, members in self.members.items() if marks[members].any()}


def classes_of(grids: Iterable[Tiles], tiles_per_ipu: int) -> TileClasses:
    """Return the classes of tiles that no grid tells apart."""
    grids = list(dict.fromkeys(grids))
    of_tile = np.zeros(tiles_per_ipu, np.int64)
    for start in range(0, len(grids), _GRIDS_AT_ONCE):
        grids_at_once = grids[start : start + _GRIDS_AT_ONCE]
        marks = np.zeros((len(grids_at_once), tiles_per_ipu), np.bool_)
        for row, grid in zip(marks, grids_at_once, strict=True):
            row[grid.numbers.ravel()] = True
        packed = np.packbits(marks, axis=0).T
        rows = np.concatenate([of_tile[:, None].view(np.uint8), packed], axis=1)
        data, width = rows.tobytes(), rows.shape[1]
        number_of: dict[bytes, int] = {}
        for tile in range(tiles_per_ipu):
            key = data[tile * width : (tile + 1) * width]
            of_tile[tile] = number_of.setdefault(key, len(number_of))
    first = np.zeros(int(of_tile.max(initial=-1)) + 1, np.int64)
    first[of_tile[::-1]] = np.arange(tiles_per_ipu - 1, -1, -1)
    members = {}
    for grid in grids:
        is_member = np.zeros(len(first), np.bool_)
        is_member[of_tile[grid.numbers]] = True
        members[grid] = _as_slice(is_member.nonzero()[0])
    return TileClasses(of_tile, first, members)


def _as_slice(classes: Numbers) -> Classes:
    """Return numbers in a row as a slice, which is several times as fast to index with."""
    if len(classes) and classes[-1] - classes[0] + 1 == len(classes):
        return slice(int(classes[0]), int(classes[-1]) + 1)
    return classes


_POINTS_AT_ONCE = 256
"""Points whose full tiles are compared in one go: 3 MB for the tiles of a GC200."""


class Request(NamedTuple):
    """Memory that one variable asks for on every tile of its grid."""

    size: int
    """In bytes, a multiple of the allocation grain."""
    grid: Tiles
    ranges: Ranges


class Requests:
    """The requests of one IPU as arrays."""

    def __init__(self, requests: Sequence[Request]) -> None:
        numbers: dict[Tiles, int] = {}
        self.grid = np.array(
            [numbers.setdefault(request.grid, len(numbers)) for request in requests], np.int64
        )
        """Number of each request's grid."""
        self.grids = tuple(numbers)
        self.sizes = np.array([request.size for request in requests], np.int64)
        self.ranges = [request.ranges for request in requests]

    def __len__(self) -> int:
        return len(self.ranges)


class LiveRows(NamedTuple):
    """Live ranges, one behind the other by when they begin."""

    first: Numbers
    last: Numbers
    owner: Numbers
    """The request that each range is one of."""


def live_rows(ranges: Sequence[Ranges]) -> LiveRows:
    """Return the ranges of requests as rows."""
    owner = np.repeat(np.arange(len(ranges)), [len(request_ranges) for request_ranges in ranges])
    rows = np.array([row for request_ranges in ranges for row in request_ranges], np.int64).reshape(
        -1, 2
    )
    order = np.argsort(rows[:, 0], kind="stable")
    return LiveRows(rows[order, 0], rows[order, 1], owner[order])


class Live(NamedTuple):
    """Live bytes on each class of tiles, and of the fullest class at each time."""

    always_bytes: Numbers
    """Of requests that are live at every point."""
    most_bytes: Numbers
    """At one point, those included."""
    peak_point: Numbers
    """The first point at which it is so many."""
    starts: Numbers
    """Points at which a request begins to be live, in order."""
    fullest_bytes: Numbers
    """What the fullest class takes in all at each of those."""


def most_live(requests: Requests, points: int, classes: TileClasses, used_bytes: Numbers) -> Live:
    """Return what is live at once, where `used_bytes` of each class are taken by other things."""
    members = [classes.members[grid] for grid in requests.grids]
    first, last, owner = live_rows(requests.ranges)
    always = np.zeros(classes.count, np.int64)
    is_always = (first == 0) & (last == points - 1)
    sizes, grids = requests.sizes[owner], requests.grid[owner]
    for size, grid in zip(sizes[is_always].tolist(), grids[is_always].tolist(), strict=True):
        always[members[grid]] += size
    passing = (~is_always).nonzero()[0]
    starts = np.unique(first[passing])
    changes: list[list[tuple[int, Classes]]] = [[] for _ in range(len(starts) + 1)]
    """Of each point in `starts`, and of the end: bytes that begin to be live, and that cease."""
    begins = np.searchsorted(starts, first[passing])
    ends = np.searchsorted(starts, last[passing], side="right")
    columns = (sizes[passing], grids[passing], begins, ends)
    for size, grid, begin, end in zip(*(x.tolist() for x in columns), strict=True):
        changes[begin].append((size, members[grid]))
        changes[end].append((-size, members[grid]))
    full = used_bytes + always
    most = full.copy()
    when = np.zeros(classes.count, np.int64)
    fullest = np.zeros(len(starts), np.int64)
    for low in range(0, len(starts), _POINTS_AT_ONCE):
        fulls = np.empty((min(_POINTS_AT_ONCE, len(starts) - low), classes.count), np.int64)
        for number, full_then in enumerate(fulls, low):
            for size, class_members in changes[number]:
                full[class_members] += size
            full_then[:] = full
        fullest[low : low + len(fulls)] = fulls.max(axis=1)
        highest = fulls.max(axis=0)
        more = highest > most
        most[more] = highest[more]
        when[more] = starts[low + fulls[:, more].argmax(axis=0)]
    return Live(always, most - used_bytes, when, starts, fullest)


def fullest_during(rows: LiveRows, live: Live, count: int) -> Numbers:
    """Return for each of `count` requests how full the fullest class is at most while it lives."""
    fullest_bytes = np.zeros(count, np.int64)
    if len(live.starts):
        begin = np.searchsorted(live.starts, rows.first)
        end = np.searchsorted(live.starts, rows.last, side="right")
        bounds = np.stack([begin, end], axis=1).ravel()
        most = np.maximum.reduceat(np.append(live.fullest_bytes, 0), bounds)[::2]
        np.maximum.at(fullest_bytes, rows.owner, most)
    return fullest_bytes
