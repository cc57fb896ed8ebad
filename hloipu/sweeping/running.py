"""Running the points of a study: jobs to workers, results into the file, one by one."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from hloipu.sweeping.dispatch import DIED, Dispatch
from hloipu.sweeping.jobs import WORKER_DIED, failure
from hloipu.sweeping.request import Compile
from hloipu.sweeping.store import Store
from hloipu.sweeping.workers import Workers
from hloipu_runtime.watching import telling

_PLANNED_AT_ONCE = 500
"""Points that are written down in one transaction."""


class Runner:
    """Runs compiles and keeps their results; equal ones run once."""

    def __init__(self, store: Store, workers: Workers, count: int) -> None:
        self.store = store
        self._tasks = Dispatch(workers)
        self._count = count
        self._done = store.keys_done()

    def is_done(self, key: str) -> bool:
        """Whether the result of a compile is in the file."""
        return key in self._done

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open."""
        return self._tasks.is_idle

    @property
    def has_room(self) -> bool:
        """Whether workers may have more jobs."""
        return self._tasks.has_room

    def begin(self, compile: Compile) -> None:
        """Hand a compile out, unless it is done or out already."""
        if self.is_done(compile.key) or self._tasks.is_open(compile.key):
            return
        if compile.job is None:
            error = compile.error
            assert error is not None
            self._keep(compile.key, failure(error.code, error.message))
            return
        self._tasks.hand_out(compile.job)

    def wait(self) -> str:
        """Wait for a result and keep it; return its key, or an empty one where a worker died."""
        finished = self._tasks.wait()
        if finished is None:
            return ""
        key, record = finished
        died = f"{DIED}: its memory or its time, or a fault of the system, ended it"
        self._keep(key, failure(WORKER_DIED, died) if record is None else record)
        return key

    def _keep(self, key: str, record: Mapping[str, Any]) -> None:
        self.store.add_result(key, record)
        self._done.add(key)

    def tell(self, done: int) -> None:
        """Tell whoever listens how many points are done."""
        telling("points", done, self._count)


def run_points(runner: Runner, compiles: Iterator[Compile]) -> None:
    """Run compiles in order, as many at a time as workers take."""
    done, waiting = 0, dict[str, int]()
    runner.tell(0)
    for compile in compiles:
        if runner.is_done(compile.key):
            done += 1
            continue
        while not runner.has_room:
            done += waiting.pop(runner.wait(), 0)
            runner.tell(done)
        waiting[compile.key] = waiting.get(compile.key, 0) + 1
        runner.begin(compile)
        if runner.is_done(compile.key):
            done += waiting.pop(compile.key)
    while not runner.is_idle:
        done += waiting.pop(runner.wait(), 0)
        runner.tell(done)


def planned(
    store: Store, points: Iterator[dict[str, str]], compile_of: Callable[[dict[str, str]], Compile]
) -> Iterator[Compile]:
    """Yield the points' compiles once they are in the file, numbered from 1 on."""
    number = 0
    while batch := list(islice(points, _PLANNED_AT_ONCE)):
        rows, compiles = [], []
        for point in batch:
            number += 1
            compile = compile_of(point)
            rows.append((number, point, compile.key, compile.command))
            compiles.append(compile)
        store.add_points(rows)
        yield from compiles
