"""Placing in any order: each request at the lowest address that is free over all its time."""

import numpy as np

from hloipu_runtime.memory.ground import Ground, lowest
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
        address = lowest(
            np.concatenate([bottom_low, low[found]]),
            np.concatenate([bottom_high, high[found]]),
            size,
        )
        addresses[n] = address
        for begin, end in ranges:
            first[row], last[row], low[row], high[row] = begin, end, address, address + size
            grids[row] = grid
            row += 1
    return addresses


def _hull(ranges: Ranges) -> Ranges:
    return ranges if len(ranges) <= _MOST_RANGES else ((ranges[0][0], ranges[-1][1]),)
