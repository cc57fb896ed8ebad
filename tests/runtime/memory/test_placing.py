"""Addresses of requests: no overlap, and how far from the least memory."""

from collections.abc import Sequence
from itertools import combinations
from random import Random

import numpy as np
import pytest

from hloipu_runtime.memory import placing
from hloipu_runtime.memory.placing import Conflicts, Placement, lowest_first, place
from hloipu_runtime.memory.requests import Request, Requests, classes_of, most_live
from hloipu_runtime.program.mapping import Tiles

TILES = 12
POINTS = 40


def placed(
    requests: list[Request],
    most: int = 1 << 40,
    *,
    points: int = POINTS,
    taken: Sequence[int] = (0,) * TILES,
) -> Placement:
    """Place requests where `taken` bytes of each tile are used for other things."""
    one_tile = [Tiles((), (), tile) for tile in range(TILES)] if any(taken) else []
    classes = classes_of((*one_tile, *(request.grid for request in requests)), TILES)
    of_class = np.array([taken[tile] for tile in classes.first_tile], np.int64)
    table = Requests(requests)
    return place(table, classes, of_class, most_live(table, points, classes, of_class), most)


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


def tiles_of(request: Request) -> set[int]:
    return set(request.grid.numbers.ravel().tolist())


def points_of(request: Request) -> set[int]:
    return {point for first, last in request.ranges for point in range(first, last + 1)}


def conflicting(requests: list[Request]) -> list[set[int]]:
    """Return for each request those that share a tile and a point with it, itself left out."""
    tiles, points = [tiles_of(r) for r in requests], [points_of(r) for r in requests]
    found: list[set[int]] = [set() for _ in requests]
    for m, n in combinations(range(len(requests)), 2):
        if tiles[m] & tiles[n] and points[m] & points[n]:
            found[m].add(n)
            found[n].add(m)
    return found


def overlaps(requests: list[Request], addresses: list[int]) -> list[tuple[int, int]]:
    """Return pairs that share a tile, a point and a byte."""
    return [
        (m, n)
        for m, others in enumerate(conflicting(requests))
        for n in others
        if m < n
        and max(addresses[m], addresses[n])
        < min(addresses[m] + requests[m].size, addresses[n] + requests[n].size)
    ]


LIMITS = [
    (placing, "MOST_PLACED"),
    (placing, "MOST_GRIDS"),
    (placing, "MOST_KEPT"),
    (placing, "MOST_AT_ONCE"),
]
"""Beyond which less is tried or remembered."""


@pytest.mark.parametrize("beyond", [None, *LIMITS])
@pytest.mark.parametrize("seed", range(8))
def test_no_overlap(
    seed: int, beyond: tuple[object, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if beyond is not None:
        monkeypatch.setattr(*beyond, 0)
    requests = drawn(seed, 60)
    found = placed(requests, most=[1 << 40, 0][seed % 2])
    assert min(found.addresses) >= 0
    assert overlaps(requests, found.addresses) == []


@pytest.mark.parametrize("beyond", [None, *LIMITS[1:]])
@pytest.mark.parametrize("most_ranges", [1, 2, 8])
@pytest.mark.parametrize("seed", range(4))
def test_conflicts_by_definition(
    seed: int,
    most_ranges: int,
    beyond: tuple[object, str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if beyond is not None:
        monkeypatch.setattr(*beyond, 0)
    draw = Random(seed)
    requests = []
    for request in drawn(seed, 60):
        cuts = sorted(draw.sample(range(POINTS), 2 * draw.randint(1, most_ranges)))
        requests.append(request._replace(ranges=tuple(zip(cuts[::2], cuts[1::2], strict=True))))
    classes = classes_of([request.grid for request in requests], TILES)
    found = Conflicts(Requests(requests), classes)
    for _ in range(2):
        for number, others in enumerate(conflicting(requests)):
            here = found.of(number).tolist()
            assert len(here) == len(set(here))
            assert set(here) == others | {number}


@pytest.mark.parametrize("seed", range(12))
def test_extent_is_the_highest_byte_of_each_tile(seed: int) -> None:
    requests = drawn(seed, 30)
    classes = classes_of((request.grid for request in requests), TILES)
    found = placed(requests)
    for tile in range(TILES):
        ends = [
            address + request.size
            for address, request in zip(found.addresses, requests, strict=True)
            if tile in tiles_of(request)
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
        ([everywhere(0, (0, 9)), everywhere(0, (0, 39))], 0),
        ([], 0),
    ],
)
def test_least_memory(requests: list[Request], extent: int) -> None:
    assert placed(requests).extent.max(initial=0) == extent


def least_need(requests: list[Request], taken: Sequence[int], enough: int) -> int:
    """Return the least that the fullest tile can need, by trying everything; `enough` is as good.

    Sorted by address, requests of a best placement can sink onto the ones below them, so that one
    of all orders places each as low as those before it let it.
    """
    others = conflicting(requests)
    above = [r.size + max(taken[tile] for tile in tiles_of(r)) for r in requests]
    best = 1 << 62

    def search(lowest: list[int], left: frozenset[int], need: int) -> None:
        nonlocal best
        if best <= enough or max([need, *(lowest[n] + above[n] for n in left)]) >= best:
            return
        if not left:
            best = need
        for n in left:
            lifted = [
                max(low, lowest[n] + requests[n].size) if m in others[n] else low
                for m, low in enumerate(lowest)
            ]
            search(lifted, left - {n}, max(need, lowest[n] + above[n]))

    search([0] * len(requests), frozenset(range(len(requests))), max(taken))
    return best


def live_at_once(requests: list[Request], taken: Sequence[int]) -> int:
    """Return the most that a tile takes at one point."""
    return max(
        bytes_taken + sum(r.size for r in requests if tile in tiles_of(r) and point in points_of(r))
        for tile, bytes_taken in enumerate(taken)
        for point in range(POINTS)
    )


def test_how_far_from_the_least_need() -> None:
    """On small cases, whose least need is known: it may be more than what is live at once."""
    draw = Random(0)
    above_least, unreachable = [], 0
    for case in range(80):
        requests = drawn(case, 7)
        taken = [8 * draw.randrange(20) for _ in range(TILES)]
        live = live_at_once(requests, taken)
        least = least_need(requests, taken, live)
        addresses = placed(requests, taken=taken).addresses
        need = max(
            [*taken]
            + [
                address + request.size + taken[tile]
                for request, address in zip(requests, addresses, strict=True)
                for tile in tiles_of(request)
            ]
        )
        assert live <= least <= need
        unreachable += least > live
        if need > least:
            above_least.append(need / least)
    assert 10 <= unreachable <= 30
    assert len(above_least) <= 6
    assert max(above_least) <= 1.08


@pytest.mark.parametrize(("placeable", "mean", "most"), [(4_800, 1.025, 1.08), (0, 1.06, 1.14)])
def test_waste_is_small(
    placeable: int, mean: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against what is live at once, on requests that are all on the same tiles."""
    monkeypatch.setattr(placing, "MOST_PLACED", placeable)
    waste = []
    for seed in range(20):
        draw = Random(seed)
        requests = []
        for point in range(600):
            last = min(599, point + draw.choice([1, 1, 2, 3, 8, 40]))
            requests.append(everywhere(8 * draw.randint(1, 500), (point, last)))
        live = np.zeros(601, np.int64)
        for request in requests:
            for first, last in request.ranges:
                live[first] += request.size
                live[last + 1] -= request.size
        waste.append(placed(requests, points=600).extent.max() / live.cumsum().max())
    assert min(waste) >= 1
    assert np.mean(waste) <= mean
    assert max(waste) <= most


def test_more_tries_where_they_decide_whether_all_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do where what is live has room and the best placement has none; many need fewer."""
    tries = 0

    def counted(sizes: object, conflicts: object, order: object) -> object:
        nonlocal tries
        tries += 1
        return lowest_first(sizes, conflicts, order)  # type: ignore[arg-type]

    monkeypatch.setattr(placing, "lowest_first", counted)
    monkeypatch.setattr(placing, "GOOD_PERCENT", 0)
    requests = drawn(3, 60)
    live = live_at_once(requests, (0,) * TILES)
    assert placed(requests).extent.max() > live
    counts = []
    for most in (live - 1, live, 1 << 40):
        tries = 0
        placed(requests, most)
        counts.append(tries)
    assert counts == [8, 32, 8]
    monkeypatch.setattr(placing, "MOST_PLACED", 2 * len(requests))
    for most in (live, 1 << 40):
        tries = 0
        placed(requests, most)
        counts.append(tries)
    assert counts[3:] == [8, 2]
