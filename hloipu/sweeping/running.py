"""Running the points of a study: jobs to workers, results into the file, one by one."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from hloipu.sweeping.jobs import WORKER_DIED, Job, failure
from hloipu.sweeping.request import Compile
from hloipu.sweeping.store import Store
from hloipu.sweeping.workers import Workers
from hloipu_runtime.watching import doing, telling

_MOST_DEATHS_ALONE = 2
"""Of workers that did nothing but this job: then it is the job."""
_PLANNED_AT_ONCE = 500
"""Points that are written down in one transaction."""


class Runner:
    """Runs compiles and keeps their results; equal ones run once."""

    def __init__(self, store: Store, workers: Workers, count: int) -> None:
        self.store = store
        self._workers = workers
        self._count = count
        self._done = store.keys_done()
        self._out: dict[str, Job] = {}
        """Jobs that workers have."""
        self._suspects: deque[Job] = deque()
        """Jobs that were out when a worker died: each is done alone."""
        self._deaths: dict[str, int] = {}
        self._has_started = False

    def is_done(self, key: str) -> bool:
        """Whether the result of a compile is in the file."""
        return key in self._done

    def is_open(self, key: str) -> bool:
        """Whether a compile is with the workers, or waits to be done alone."""
        return key in self._out or any(job.key == key for job in self._suspects)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open."""
        return not self._out and not self._suspects

    @property
    def has_room(self) -> bool:
        """Whether workers may have more jobs."""
        return len(self._out) < self._workers.places and not self._suspects

    def begin(self, compile: Compile) -> None:
        """Hand a compile out, unless it is done or out already."""
        if self.is_done(compile.key) or self.is_open(compile.key):
            return
        if compile.job is None:
            error = compile.error
            assert error is not None
            self._keep(compile.key, failure(error.code, error.message))
            return
        self._hand_out(compile.job)

    def wait(self) -> str:
        """Wait for a result and keep it; return its key, or an empty one where a worker died."""
        if not self._out:
            self._hand_out(self._suspects.popleft())
        key, record = self._workers.wait()
        job = self._out.pop(key, None)
        if job is None:
            return ""
        if record is None:
            record = self._died(job)
        if record is None:
            self._suspects.append(job)
            return ""
        self._keep(key, record)
        return key

    def _died(self, job: Job) -> dict[str, Any] | None:
        """Return the record of a job whose worker died with nothing else to do; None: try again."""
        self._deaths[job.key] = self._deaths.get(job.key, -1) + 1  # the first one is not counted
        if self._deaths[job.key] < _MOST_DEATHS_ALONE:
            return None
        limits = "its memory or its time, or a fault of the system, ended it"
        return failure(WORKER_DIED, f"its worker died {_MOST_DEATHS_ALONE + 1} times: {limits}")

    def _hand_out(self, job: Job) -> None:
        if not self._has_started:
            self._has_started = True
            with doing("starting the workers"):
                self._workers.start()
        self._out[job.key] = job
        self._workers.submit(job)

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
