"""Least cuts: the weight that brute force finds, with the fewest nodes on the needed side."""

import random
from itertools import combinations

import pytest

from hloipu_compiler.partition.stages.minimum_cut import INFINITE, MinimumCut

NODES = 4


def by_brute_force(edges: list[tuple[object, object, int]]) -> set[object]:
    """Return the smallest of the cheapest sides that hold what is needed."""
    nodes = sorted({x for a, b, _ in edges for x in (a, b)} - {"begin", "end"}, key=str)
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
    for _ in range(draw.randint(1, 14)):
        a, b = draw.randrange(NODES), draw.randrange(NODES)
        weight = draw.choice((0, 1, 2, 3, 5, 8))
        edges.append(draw.choice([(a, ~a, weight), (~a, b, INFINITE), (a, "end", weight),
                                  (~a, "end", weight)]))  # fmt: skip
    cut = MinimumCut()
    cut.require(0)
    for source, to, weight in edges[1:]:
        cut.link(source, to, weight)
    assert cut.solved() == by_brute_force([x for x in edges if x[0] != x[1]])
