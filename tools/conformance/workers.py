"""Chooses cases, and runs them on workers, each with an XLA child of its own."""

from collections.abc import Iterator, Sequence
from zlib import crc32

from tools.conformance.case import Case
from tools.conformance.cases import all_cases
from tools.conformance.deviations import read
from tools.conformance.outcome import FAILED, Outcome, judged
from tools.mapping import Where, kept_oracle, mapped

ORACLE_SECONDS = 20.0
"""Longest wait for XLA; most modules take a fiftieth of a second."""


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


def outcomes(cases: Sequence[Case], where: Where) -> Iterator[Outcome]:
    """Yield the outcome of each case, as they end."""
    return mapped(_judged, cases, _lost, where)


def _judged(case: Case) -> Outcome:
    return judged(case, kept_oracle(ORACLE_SECONDS), read())


def _lost(case: Case, said: str) -> Outcome:
    return Outcome(case.name, case.opcode, case.element_type, FAILED, said)
