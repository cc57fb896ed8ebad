"""First-fit allocation: the lowest address free over a request's whole time."""

from collections.abc import Iterator

import numpy as np

from hloipu_runtime.memory.ground import Ground, lowest, lowest_of_several
from hloipu_runtime.memory.liveness import Ranges
from hloipu_runtime.memory.requests import Request

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
