"""Cases judged on processes of this machine, or on the workers of a Dask cluster.

    python -m tools.NAME … --workers 4                          # processes
    python -m tools.NAME … --scheduler tcp://192.168.0.1:8786   # hloipu, tools, tests: also there

What judges is a function that can be pickled. What it needs for many cases, such as a child process
of XLA, it keeps in its process by `lru_cache`. A worker that dies costs the case that it had, no
other one: those that were out are judged again, each alone.
"""

import argparse
import ctypes
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from hloipu.sweeping.jobs import ended_after
from hloipu.sweeping.running import DIED, Dispatch
from hloipu.sweeping.workers import Workers, workers_for
from tests.support.xla_oracle import Oracle

C = TypeVar("C")
R = TypeVar("R")


class Where(NamedTuple):
    """Where cases are judged, and what a case may take there."""

    workers: int = 0
    """Processes of this machine; 0: this process."""
    scheduler: str | None = None
    """The address of a Dask scheduler, whose workers there are in place of processes here."""
    seconds: float | None = None
    """By the clock; then its worker is ended."""
    memory_bytes: int | None = None
    """Of a worker."""


HERE = Where()


class _Raised(NamedTuple):
    """What a judge raised."""

    told: str


class _Trial(NamedTuple):
    """A case that is to be judged."""

    key: str
    judge: Callable[[Any], Any]
    case: Any
    seconds: float | None

    def done(self, folder: str, *, guarded: bool) -> Any:
        """Judge the case."""
        try:
            with ended_after(self.seconds if guarded else None):
                return (self.judge(self.case),)
        except Exception:  # whatever it is: the case's outcome says it
            return _Raised(traceback.format_exc(limit=-3))


def add_where(parser: argparse.ArgumentParser, workers: int = 2) -> None:
    """Add `--workers` and `--scheduler`."""
    parser.add_argument("--workers", type=int, default=workers, help="processes; 0: this one")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of Dask: its workers in place")


def positive(text: str) -> float:
    """Return a number of seconds that an option states; for `type=` of `add_argument`."""
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return seconds


def where_of(
    asked: argparse.Namespace, *, seconds: float | None = None, memory_bytes: int | None = None
) -> Where:
    """Return what `add_where` was answered."""
    return Where(asked.workers, asked.scheduler, seconds, memory_bytes)


def mapped(
    judge: Callable[[C], R], cases: Iterable[C], lost: Callable[[C, str], R], where: Where
) -> Iterator[R]:
    """Yield what becomes of each case, as they end; cases are taken as workers have room.

    `lost` says what becomes of a case that the judge raised something for, or whose workers died.
    Raises UsageError E3193 where there is no cluster, or it goes away.
    """
    out: dict[str, C] = {}

    def ended() -> Iterator[R]:
        for key, answer in tasks.wait():
            case = out.pop(key)
            if answer is None or isinstance(answer, _Raised):
                yield lost(case, DIED if answer is None else answer.told)
            else:
                yield answer[0]

    with closing(_workers(where)) as workers:
        tasks = Dispatch(workers)
        for number, case in enumerate(cases):
            while not tasks.has_room:
                yield from ended()
            key = str(number)
            out[key] = case
            tasks.hand_out(_Trial(key, judge, case, where.seconds))
        while not tasks.is_idle:
            yield from ended()


@contextmanager
def raised_after(seconds: float, error: type[Exception]) -> Iterator[None]:
    """Raise an error in this thread after so long, between two of Python's own instructions.

    Unlike a signal's, it also comes to threads of Dask's workers.
    """
    thread = ctypes.c_ulong(threading.get_ident())
    ending = threading.Lock()

    def late() -> None:
        if ending.acquire(blocking=False):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(error))

    timer = threading.Timer(seconds, late)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        ending.acquire(blocking=False)
        timer.cancel()


@lru_cache(maxsize=1)
def kept_oracle(timeout_seconds: float) -> Oracle:
    """Return the child process of XLA that a worker keeps; it ends with the worker."""
    return Oracle(timeout_seconds=timeout_seconds)


def _workers(where: Where) -> Workers:
    if where.scheduler is not None:
        return workers_for({}, None, where.scheduler, where.memory_bytes)
    return workers_for({}, where.workers, None, where.memory_bytes if where.workers else None)
