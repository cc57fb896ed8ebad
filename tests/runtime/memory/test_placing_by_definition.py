"""Addresses against the rules as written down: tile by tile, point by point and byte by byte."""

from random import Random

import numpy as np
import pytest

from hloipu_runtime.memory import placing
from hloipu_runtime.memory.placing import place
from hloipu_runtime.memory.requests import Request, Requests, classes_of, most_live
from hloipu_runtime.program.mapping import Tiles

TILES = 5
POINTS = 9


def drawn(draw: Random) -> list[Request]:
    """Return requests on few tiles, some of them equal, some live throughout, some of no bytes."""
    requests: list[Request] = []
    while len(requests) < 14:
        first = draw.randrange(TILES - 2)
        grid = draw.choice(
            [Tiles((), (), first), Tiles((2,), (2,), first), Tiles((TILES,), (1,), 0)]
        )
        cuts = sorted(draw.sample(range(POINTS), draw.choice([2, 2, 4])))
        ranges = tuple(zip(cuts[::2], cuts[1::2], strict=True))
        if draw.random() < 0.15:
            ranges = ((0, POINTS - 1),)
        requests += [Request(draw.randrange(7), grid, ranges)] * draw.choice([1, 1, 1, 3])
    return requests


def tiles_of(request: Request) -> list[int]:
    return [int(tile) for tile in request.grid.numbers.ravel()]


def points_of(request: Request) -> list[int]:
    return [point for first, last in request.ranges for point in range(first, last + 1)]


class Referee:
    """All that the rules speak of, counted for each tile by itself."""

    def __init__(self, requests: list[Request], taken: list[int]) -> None:
        self.requests = requests
        self.taken = taken
        self.live = [
            [
                sum(r.size for r in requests if tile in tiles_of(r) and p in points_of(r))
                for p in range(POINTS)
            ]
            for tile in range(TILES)
        ]
        full = [taken[tile] + max(self.live[tile]) for tile in range(TILES)]
        self.least = max(full)

    def conflict(self, m: int, n: int) -> bool:
        first, second = self.requests[m], self.requests[n]
        return bool(
            set(tiles_of(first)) & set(tiles_of(second))
            and set(points_of(first)) & set(points_of(second))
        )

    def lowest_first(self, order: list[int]) -> list[int]:
        """Place, one after the other, what can lie lowest above all in conflict with it."""
        addresses: dict[int, int] = {}
        while len(addresses) < len(order):
            lowest = {
                n: max(
                    (
                        addresses[m] + self.requests[m].size
                        for m in addresses
                        if self.conflict(m, n)
                    ),
                    default=0,
                )
                for n in order
                if n not in addresses
            }
            number = min(lowest, key=lambda n: lowest[n])  # the first in the order, of equal ones
            addresses[number] = lowest[number]
        return [addresses[n] for n in range(len(order))]

    def orders(self) -> list[list[int]]:
        """Return the three orders; those that would be equal go by number."""
        length = [len(points_of(r)) for r in self.requests]
        volume = [length[n] * r.size * len(tiles_of(r)) for n, r in enumerate(self.requests)]
        fullest = [
            max(
                max(self.taken[tile] + self.live[tile][p] for tile in range(TILES))
                for p in points_of(r)
            )
            for r in self.requests
        ]
        keys = [
            lambda n: (-fullest[n], -volume[n], -length[n]),
            lambda n: (-volume[n], -fullest[n]),
            lambda n: (-fullest[n], -length[n], -volume[n]),
        ]
        return [sorted(range(len(self.requests)), key=key) for key in keys]

    def tops(self, addresses: list[int]) -> list[int]:
        """Return what a tile of each request needs up to its end, the fullest of its tiles."""
        return [
            address + r.size + max(self.taken[tile] for tile in tiles_of(r))
            for address, r in zip(addresses, self.requests, strict=True)
        ]

    def ends(self, addresses: list[int]) -> list[int]:
        """Return where each tile's last request ends."""
        return [
            max(
                (a + r.size for a, r in zip(addresses, self.requests, strict=True)
                 if tile in tiles_of(r)),
                default=0,
            )
            for tile in range(TILES)
        ]  # fmt: skip

    def best(self, tries: int) -> list[int]:
        """Return the first of the best of so many tries; a hundredth of waste ends the search."""
        best, best_order = [0], [0]
        need = 1 << 40
        for order in self.orders():
            addresses = self.lowest_first(order)
            tries -= 1
            if max(self.tops(addresses)) < need:
                best, best_order, need = addresses, order, max(self.tops(addresses))
            if 100 * need <= 101 * self.least or not tries:
                return best
        order, addresses = best_order, best
        while tries and 100 * need > 101 * self.least:
            tops = self.tops(addresses)
            middle = (max(tops) + self.least) / 2
            order = [n for n in order if tops[n] >= middle] + [n for n in order if tops[n] < middle]
            addresses = self.lowest_first(order)
            tries -= 1
            if max(self.tops(addresses)) < need:
                best, need = addresses, max(self.tops(addresses))
        return best


@pytest.mark.parametrize("tries", [1, 3, 8])
@pytest.mark.parametrize("seed", range(12))
def test_addresses_are_those_of_the_rules(
    seed: int, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "TRIES", tries)
    draw = Random(seed)
    requests = drawn(draw)
    classes = classes_of([request.grid for request in requests], TILES)
    most_code = draw.choice([12, 600])  # of which a hundredth is a few bytes
    of_class = [draw.randrange(most_code) for _ in range(classes.count)]
    referee = Referee(requests, [of_class[n] for n in classes.of_tile])
    taken = np.array(of_class, np.int64)
    table = Requests(requests)
    live = most_live(table, POINTS, classes, taken)
    wanted = referee.best(tries)
    found = place(table, classes, taken, live, 1 << 40)
    assert found.addresses == wanted
    assert found.extent[classes.of_tile].tolist() == referee.ends(wanted)


@pytest.mark.parametrize("seed", range(16))
def test_most_live_is_what_is_live_at_one_point_and_that_point_the_first(seed: int) -> None:
    draw = Random(seed)
    requests = drawn(draw)[: draw.choice([1, 3, 14])]
    classes = classes_of([request.grid for request in requests], TILES)
    of_class = [draw.randrange(40) for _ in range(classes.count)]
    referee = Referee(requests, [of_class[n] for n in classes.of_tile])
    found = most_live(Requests(requests), POINTS, classes, np.array(of_class, np.int64))
    for tile, number in enumerate(classes.of_tile):
        live = referee.live[tile]
        here = [r for r in requests if tile in tiles_of(r) and len(points_of(r)) == POINTS]
        assert found.always_bytes[number] == sum(request.size for request in here)
        assert (found.most_bytes[number], found.peak_point[number]) == (
            max(live),
            live.index(max(live)),
        )
    passing = [r for r in requests if len(points_of(r)) < POINTS]
    starts = sorted({first for r in passing for first, _ in r.ranges})
    assert found.starts.tolist() == starts
    assert found.fullest_bytes.tolist() == [
        max(taken + live[point] for taken, live in zip(referee.taken, referee.live, strict=True))
        for point in starts
    ]
