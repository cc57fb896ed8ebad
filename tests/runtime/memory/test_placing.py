"""Addresses of requests: no overlap, little waste, bounded time."""

from itertools import combinations
from random import Random

import numpy as np
import pytest

from hloipu_runtime.memory import placing
from hloipu_runtime.memory.ground import Ground, lowest, lowest_of_several
from hloipu_runtime.memory.placing import Placement, first_fit, place
from hloipu_runtime.memory.requests import Request
from hloipu_runtime.memory.tile_classes import classes_of
from hloipu_runtime.program.mapping import Tiles

TILES = 12
POINTS = 40


def placed(requests: list[Request], most: int = 1 << 40) -> Placement:
    classes = classes_of((request.grid for request in requests), TILES)
    nothing = np.zeros(classes.count, np.int64)
    return place(requests, POINTS, classes, nothing, nothing, most)


def drawn(seed: int, count: int) -> list[Request]:
    draw = Random(seed)
    requests = []
    for _ in range(count):
        width = draw.choice([1, 2, 3, 4, 12])
        stride = draw.choice([s for s in (1, 2, 3) if (width - 1) * s < TILES])
        first = draw.randrange(TILES - (width - 1) * stride)
        grid = Tiles((width,), (stride,), first) if width > 1 else Tiles((), (), first)
        cuts = sorted(draw.sample(range(POINTS), draw.choice([2, 2, 2, 4])))
        ranges = tuple(zip(cuts[::2], cuts[1::2], strict=True))
        if draw.random() < 0.1:
            ranges = ((0, POINTS - 1),)
        requests.append(Request(8 * draw.randint(0, 50), grid, ranges))
    return requests


def conflicts(requests: list[Request], addresses: list[int]) -> list[tuple[int, int]]:
    """Return pairs that share a tile, a point and a byte."""
    tiles = [set(r.grid.numbers.ravel().tolist()) for r in requests]
    points = [{p for a, b in r.ranges for p in range(a, b + 1)} for r in requests]
    found = []
    for m, n in combinations(range(len(requests)), 2):
        low = max(addresses[m], addresses[n])
        high = min(addresses[m] + requests[m].size, addresses[n] + requests[n].size)
        if low < high and tiles[m] & tiles[n] and points[m] & points[n]:
            found.append((m, n))
    return found


@pytest.mark.parametrize("rules", [("FEW", 4000), ("FEW", 0), ("MOST", 0)])
@pytest.mark.parametrize("seed", range(12))
def test_no_overlap(seed: int, rules: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, *rules)
    requests = drawn(seed, 60)
    found = placed(requests, most=[1 << 40, 0][seed % 2])
    assert min(found.addresses) >= 0
    assert conflicts(requests, found.addresses) == []


@pytest.mark.parametrize("seed", range(12))
def test_extent_is_the_highest_byte_of_each_tile(seed: int) -> None:
    requests = drawn(seed, 30)
    classes = classes_of((request.grid for request in requests), TILES)
    nothing = np.zeros(classes.count, np.int64)
    found = place(requests, POINTS, classes, nothing, nothing, 0)
    for tile in range(TILES):
        ends = [
            address + request.size
            for address, request in zip(found.addresses, requests, strict=True)
            if tile in request.grid.numbers
        ]
        assert found.extent[classes.of_tile[tile]] == max(ends, default=0)


def everywhere(size: int, *ranges: tuple[int, int]) -> Request:
    return Request(size, Tiles((TILES,), (1,)), ranges)


@pytest.mark.parametrize(
    ("requests", "extent"),
    [
        ([everywhere(64, (0, 3)), everywhere(64, (4, 9)), everywhere(8, (3, 4))], 72),
        ([everywhere(64, (0, 39)), everywhere(32, (0, 39))], 96),
        # The third fits where the first one has a hole.
        ([everywhere(64, (0, 3), (8, 9)), everywhere(8, (0, 9)), everywhere(64, (4, 7))], 72),
        # Side by side on other tiles.
        ([Request(64, Tiles((), (), t), ((0, 9),)) for t in range(TILES)], 64),
        ([Request(64, Tiles((6,), (2,), t), ((0, 9),)) for t in range(2)], 64),
        ([], 0),
    ],
)
def test_least_memory(requests: list[Request], extent: int) -> None:
    assert placed(requests).extent.max(initial=0) == extent


def test_the_second_rule_helps_where_the_first_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By time alone, tiles that hold one request each are taken to hold all of them."""
    requests = [Request(64, Tiles((), (), t), ((0, 9),)) for t in range(TILES)]
    monkeypatch.setattr(placing, "FEW", 0)
    assert placed(requests, most=1000).extent.max() == TILES * 64
    assert placed(requests, most=100).extent.max() == 64


def live_at_once(requests: list[Request], points: int) -> int:
    live = np.zeros(points + 1, np.int64)
    for request in requests:
        for first, last in request.ranges:
            live[first] += request.size
            live[last + 1] -= request.size
    return int(live.cumsum().max())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("rule", "bound"), [("orders", 1.1), ("time", 1.35)])
def test_waste_is_small(
    seed: int, rule: str, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against what is live at once, on requests that are all on the same tiles."""
    if rule == "time":
        monkeypatch.setattr(placing, "FEW", 0)
    draw = Random(seed)
    requests = []
    for point in range(600):
        last = min(599, point + draw.choice([1, 1, 2, 3, 8, 40]))
        requests.append(everywhere(8 * draw.randint(1, 500), (point, last)))
    live = live_at_once(requests, 600)
    classes = classes_of([requests[0].grid], TILES)
    nothing = np.zeros(1, np.int64)
    found = place(requests, 600, classes, nothing, nothing + live, 1 << 40)
    assert live <= found.extent.max() <= bound * live


FEW_TILES = 6


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
    monkeypatch.setattr("hloipu_runtime.memory.placing._MOST_RANGES", most_ranges)
    draw = Random(seed)
    requests: list[Request] = []
    while len(requests) < 24:
        first = draw.randrange(FEW_TILES - 2)
        grid = draw.choice([Tiles((), (), first), Tiles((3,), (1,), first)])
        begin = draw.randrange(6)
        ranges: tuple[tuple[int, int], ...] = ((begin, begin + draw.randrange(3)),)
        if draw.random() < 0.3:
            ranges = (*ranges, (9, 9), *draw.choice([(), ((12, 12),)]))
        requests += [Request(draw.randrange(1, 5), grid, ranges)] * draw.choice([1, 1, 4])
    grids = [request.grid for request in requests]
    ground = Ground(classes_of(grids, FEW_TILES), grids)
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
    grids = [Tiles((2,), (draw.randint(1, 3),), draw.randrange(FEW_TILES - 3)) for _ in range(4)]
    grids = list(dict.fromkeys([*grids, Tiles((), (), draw.randrange(FEW_TILES))]))
    classes = classes_of(grids, FEW_TILES)
    ground = Ground(classes, grids)
    held = [{int(classes.of_tile[t]) for t in grid.numbers.ravel()} for grid in grids]
    for grid, own in zip(grids, held, strict=True):
        meets = ground.meets(ground.number_of[grid])
        for other, theirs in zip(grids, held, strict=True):
            near = min(own) <= max(theirs) and min(theirs) <= max(own)
            assert meets[ground.number_of[other]] == (bool(own & theirs) if most_exact else near)
