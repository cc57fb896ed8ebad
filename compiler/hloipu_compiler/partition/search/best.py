"""The best candidate, and those that no other beats."""

from collections.abc import Iterable

from hloipu_compiler.partition.search.candidate import Estimate
from hloipu_compiler.partition.stages.recomputing import NONE

_ALIKE = 1.02
"""Candidates whose memory differs by no more, or bubbles by so many points, are shown as one."""
_AS_FAST = 1.01
"""Candidates that differ by less in throughput are taken to be as fast: estimates tell no more."""
AFTER_ALL = 1.4
"""Times the memory that there is: what needs no more may fit after all, with products and code
planned for what is there. Assumed: four stages of BERT-base need 1.34 times, and fit."""
_SURELY = 0.8
"""Of the memory that there is: what needs less fits, however far estimates are off. Assumed."""


def may_fit(estimate: Estimate) -> bool:
    """Whether an estimate leaves hope that a program fits, with all that makes programs fit."""
    return estimate.needed_bytes <= AFTER_ALL * estimate.budget_bytes


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


def choice_of(estimates: list[Estimate]) -> Estimate:
    """Return the fastest that fits, or where none does, that may fit, or what is nearest to that.

    Of candidates about as fast the plainest that surely fits, or that which needs least; of those
    about as near the fastest.
    """
    fitting = [estimate for estimate in estimates if estimate.fits]
    if not fitting:
        nearest = _ALIKE * min(estimate.needed_bytes for estimate in estimates)
        near = [x for x in estimates if x.needed_bytes <= max(nearest, AFTER_ALL * x.budget_bytes)]
        return max(near, key=lambda estimate: estimate.per_second)
    fastest = max(estimate.per_second for estimate in fitting)
    fast = [estimate for estimate in fitting if estimate.per_second * _AS_FAST >= fastest]
    least = min(estimate.needed_bytes for estimate in fast)
    return min(fast, key=lambda estimate: _preference(estimate, least))


def most_promising(estimates: list[Estimate], worth: float) -> Estimate:
    """Return the choice of estimates, or what only may fit, if that is so many times as good.

    Best is what takes least of memory times time: the more is lacking, the less likely it fits. Of
    those about as good one that leaves open what is made again: compiling tries every kind then.
    """
    sure = choice_of(estimates)
    least = worth * sure.per_second / sure.budget_bytes if sure.fits else 0.0
    hoped = [(x.per_second / x.needed_bytes, x) for x in estimates if may_fit(x) and not x.fits]
    most = max((worth_of_one for worth_of_one, _ in hoped), default=0.0)
    if most <= least:
        return sure
    near = [each for each in hoped if each[0] * _AS_FAST >= most]
    return min(near, key=lambda each: (each[1].candidate.recompute != NONE, -each[0]))[1]


def _preference(x: Estimate, least: int) -> tuple[int, int, float]:
    sure = x.fits and x.needed_bytes <= _SURELY * x.budget_bytes
    return (
        (0, x.candidate.extras, -x.per_second)
        if sure
        else (1, x.needed_bytes - least, -x.per_second)
    )
