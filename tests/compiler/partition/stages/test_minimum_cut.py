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


@pytest.mark.parametrize("seed", range(40))
def test_the_cheapest_and_smallest_side_is_taken(seed: int) -> None:
    draw = random.Random(seed)
    edges: list[tuple[object, object, int]] = [("begin", 0, INFINITE)]
    for _ in range(draw.randint(1, 4 * NODES)):
        source, to = draw.randrange(NODES), draw.choice((*range(NODES), "end"))
        edges.append((source, to, draw.choice((0, 1, 2, 3, 5, 8))))
    cut = MinimumCut()
    cut.require(0)
    for edge in edges[1:]:
        cut.link(*edge)
    assert cut.solved() == by_brute_force(edges)
