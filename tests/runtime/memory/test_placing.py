"""Addresses of requests: no overlap, little waste, bounded time."""

from itertools import combinations
from random import Random

import numpy as np
import pytest

from hloipu_runtime.memory import placing
from hloipu_runtime.memory.placing import Placement, place
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
