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
LIKELY = 1.1
"""The same of what mostly fits. Assumed: four stages of BERT-base that need 1.07 and 1.08 times do,
such as need 1.17 times, and two that need 1.19, do not."""
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
    """Return the choice of estimates, or what lacks little, or what is so many times as good.

    Best is what takes least of memory times time: the more is lacking, the less likely it fits. Of
    those about as good one that leaves open what is made again: compiling tries every kind then.
    """
    sure = choice_of(estimates)
    hoped = [(_per_need(x), x) for x in estimates if may_fit(x) and not x.fits]
    least = _per_need(sure) if sure.fits else 0.0
    likely = [x for x in hoped if x[0] > least and x[1].needed_bytes <= LIKELY * x[1].budget_bytes]
    least = worth * max((rank for rank, _ in likely), default=least)
    some = [x for x in hoped if x[0] > least] or likely
    most = max((rank for rank, _ in some), default=0.0)
    near = [x for x in some if x[0] * _AS_FAST >= most]
    return min(near, key=lambda x: (x[1].candidate.recompute != NONE, -x[0]))[1] if near else sure


def _per_need(x: Estimate) -> float:
    return x.per_second / max(x.needed_bytes, x.budget_bytes)


def _preference(x: Estimate, least: int) -> tuple[int, int, float]:
    sure = x.fits and x.needed_bytes <= _SURELY * x.budget_bytes
    return (
        (0, x.candidate.extras, -x.per_second)
        if sure
        else (1, x.needed_bytes - least, -x.per_second)
    )
