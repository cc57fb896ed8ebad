"""Mutants drawn and judged in worker processes, the same ones however many workers there are."""

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from tools.mapping import Where, mapped
from tools.prove_exchanges.kinds import KINDS, mutant
from tools.prove_exchanges.subjects import subjects
from tools.prove_exchanges.trial import Original, Verdict, judged

MOST_DRAWS = 2000
"""Programs and places tried for one mutant: few programs have a grid of equal axes, say."""


class Wanted(NamedTuple):
    """How many programs and mutants, and which ones."""

    programs: int
    mutants: int
    seed: int


def verdicts_of(
    originals: Sequence[Original], seed: int, numbers: range, names: Sequence[str] = tuple(KINDS)
) -> Iterator[tuple[int, Verdict]]:
    """Yield the verdicts on mutants of some numbers; kinds of these names take turns."""
    for number in numbers:
        rng = random.Random(f"{seed}:{number}")
        kind = names[number % len(names)]
        for _ in range(MOST_DRAWS):
            original = rng.choice(originals)
            changed = mutant(original.subject, kind, rng)
            if changed is not None:
                yield number, judged(original, kind, changed)
                break


def _numbered(number: int, wanted: Wanted) -> tuple[int, list[tuple[int, Verdict]]]:
    originals = _originals(wanted.programs, wanted.seed)
    return len(originals), [*verdicts_of(originals, wanted.seed, range(number, number + 1))]


@lru_cache(maxsize=1)
def _originals(programs: int, seed: int) -> list[Original]:
    return [Original(x) for x in subjects(programs, seed)]


def _lost(number: int, said: str) -> tuple[int, list[tuple[int, Verdict]]]:
    raise ChildProcessError(f"mutant {number}: {said}")


def in_parallel(wanted: Wanted, where: Where) -> tuple[int, list[Verdict]]:
    """Return the number of programs, and all verdicts in the order of their numbers.

    Raises ChildProcessError where a mutant ends its worker.
    """
    judge = partial(_numbered, wanted=wanted)
    answers = [*mapped(judge, range(wanted.mutants), _lost, where)]
    verdict_by_number = dict(pair for _, pairs in answers for pair in pairs)
    return max(count for count, _ in answers), [
        verdict_by_number[number] for number in sorted(verdict_by_number)
    ]
