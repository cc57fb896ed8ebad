"""Mutants drawn and judged in worker processes, the same ones however many workers there are."""

import multiprocessing
import random
from collections.abc import Iterator, Sequence
from queue import Empty
from typing import Any, NamedTuple

from tools.prove_exchanges.kinds import KINDS, mutant
from tools.prove_exchanges.subjects import subjects
from tools.prove_exchanges.trial import Original, Verdict, judged

ANSWER_SECONDS = 5.0
"""How often workers that say nothing are looked after."""

MOST_DRAWS = 2000
"""Programs and places tried for one mutant: few programs have a grid of equal axes, say."""


class Wanted(NamedTuple):
    """How many programs and mutants, and which ones."""

    programs: int
    mutants: int
    seed: int
    workers: int


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


def _work(wanted: Wanted, number: int, queue: Any) -> None:
    parent = multiprocessing.parent_process()
    originals = [Original(x) for x in subjects(wanted.programs, wanted.seed)]
    queue.put(len(originals))
    mine = range(number, wanted.mutants, wanted.workers)
    for found in verdicts_of(originals, wanted.seed, mine):
        if parent is not None and not parent.is_alive():
            return  # whoever asked was ended: nobody reads on
        queue.put(found)
    queue.put(None)


def in_parallel(wanted: Wanted) -> tuple[int, list[Verdict]]:
    """Return the number of programs, and all verdicts in the order of their numbers."""
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    processes = [
        context.Process(target=_work, args=(wanted, number, queue), daemon=True)
        for number in range(wanted.workers)
    ]
    for process in processes:
        process.start()
    running, programs = wanted.workers, 0
    found: dict[int, Verdict] = {}
    while running:
        try:
            answer = queue.get(timeout=ANSWER_SECONDS)
        except Empty:
            if all(process.exitcode in (None, 0) for process in processes):
                continue
            raise ChildProcessError("a worker died; what it printed tells why") from None
        if answer is None:
            running -= 1
        elif isinstance(answer, int):
            programs = answer
        else:
            found[answer[0]] = answer[1]
    return programs, [found[number] for number in sorted(found)]
