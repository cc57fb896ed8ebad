"""Sweep workers: processes of this machine, or a Dask cluster, behind one interface.

with workers:                       # modules go to each machine once
    workers.submit(task)            # at most `places` at a time
    key, result = workers.wait()    # None for the result: the task's worker died
"""

import os
import queue
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any, Protocol

from hloipu.sweeping.jobs import begin_worker, write_modules
from hloipu_runtime.errors import UsageError

Finished = tuple[str, Any]
"""The key of a task, and what came of it; None: its worker died."""
JOBS_AHEAD = 2
"""Tasks that each worker has: the one that it does, and the next."""
MOST_WORKERS = 4096
_MOST_STARTS = 2
"""Of processes that end before any does a task: then none will."""


class Task(Protocol):
    """Something to do, which goes to a worker pickled, such as a `Job`."""

    @property
    def key(self) -> str:
        """By which its result comes back."""

    def done(self, folder: str, *, guarded: bool) -> Any:
        """Do it, and return the result; modules are in the folder.

        `guarded`: this process is a worker's, and may end.
        """


def done(task: Task, folder: str) -> Any:
    """Do a task in a worker's process."""
    return task.done(folder, guarded=True)


class Workers(Protocol):
    """Who does tasks."""

    deaths_alone: int
    """How often workers die that do nothing but one task before that is to blame."""

    @property
    def places(self) -> int:
        """Tasks to hand out at a time."""

    def start(self) -> None:
        """Start them; UsageError E3193 where that fails."""

    def submit(self, task: Task) -> None:
        """Hand a task out."""

    def wait(self) -> Finished:
        """Run the task that came first.

        Raises UsageError E3193 where the workers are gone for good.
        """

    def close(self) -> None:
        """End them, whatever they are at."""


class HereWorkers:
    """No workers: tasks run in this process, one by one."""

    places = 1
    deaths_alone = 1

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._tasks: list[Task] = []

    def start(self) -> None:
        """Write the modules out."""
        self._folder = tempfile.TemporaryDirectory(prefix="hloipu-sweep-")
        write_modules(self._folder.name, self._texts)

    def submit(self, task: Task) -> None:
        """Keep a task until somebody waits."""
        self._tasks.append(task)

    def wait(self) -> Finished:
        """Do the task that came first."""
        task = self._tasks.pop(0)
        assert self._folder is not None
        return task.key, task.done(self._folder.name, guarded=False)

    def close(self) -> None:
        """Remove the modules."""
        if self._folder is not None:
            self._folder.cleanup()


class ProcessWorkers:
    """Processes of this machine; where one dies all of them are restarted."""

    deaths_alone = 2

    def __init__(self, texts: Mapping[str, str], count: int, memory_bytes: int | None) -> None:
        self.places: int = JOBS_AHEAD * count
        self._texts = texts
        self._count = count
        self._memory_bytes = memory_bytes
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._pool: ProcessPoolExecutor | None = None
        self._finished: queue.SimpleQueue[tuple[str, Future[Any]]] = queue.SimpleQueue()
        self._has_worked = False
        self._starts = 0

    def start(self) -> None:
        """Write the modules out; processes start with the first tasks."""
        self._folder = tempfile.TemporaryDirectory(prefix="hloipu-sweep-")
        write_modules(self._folder.name, self._texts)
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        self._starts += 1
        # Spawned: forked ones would share threads' locks, and could not start on every system.
        return ProcessPoolExecutor(
            self._count, get_context("spawn"), begin_worker, (self._memory_bytes,)
        )

    def submit(self, task: Task) -> None:
        """Hand a task out."""
        assert self._folder is not None
        assert self._pool is not None
        try:
            future = self._pool.submit(done, task, self._folder.name)
        except BrokenProcessPool:
            self._renew()
            future = self._pool.submit(done, task, self._folder.name)
        _tell(future, task.key, self._finished)

    def wait(self) -> Finished:
        """Return the next that is finished, or whose worker died."""
        key, future = self._finished.get()
        try:
            result = future.result()
        except BrokenProcessPool:
            if not self._has_worked and self._starts > _MOST_STARTS:
                raise UsageError(
                    "E3193",
                    "the processes of the sweep end as they start",
                    hint="a script that sweeps does so within `if __name__ == '__main__':`; "
                    "else give them more memory, or sweep in this process: workers=0",
                ) from None
            return key, None
        self._has_worked = True
        return key, result

    def _renew(self) -> None:
        self._end_pool()
        self._pool = self._new_pool()

    def _end_pool(self) -> None:
        if self._pool is None:
            return
        processes = list((getattr(self._pool, "_processes", None) or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            with suppress(OSError, ValueError):
                process.kill()
        for process in processes:
            process.join(5)

    def close(self) -> None:
        """End the processes, and remove the modules."""
        self._end_pool()
        if self._folder is not None:
            self._folder.cleanup()


def _tell(future: Any, key: str, finished: "queue.SimpleQueue[Any]") -> None:
    put_result: Callable[[Any], None] = lambda one: finished.put((key, one))  # noqa: E731
    future.add_done_callback(put_result)


def processors() -> int:
    """Return how many processors this process may use."""
    with suppress(AttributeError):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def workers_for(
    texts: Mapping[str, str], count: int | None, scheduler: str | None, memory_bytes: int | None
) -> Workers:
    """Return the workers that are asked for.

    `count` processes, as many as there are processors by default, 0: this process; or with a
    `scheduler`, the address of a Dask cluster, its workers.
    Raises UsageError E3192 for a scheduler where Dask is not installed, E3190 for a count.
    """
    if scheduler is None and count == 0:
        if memory_bytes is not None:
            raise UsageError(
                "E3190", "this process is not limited in memory", hint="sweep on a worker at least"
            )
        return HereWorkers(texts)
    if count is not None and not 0 <= count <= MOST_WORKERS:
        raise UsageError("E3190", f"{count} workers; a sweep has 0 to {MOST_WORKERS}")
    if scheduler is not None:
        if count is not None:
            raise UsageError(
                "E3190",
                f"{count} workers: a cluster has those that were started for it",
                hint="leave out the number of workers, or the scheduler",
            )
        if find_spec("distributed") is None:
            raise UsageError("E3192", "Dask is not installed", hint="pip install 'hloipu[sweep]'")
        from hloipu.sweeping.dask_workers import DaskWorkers

        return DaskWorkers(texts, scheduler, memory_bytes)
    return ProcessWorkers(texts, count or processors(), memory_bytes)
