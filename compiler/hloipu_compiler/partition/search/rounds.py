"""Estimates candidates in rounds: each system first, then what the promising ones can do otherwise.

A system is a number of stages and the IPUs that they are on. What takes time is to cut a step for
it; so most of what else may be asked for is looked at for a few systems only.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from hloipu_compiler.partition.search.best import may_fit
from hloipu_compiler.partition.search.candidate import OFF, Candidate, Estimate
from hloipu_compiler.partition.search.candidates import (
    Given,
    candidates_sharing_ipus,
    offloading_candidates,
)
from hloipu_compiler.partition.search.estimates import Step
from hloipu_compiler.partition.stages.recomputing import BLOCKS, FULL
from hloipu_runtime.watching import Search, doing

_HOPELESS = 1.75
"""Times the memory that there is: where stages on most IPUs need more, whether all of them is made
again or blocks are, no other way to use the same arrays is likely to fit. Assumed."""
_FASTEST, _LEANEST = 4, 2
"""Systems that are looked at closely: the fastest that fit, or of all, and those that need least
memory. Assumed."""
_CUT_ANEW = 4
"""Ways that lack memory and are cut anew by what pieces of the step need. Assumed."""

System = tuple[int, tuple[int, ...]]


def looked_at(
    step: Step,
    ipus: int,
    candidates: Sequence[Candidate],
    given: Given,
    search: Search,
    *,
    is_thorough: bool = True,
) -> list[Estimate]:
    """Return estimates of candidates of the first round, and of the promising ones of others.

    At least one, and those that were made when the search ended. Unless the search is thorough,
    no more than the leanest on most IPUs where that leaves little hope that anything fits.
    """
    estimates: list[Estimate] = []

    def estimate(some: Iterable[Candidate]) -> None:
        known = {estimate.candidate for estimate in estimates}
        new = [candidate for candidate in dict.fromkeys(some) if candidate not in known]
        for number, candidate in enumerate(new):
            with doing(f"cut {number} of {len(new)}, {len(estimates)} in all"):
                one = search.tried(partial(step.estimate, candidate))
            if one is None:
                return
            estimates.append(one)

    first = _first_round(candidates)
    estimates += [
        step.estimate(candidate) for candidate in first[:1]
    ]  # however little time there is
    with search.improving():
        if not is_thorough:
            # The more IPUs share a step, the less is on each, and the less is made again at once.
            leanest = sorted(_leanest(candidates), key=lambda x: (-x.ipus, -x.stages))
            most = leanest[0]
            for kind in (FULL, BLOCKS):
                alike = [x for x in candidates if way_of(x) == (system_of(most), kind)]
                estimate([min(alike, key=_lean, default=most)])
            least = min(estimate.needed_bytes / estimate.budget_bytes for estimate in estimates)
            if least > _HOPELESS:
                return estimates
            estimate(leanest)
        estimate(first)
        with search.unhurried():  # they are few, and what is compiled hangs on them
            for way in _lacking(estimates):
                estimate(search.tried(partial(step.cut_anew, way)) or ())
        promising = _promising(estimates)
        room = {way_of(x.candidate) for x in estimates if may_fit(x)}
        estimate(
            candidate
            for candidate in candidates
            if system_of(candidate) in promising
            and (candidate.offload != OFF or way_of(candidate) in room or given.offload == OFF)
        )
        # These are told by estimates of their own.
        estimate(search.tried(lambda: offloading_candidates(step, estimates, given)) or ())
        if not any(estimate.fits for estimate in estimates):
            estimate(candidates_sharing_ipus(step, ipus, given))
    return estimates


def system_of(candidate: Candidate) -> System:
    """Return how a step is cut, but for where."""
    return candidate.stages, candidate.device_map


def way_of(candidate: Candidate) -> tuple[System, str]:
    """Return what decides most of what a candidate needs."""
    return system_of(candidate), candidate.recompute


def _lacking(estimates: Sequence[Estimate]) -> list[Candidate]:
    """Return the most promising ways that lack memory by estimate: other cuts may need less."""
    best: dict[tuple[System, str], Candidate] = {}
    for x in sorted(estimates, key=lambda x: -x.per_second / x.needed_bytes):
        if not x.fits and may_fit(x):
            best.setdefault(way_of(x.candidate), x.candidate)
    return [x for x in best.values() if x.ipus > 1][:_CUT_ANEW]


def _first_round(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return of each system and kind of recomputation what uses IPUs best and needs least."""
    best: dict[tuple[System, str], Candidate] = {}
    for candidate in candidates:
        key = way_of(candidate)
        if key not in best or _plain(candidate) < _plain(best[key]):
            best[key] = candidate
    return list(best.values())


def _leanest(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return of stages on IPUs of their own, or all on one, what needs least: made again."""
    best: dict[System, Candidate] = {}
    for candidate in candidates:
        key = system_of(candidate)
        if key not in best or _lean(candidate) < _lean(best[key]):
            best[key] = candidate
    return [c for c in best.values() if not c.device_map or c.ipus == 1] or list(best.values())


def _lean(candidate: Candidate) -> tuple[bool, bool, int]:
    return candidate.recompute != BLOCKS, candidate.offload == OFF, candidate.micro_batches


def _plain(candidate: Candidate) -> tuple[bool, bool, int]:
    """Return a rank: state beside the IPUs and most micro-batches first."""
    return candidate.offload == OFF, candidate.shard_optimizer, -candidate.micro_batches


def _promising(estimates: Sequence[Estimate]) -> set[System]:
    some = [estimate for estimate in estimates if estimate.fits] or [*filter(may_fit, estimates)]
    fastest = dict.fromkeys(
        system_of(estimate.candidate)
        for estimate in sorted(some or estimates, key=lambda estimate: -estimate.per_second)
    )
    leanest = dict.fromkeys(
        system_of(estimate.candidate)
        for estimate in sorted(estimates, key=lambda estimate: estimate.needed_bytes)
    )
    return {*list(fastest)[:_FASTEST], *list(leanest)[:_LEANEST]}
