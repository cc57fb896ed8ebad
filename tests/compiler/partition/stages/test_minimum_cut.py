"""Least cuts: the weight that brute force finds, with the fewest nodes on the needed side."""

import random
from itertools import combinations

import pytest

from hloipu_compiler.partition.stages.minimum_cut import INFINITE, MinimumCut

NODES = 7


def by_brute_force(edges: list[tuple[object, object, int]]) -> set[object]:
    """Return the smallest of the cheapest sides that hold what is needed."""
    nodes = range(NODES)
    sides = (
        {"begin", *some} for size in range(len(nodes) + 1) for some in combinations(nodes, size)
    )
    return min(
        sides,
        key=lambda side: sum(w for a, b, w in edges if a in side and b not in side),
    )


Edge = tuple[object, object, int]
# Two ways around a short one: the flow that goes along it first has to give way.
BACK: list[Edge] = [
    (0, 1, 1), (1, 2, 1), (2, "end", 1), (0, 3, 1), (3, 4, 1), (4, 2, 1), (1, 5, 1), (5, 6, 1),
    (6, "end", 1),
]  # fmt: skip


def drawn(seed: int) -> list[Edge]:
    draw = random.Random(seed)
    return [
        (draw.randrange(NODES), draw.choice((*range(NODES), "end")), draw.choice((0, 1, 2, 3, 8)))
        for _ in range(draw.randint(1, 4 * NODES))
    ]


@pytest.mark.parametrize("edges", [BACK, *map(drawn, range(40))])
def test_the_cheapest_and_smallest_side_is_taken(edges: list[Edge]) -> None:
    cut = MinimumCut()
    cut.require(0)
    for edge in edges:
        cut.link(*edge)
    assert cut.solved() == by_brute_force([("begin", 0, INFINITE), *edges])
