"""Run cases in worker processes, each with an XLA child of its own."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from queue import Empty
from typing import Any
from zlib import crc32

from tests.support.xla_oracle import Oracle
from tools.conformance.case import Case
from tools.conformance.cases import all_cases
from tools.conformance.deviations import read
from tools.conformance.outcome import Outcome, judged

ORACLE_SECONDS = 20.0
"""Longest wait for XLA; most modules take a fiftieth of a second."""

ANSWER_SECONDS = 300.0
"""Longest wait for the next outcome; far beyond the oracle's own time limit."""


def chosen_cases(sample: int | None = None, only: str = "") -> list[Case]:
    """Return all cases, or those whose name contains `only`, or a sample spread over the opcodes.

    The sample takes cases in the order of a checksum of their names, opcode after opcode in turn,
    so that it is the same everywhere and covers as many opcodes as it has cases.
    """
    cases = [case for case in all_cases() if only in case.name]
    if sample is None or sample >= len(cases):
        return cases
    queues: dict[str, list[Case]] = {}
    for case in sorted(cases, key=lambda c: crc32(c.name.encode())):
        queues.setdefault(case.opcode, []).append(case)
    taken: list[Case] = []
    turn = 0
    while len(taken) < sample:
        taken += [queue[turn] for queue in queues.values() if turn < len(queue)]
        turn += 1
    return taken[:sample]


def outcomes(cases: Sequence[Case]) -> Iterator[Outcome]:
    """Yield the outcome of each case in this process."""
    table = read()
    with Oracle(timeout_seconds=ORACLE_SECONDS) as oracle:
        for case in cases:
            yield judged(case, oracle, table)


def outcomes_in_parallel(sample: int | None, only: str, workers: int) -> Iterator[Outcome]:
    """Yield the outcomes of the chosen cases as they come; each worker makes the cases anew."""
    yield from answers(_work, (sample, only), workers)


def answers(work: Callable[..., None], arguments: tuple[Any, ...], workers: int) -> Iterator[Any]:
    """Yield what worker processes put into their queue, until each has put None.

    A worker runs `work(*arguments, number, workers, queue)`. Raises TimeoutError where none answers
    for long: one has died.
    """
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    processes = [
        context.Process(target=work, args=(*arguments, number, workers, queue), daemon=True)
        for number in range(workers)
    ]
    for process in processes:
        process.start()
    running = workers
    while running:
        try:
            outcome = queue.get(timeout=ANSWER_SECONDS)
        except Empty:
            raise TimeoutError(f"no outcome in {ANSWER_SECONDS} s; a worker died") from None
        if outcome is None:
            running -= 1
        else:
            yield outcome
    for process in processes:
        process.join()


def _work(sample: int | None, only: str, number: int, workers: int, queue: Any) -> None:
    parent = multiprocessing.parent_process()
    for outcome in outcomes(chosen_cases(sample, only)[number::workers]):
        if parent is not None and not parent.is_alive():
            return  # whoever asked was ended: nobody reads on
        queue.put(outcome)
    queue.put(None)
