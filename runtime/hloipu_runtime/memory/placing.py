"""Allocates addresses: no overlap in time, tile and memory.

A variable has one address on all its tiles. Finding the least memory is hard (dynamic storage
allocation: Garey and Johnson, Computers and Intractability, SR2), so some orders are tried: largest
first (as XLA's and TFLite's planners do), most contested first, and for many variables by time.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.memory.ground import Ground, lowest, lowest_of_several
from hloipu_runtime.memory.liveness import Ranges
from hloipu_runtime.memory.requests import Request
from hloipu_runtime.memory.tile_classes import TileClasses
from hloipu_runtime.program.mapping import Tiles

Numbers = NDArray[np.int64]
FEW = 4_000
"""Up to so many requests, several orders are tried; beyond, going by time wastes 4 % at most."""
MOST = 30_000
"""More requests are placed by time alone."""
GOOD_PERCENT = 1
"""Waste that is not worth another try."""


class Placement(NamedTuple):
    """Where each request lies, and how much room that takes on each class of tiles."""

    addresses: list[int]
    extent: Numbers


def place(
    requests: list[Request],
    points: int,
    classes: TileClasses,
    taken: Numbers,
    live: Numbers,
    most: int,
) -> Placement:
    """Return addresses from 0 up for all requests.

    On each class of tiles, `taken` bytes are used for other things, and `live` by requests at once,
    at most; a tile has `most`. Where requests cannot fit, or many do, no second try is made.
    """
    ground = Ground(classes, [request.grid for request in requests])
    addresses = [0] * len(requests)
    always = [n for n, r in enumerate(requests) if r.ranges == ((0, points - 1),)]
    always.sort(key=lambda n: (-requests[n].grid.count, -requests[n].size, n))
    ground.lay(always, requests, addresses)
    fixed = set(always)
    passing = [n for n in range(len(requests)) if n not in fixed]
    fullest = int((taken + live).argmax())
    least = int((taken + live)[fullest])
    best: Placement | None = None
    for found in _tries(requests, passing, points, ground, classes, fullest):
        for number, address in zip(passing, found, strict=True):
            addresses[number] = address
        extent = _extent(requests, addresses, classes)
        if best is None or (taken + extent).max() < (taken + best.extent).max():
            best = Placement(addresses.copy(), extent)
        need = int((taken + best.extent).max())
        if 100 * need <= (100 + GOOD_PERCENT) * least:
            break
        if least > most or (len(passing) > FEW and need <= most):
            break
    assert best is not None
    return best


def _tries(
    requests: list[Request],
    passing: list[int],
    points: int,
    ground: Ground,
    classes: TileClasses,
    fullest: int,
) -> Iterator[list[int]]:
    """Yield addresses of the passing requests, by one rule after the other."""
    from hloipu_runtime.memory.time_order import by_time

    if len(passing) > FEW:
        yield by_time(requests, passing, ground.top())
    chosen = [requests[n] for n in passing]
    if len(passing) <= MOST:
        yield first_fit(requests, passing, _largest_first(chosen), ground)
    if len(passing) <= FEW:
        members = classes.grids_of(fullest)
        yield first_fit(requests, passing, _contested_first(chosen, points, members), ground)
        yield by_time(requests, passing, ground.top())


def _largest_first(requests: list[Request]) -> list[int]:
    return sorted(
        range(len(requests)), key=lambda n: (-requests[n].size, -requests[n].grid.count, n)
    )


def _contested_first(requests: list[Request], points: int, members: set[Tiles]) -> list[int]:
    """Order by how much is live on the fullest tile at the worst point of each request's time."""
    change = np.zeros(points + 1, np.int64)
    for size, grid, ranges in requests:
        if grid in members:
            for first, last in ranges:
                change[first] += size
                change[last + 1] -= size
    live = change.cumsum()

    def key(number: int) -> tuple[int, ...]:
        _, grid, ranges = requests[number]
        time = sum(last - first + 1 for first, last in ranges)
        if grid not in members:
            return 0, -time, number
        worst = max(int(live[first : last + 1].max()) for first, last in ranges)
        return -worst, -time, number

    return sorted(range(len(requests)), key=key)


def _extent(requests: list[Request], addresses: list[int], classes: TileClasses) -> Numbers:
    """Return the highest address in use, and one, on each class of tiles."""
    tops: dict[Tiles, int] = {}
    for (size, grid, _), address in zip(requests, addresses, strict=True):
        tops[grid] = max(tops.get(grid, 0), address + size)
    extent = np.zeros(classes.count, np.int64)
    for grid, top in tops.items():
        members = classes.members[grid]
        extent[members] = np.maximum(extent[members], top)
    return extent


_MOST_RANGES = 64
"""A request with more ranges is taken to be live in between."""


def first_fit(
    requests: list[Request], passing: list[int], order: list[int], ground: Ground
) -> list[int]:
    """Return addresses for the requests numbered in `passing`, placed in an order of theirs.

    Time grows with the square of their number.
    """
    rows = sum(len(_hull(requests[n].ranges)) for n in passing)
    first, last, low, high, grids = (np.zeros(rows, np.int64) for _ in range(5))
    addresses = [0] * len(passing)
    row = 0
    for alike in _runs(requests, passing, order):
        size, tiles, ranges = requests[passing[alike[0]]]
        ranges = _hull(ranges)
        grid = ground.number_of[tiles]
        taken = (first[:row] <= ranges[0][1]) & (last[:row] >= ranges[0][0])
        for begin, end in ranges[1:]:
            taken |= (first[:row] <= end) & (last[:row] >= begin)
        found = taken.nonzero()[0]
        found = found[ground.meets(grid)[grids[found]]]
        bottom_low, bottom_high = ground.taken(grid)
        blocks = (
            np.concatenate([bottom_low, low[found]]),
            np.concatenate([bottom_high, high[found]]),
        )
        if len(alike) == 1:
            places = [lowest(*blocks, size)]
        else:
            places = lowest_of_several(*blocks, size, len(alike))
        for n, address in zip(alike, places, strict=True):
            addresses[n] = address
        for bottom, top in _blocks(places, size):
            for begin, end in ranges:
                first[row], last[row], low[row], high[row] = begin, end, bottom, top
                grids[row] = grid
                row += 1
    return addresses


def _blocks(places: list[int], size: int) -> list[tuple[int, int]]:
    """Return what equal things take at ascending places, those that touch as one block."""
    found = [(places[0], places[0] + size)]
    for place in places[1:]:
        bottom, top = found[-1]
        if place == top:
            found[-1] = bottom, top + size
        else:
            found.append((place, place + size))
    return found


def _runs(requests: list[Request], passing: list[int], order: list[int]) -> Iterator[list[int]]:
    """Yield an order in parts, each of equal requests, as the places of a channel are."""
    alike: list[int] = []
    before: Request | None = None
    for n in order:
        request = requests[passing[n]]
        if before is not None and request != before:
            yield alike
            alike = []
        alike.append(n)
        before = request
    if alike:
        yield alike


def _hull(ranges: Ranges) -> Ranges:
    return ranges if len(ranges) <= _MOST_RANGES else ((ranges[0][0], ranges[-1][1]),)
