"""The best candidate, and those that no other beats."""

from collections.abc import Iterable

from hloipu_compiler.partition.search.candidate import Estimate

_ALIKE = 1.02
"""Candidates whose memory differs by no more, or bubbles by so many points, are shown as one."""
_AS_FAST = 1.01
"""Candidates that differ by less in throughput are taken to be as fast: estimates tell no more."""
AFTER_ALL = 1.4
"""Times the memory that there is: what needs no more may fit after all, with products and code
planned for what is there. Assumed: four stages of BERT-base need 1.34 times, and fit."""
_SURELY = 0.8
"""Of the memory that there is: what needs less fits, however far estimates are off. Assumed."""

_WORTH_TRYING = 1.5
"""Times the throughput of what fits by estimate: so much faster, what may fit after all is worth a
trial. Assumed: estimates are off by less than what weights beside the IPUs cost."""


def best_of(estimates: Iterable[Estimate]) -> list[Estimate]:
    """Return those that no other one beats in throughput, memory and bubble; the fastest first.

    What is hardly better than a faster one, in all of these, is left out.
    """
    order = sorted(
        estimates,
        key=lambda estimate: (-estimate.per_second, estimate.needed_bytes, estimate.bubble),
    )
    unbeaten: list[Estimate] = []
    for each in order:
        bytes_enough, bubble_enough = each.needed_bytes * _ALIKE, each.bubble + _ALIKE - 1
        if not any(
            estimate.needed_bytes <= bytes_enough and estimate.bubble <= bubble_enough
            for estimate in unbeaten
        ):
            unbeaten.append(each)
    return unbeaten


def choice_of(estimates: list[Estimate], *, dares: bool = False) -> Estimate:
    """Return the fastest that fits, or where none does, that may fit, or what is nearest to that.

    Of candidates about as fast the plainest that surely fits, or that which needs least. `dares`:
    whether what may fit is taken where it is much faster.
    """
    fitting = [estimate for estimate in estimates if estimate.fits]
    nearest = _ALIKE * min(estimate.needed_bytes for estimate in estimates)
    near = [x for x in estimates if x.needed_bytes <= max(nearest, AFTER_ALL * x.budget_bytes)]
    most = max(estimate.per_second for estimate in near)
    fastest = max((estimate.per_second for estimate in fitting), default=0.0)
    if not fitting or (dares and most > _WORTH_TRYING * fastest):
        fast = [estimate for estimate in near if estimate.per_second * _AS_FAST >= most]
        return min(fast, key=lambda estimate: estimate.needed_bytes)
    fast = [estimate for estimate in fitting if estimate.per_second * _AS_FAST >= fastest]
    least = min(estimate.needed_bytes for estimate in fast)
    return min(fast, key=lambda estimate: _preference(estimate, least))


def _preference(x: Estimate, least: int) -> tuple[int, int, float]:
    sure = x.fits and x.needed_bytes <= _SURELY * x.budget_bytes
    return (
        (0, x.candidate.extras, -x.per_second)
        if sure
        else (1, x.needed_bytes - least, -x.per_second)
    )
