"""What is to be placed: so many bytes, on these tiles, at these points of time."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.memory.liveness import Ranges
from hloipu_runtime.program.mapping import Tiles

Numbers = NDArray[np.int64]


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
        """Return how many they are."""
        return len(self.ranges)


class LiveRows(NamedTuple):
    """Live ranges, one behind the other by when they begin."""

    first: Numbers
    last: Numbers
    owner: Numbers
    """The request that each range is one of."""


def live_rows(ranges: Sequence[Ranges]) -> LiveRows:
    """Return the ranges of requests as rows."""
    owner = np.repeat(np.arange(len(ranges)), [len(some) for some in ranges])
    rows = np.array([row for some in ranges for row in some], np.int64).reshape(-1, 2)
    order = np.argsort(rows[:, 0], kind="stable")
    return LiveRows(rows[order, 0], rows[order, 1], owner[order])
