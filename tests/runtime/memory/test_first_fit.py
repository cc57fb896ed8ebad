"""Equal requests placed together, against placing every request by itself."""

from random import Random

import numpy as np
import pytest

from hloipu_runtime.memory.first_fit import first_fit
from hloipu_runtime.memory.ground import Ground, lowest, lowest_of_several
from hloipu_runtime.memory.requests import Request
from hloipu_runtime.memory.tile_classes import classes_of
from hloipu_runtime.program.mapping import Tiles

TILES = 6


@pytest.mark.parametrize("seed", range(40))
def test_several_lie_where_each_would_by_itself(seed: int) -> None:
    draw = Random(seed)
    low = np.array([draw.randrange(60) for _ in range(draw.randrange(1, 9))], np.int64)
    high = low + np.array([draw.randrange(12) for _ in low], np.int64)
    size = draw.randrange(8)
    expected: list[int] = []
    before, after = low, high
    for _ in range(5):
        expected.append(lowest(before, after, size))
        before = np.append(before, expected[-1])
        after = np.append(after, expected[-1] + size)
    assert lowest_of_several(low, high, size, 5) == expected


def one_by_one(requests: list[Request]) -> list[int]:
    """Return the lowest addresses that are free on all tiles at all points, in order."""
    taken: set[tuple[int, int, int]] = set()
    found = []
    for size, grid, ranges in requests:
        tiles = grid.numbers.ravel().tolist()
        points = [p for first, last in ranges for p in range(first, last + 1)]
        address = 0
        while True:
            here = {
                (tile, point, byte)
                for tile in tiles
                for point in points
                for byte in range(address, address + size)
            }
            if not here & taken:
                break
            address += 1
        taken |= here
        found.append(address)
    return found


@pytest.mark.parametrize("most_ranges", [64, 2])
@pytest.mark.parametrize("seed", range(12))
def test_runs_of_equal_requests_lie_where_each_would_by_itself(
    seed: int, most_ranges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request with more ranges than that lies as if it were live in between."""
    monkeypatch.setattr("hloipu_runtime.memory.first_fit._MOST_RANGES", most_ranges)
    draw = Random(seed)
    requests: list[Request] = []
    while len(requests) < 24:
        first = draw.randrange(TILES - 2)
        grid = draw.choice([Tiles((), (), first), Tiles((3,), (1,), first)])
        begin = draw.randrange(6)
        ranges: tuple[tuple[int, int], ...] = ((begin, begin + draw.randrange(3)),)
        if draw.random() < 0.3:
            ranges = (*ranges, (9, 9), *draw.choice([(), ((12, 12),)]))
        requests += [Request(draw.randrange(1, 5), grid, ranges)] * draw.choice([1, 1, 4])
    grids = [request.grid for request in requests]
    ground = Ground(classes_of(grids, TILES), grids)
    ground.lay([], requests, [0] * len(requests))
    everything = list(range(len(requests)))
    joined = [
        request._replace(ranges=((request.ranges[0][0], request.ranges[-1][1]),))
        if len(request.ranges) > most_ranges
        else request
        for request in requests
    ]
    assert first_fit(requests, everything, everything, ground) == one_by_one(joined)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("most_exact", [256, 0])
def test_grids_meet_on_a_tile_or_where_there_are_many_between_their_ends(
    most_exact: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hloipu_runtime.memory.ground.MOST_EXACT", most_exact)
    draw = Random(seed)
    grids = [Tiles((2,), (draw.randint(1, 3),), draw.randrange(TILES - 3)) for _ in range(4)]
    grids = list(dict.fromkeys([*grids, Tiles((), (), draw.randrange(TILES))]))
    classes = classes_of(grids, TILES)
    ground = Ground(classes, grids)
    held = [{int(classes.of_tile[t]) for t in grid.numbers.ravel()} for grid in grids]
    for grid, own in zip(grids, held, strict=True):
        meets = ground.meets(ground.number_of[grid])
        for other, theirs in zip(grids, held, strict=True):
            near = min(own) <= max(theirs) and min(theirs) <= max(own)
            assert meets[ground.number_of[other]] == (bool(own & theirs) if most_exact else near)
