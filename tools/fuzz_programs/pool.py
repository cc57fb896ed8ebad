"""Many programs in worker processes, each with an oracle child of its own."""

import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import FrameType

from tests.support.xla_oracle import Oracle
from tools.fuzz_programs.judge import FAILED, Outcome, judged
from tools.fuzz_programs.program import generate

CHUNK = 8
SECONDS_A_PROGRAM = 60


class _Overtime(Exception):
    """A program took longer than any should."""


def run(seed: int, first: int, count: int, workers: int) -> Iterator[Outcome]:
    """Yield the outcome of each program, in order."""
    with ProcessPoolExecutor(workers, get_context("spawn")) as processes:
        tasks = [
            processes.submit(_serve, seed, start, min(CHUNK, first + count - start))
            for start in range(first, first + count, CHUNK)
        ]
        try:
            for task in tasks:
                yield from task.result()
        except BaseException:
            processes.shutdown(wait=False, cancel_futures=True)
            raise
        for end in [processes.submit(_close) for _ in range(workers)]:
            end.result()


_oracles: list[Oracle] = []


def _serve(seed: int, first: int, count: int) -> list[Outcome]:
    if not _oracles:
        _oracles.append(Oracle())
        signal.signal(signal.SIGALRM, _give_up)
    return [one(seed, number, _oracles[0]) for number in range(first, first + count)]


def _close() -> None:
    for oracle in _oracles:
        oracle.close()
    _oracles.clear()


def _give_up(number: int, frame: FrameType | None) -> None:
    raise _Overtime


def one(seed: int, number: int, oracle: Oracle) -> Outcome:
    """Make and judge one program, within a time."""
    signal.alarm(SECONDS_A_PROGRAM)
    try:
        return judged(generate(seed, number), oracle)
    except _Overtime:
        oracle.close()
        return Outcome(number, FAILED, f"no end within {SECONDS_A_PROGRAM} s")
    finally:
        signal.alarm(0)
