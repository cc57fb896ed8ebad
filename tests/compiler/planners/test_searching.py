"""Searching splits by steps of two: where it ends, and what it never tries."""

from itertools import product
from math import log2, prod

import pytest

from hloipu_compiler.planners.searching import Candidate, descend

LIMITS = (64, 16, 8)
TILES = 100


def bowl(candidate: Candidate) -> float:
    """Return a price that is least at (8, 4, 2), the same in every direction of doubling."""
    return sum((log2(n) - log2(m)) ** 2 for n, m in zip(candidate, (8, 4, 2), strict=True))


@pytest.mark.parametrize("beginning", [(1, 1, 1), (64, 1, 1), (1, 8, 8), (2, 2, 8)])
def test_it_ends_where_no_way_beside_is_cheaper(beginning: Candidate) -> None:
    seen = descend([beginning], LIMITS, TILES, bowl)
    assert min(seen, key=bowl) == (8, 4, 2)
    # Far fewer than there are.
    assert len(seen) < 80


def test_it_keeps_to_limits_and_tiles() -> None:
    limits = (60, 12, 7)
    seen = descend([(64, 1, 1), (1, 64, 64)], limits, TILES, lambda candidate: -prod(candidate))
    for candidate in seen:
        assert prod(candidate) <= TILES
        assert all(1 <= n <= most for n, most in zip(candidate, limits, strict=True))
    assert max(map(prod, seen)) > TILES // 2


def test_each_way_is_priced_once() -> None:
    asked: list[Candidate] = []

    def price(candidate: Candidate) -> float:
        asked.append(candidate)
        return bowl(candidate)

    descend(list(product((1, 2), repeat=3)), LIMITS, TILES, price)
    assert len(asked) == len(set(asked))


def test_what_a_bound_leaves_out_is_not_priced() -> None:
    beginnings = [(64, 1, 1), (1, 16, 1)]
    every = descend(beginnings, LIMITS, TILES, bowl)
    bounded = descend(beginnings, LIMITS, TILES, bowl, lambda x: bowl(x) - 0.5)
    assert min(bounded, key=bowl) == min(every, key=bowl) == (8, 4, 2)
    assert len(bounded) < len(every) / 2
