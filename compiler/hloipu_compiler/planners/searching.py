"""Searching splits: how many parts of each kind, by steps of two from several beginnings."""

from collections.abc import Callable, Iterable, Iterator
from math import prod

Candidate = tuple[int, ...]
"""Parts of each kind."""


def descend(
    beginnings: Iterable[Candidate],
    limits: Candidate,
    tiles: int,
    price: Callable[[Candidate], float],
) -> dict[Candidate, float]:
    """Return the candidates that were looked at, with their prices.

    From each beginning the search goes to the cheapest candidate beside it, as long as that is
    cheaper. Beside a candidate lie those with one kind of parts doubled or halved, or one doubled
    and another halved; parts are at most `limits`, their product at most `tiles`.
    """
    seen: dict[Candidate, float] = {}

    def priced(candidate: Candidate) -> float:
        if candidate not in seen:
            seen[candidate] = price(candidate)
        return seen[candidate]

    for beginning in beginnings:
        here = tuple(max(1, min(n, most)) for n, most in zip(beginning, limits, strict=True))
        if prod(here) > tiles:
            continue
        cost = priced(here)
        while True:
            near = [x for x in _beside(here, limits) if prod(x) <= tiles]
            best = min(near, key=priced, default=here)
            if best == here or priced(best) >= cost:
                break
            here, cost = best, priced(best)
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
