"""Pair donated parameters with the results that replace them.

`must-alias` says so. `may-alias` does not: JAX gives each result, in order, the memory of the first
donated argument of its shape that is left (jax-ml/jax: jax/_src/interpreters/mlir.py), so that a
loss may be given the memory of a learning rate. What it does say is which parameters are donated.
Their new values are looked for as runs of results, one for each argument of the user's function.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import groupby, pairwise
from typing import NamedTuple

from hloipu_compiler.plan.wrapping import EntryArray

Pairs = list[tuple[int, int]]
_MOST_COMPARISONS = 10**7


class AliasPair(NamedTuple):
    """One entry of the header."""

    parameter: int
    result: int
    must: bool


def paired_state(
    aliases: Sequence[AliasPair],
    parameters: Sequence[EntryArray],
    results: Sequence[EntryArray],
    not_state: Set[int],
) -> Pairs | None:
    """Return (parameter, result) of all aliased parameters, or None where it is not clear.

    `not_state`: parameters that are no state, donated or not.
    """
    optional = [(alias.parameter, alias.result) for alias in aliases if not alias.must]
    is_meant = _greedy(optional, parameters, results) != dict(optional)
    settled = [
        (alias.parameter, alias.result)
        for alias in aliases
        if alias.must and alias.parameter not in not_state
    ]
    open_ones = [pair for pair in optional if pair[0] not in not_state]
    if not open_ones or is_meant:
        return sorted((*settled, *open_ones))
    used_results = {result for _, result in settled}
    free = [array for array in results if array.number not in used_results]
    donated = [parameters[number] for number, _ in sorted(open_ones)]
    pairs = runs_of_results(donated, free)
    if pairs is None and _has_no_choice(donated, free):
        pairs = open_ones
    return None if pairs is None else sorted((*settled, *pairs))


def _greedy(
    pairs: Pairs, parameters: Sequence[EntryArray], results: Sequence[EntryArray]
) -> Mapping[int, int]:
    """Return what the same donated parameters are given if each result takes the first alike."""
    waiting: dict[object, list[int]] = {}
    for number, _ in sorted(pairs, reverse=True):
        waiting.setdefault(parameters[number].kind, []).append(number)
    paired: dict[int, int] = {}
    for result in results:
        if waiting.get(result.kind):
            paired[waiting[result.kind].pop()] = result.number
    return paired


def _has_no_choice(donated: Sequence[EntryArray], results: Sequence[EntryArray]) -> bool:
    """Whether there are as many results of each kind as donated parameters."""
    wanted = Counter(array.kind for array in donated)
    available = Counter(array.kind for array in results)
    return all(available[kind] == count for kind, count in wanted.items())


def runs_of_results(donated: Sequence[EntryArray], results: Sequence[EntryArray]) -> Pairs | None:
    """Return the only runs of results that are like the groups of some donated parameters.

    None: there are none, or several.
    """
    groups = [
        list(members) for _, members in groupby(donated, key=lambda parameter: parameter.group)
    ]
    if len(donated) * len(results) > _MOST_COMPARISONS:
        return None
    kinds = [result.kind for result in results]
    offsets = [_offsets([parameter.kind for parameter in group], kinds) for group in groups]
    chosen = (
        [offset[0] for offset in offsets] if all(len(starts) == 1 for starts in offsets) else None
    )
    if chosen is None or not _are_apart(chosen, groups):
        chosen = _in_order(offsets, [len(group) for group in groups])
    if chosen is None:
        return None
    return [
        (parameter.number, results[start + n].number)
        for start, group in zip(chosen, groups, strict=True)
        for n, parameter in enumerate(group)
    ]


def _offsets(wanted: Sequence[object], kinds: Sequence[object]) -> list[int]:
    last = len(kinds) - len(wanted)
    return [
        start
        for start in range(last + 1)
        if all(kinds[start + n] == kind for n, kind in enumerate(wanted))
    ]


def _are_apart(chosen: Sequence[int], groups: Sequence[Sequence[EntryArray]]) -> bool:
    ends = sorted((start, start + len(group)) for start, group in zip(chosen, groups, strict=True))
    return all(end <= start for (_, end), (start, _) in pairwise(ends))


def _in_order(offsets: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[int] | None:
    """Return the only choice of one offset each that keeps the groups' order, or None."""
    latest, bound = [], None
    for possible, size in zip(reversed(offsets), reversed(sizes), strict=True):
        fitting = [offset for offset in possible if bound is None or offset + size <= bound]
        if not fitting:
            return None
        bound = fitting[-1]
        latest.append(bound)
    earliest, at = [], 0
    for possible, size in zip(offsets, sizes, strict=True):
        at = next((offset for offset in possible if offset >= at), -1)
        if at < 0:
            return None
        earliest.append(at)
        at += size
    return earliest if earliest == latest[::-1] else None
