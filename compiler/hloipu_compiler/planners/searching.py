"""Searching splits: how many parts of each kind, by steps of two from several beginnings."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from math import prod

Candidate = tuple[int, ...]
"""Parts of each kind."""


def descend(
    beginnings: Iterable[Candidate],
    limits: Candidate,
    tiles: int,
    price: Callable[[Candidate], float],
    least: Callable[[Candidate], float] = lambda _: 0,
) -> dict[Candidate, float]:
    """Return the candidates that were priced, with their prices.

    From each beginning the search goes on to a cheaper candidate beside it, as long as there is
    one. Beside a candidate lie those with one kind of parts doubled or halved, or one doubled and
    another halved; parts are at most `limits`, their product at most `tiles`. `least` bounds the
    price from below: the least by that are priced first, and what cannot be cheaper is not.
    """
    seen: dict[Candidate, float] = {}
    bounded = cache(least)

    def priced(candidate: Candidate) -> float:
        if candidate not in seen:
            seen[candidate] = price(candidate)
        return seen[candidate]

    for beginning in beginnings:
        here = tuple(max(1, min(n, most)) for n, most in zip(beginning, limits, strict=True))
        if prod(here) > tiles:
            continue
        cost, before = priced(here), None
        while here != before:
            before = here
            near = [x for x in _beside(here, limits) if prod(x) <= tiles]
            for bound, number in sorted((bounded(x), n) for n, x in enumerate(near)):
                if bound >= cost:
                    break
                if priced(near[number]) < cost:
                    here, cost = near[number], priced(near[number])
                    break
    return seen


def _beside(candidate: Candidate, limits: Candidate) -> Iterator[Candidate]:
    """Yield the candidates one step away."""
    for i, (n, most) in enumerate(zip(candidate, limits, strict=True)):
        if n > 1:
            half = (*candidate[:i], n // 2, *candidate[i + 1 :])
            yield half
            for j, other in enumerate(limits):
                if j != i and half[j] < other:
                    yield (*half[:j], min(2 * half[j], other), *half[j + 1 :])
        if n < most:
            yield (*candidate[:i], min(2 * n, most), *candidate[i + 1 :])
