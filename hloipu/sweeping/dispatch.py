"""Dispatch batches of tasks to workers; tasks of a dead worker run again, each alone."""

from collections import deque
from time import perf_counter
from typing import Any, NamedTuple

from hloipu.sweeping.workers import Finished, Task, Workers
from hloipu_runtime.watching import doing

DIED = "its worker died, each time that it was tried"
BATCH_SECONDS = 5.0
"""After which a worker begins no further task of a batch: results come about as often. Assumed."""


class Batch(NamedTuple):
    """Tasks that one worker does one after another, so that they share what it keeps.

    It goes out as one: a scheduler's and the client's work for it is that for one task.
    """

    tasks: tuple[Task, ...]

    @property
    def key(self) -> str:
        """The first task's."""
        return self.tasks[0].key

    def done(self, folder: str, *, guarded: bool) -> list[Any]:
        """Run the tasks in order; return the results of those that began in time."""
        results: list[Any] = []
        start = perf_counter()
        while len(results) < len(self.tasks):
            results.append(self.tasks[len(results)].done(folder, guarded=guarded))
            if perf_counter() - start > BATCH_SECONDS:
                break
        return results


class Dispatch:
    """Tasks that are with workers, or wait to be done alone."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._out: dict[str, Batch] = {}
        """By the batch's key."""
        self._open: set[str] = set()
        """Keys of tasks that have no result yet."""
        self._suspects: deque[Task] = deque()
        """Tasks that were out when a worker died."""
        self._deaths: dict[str, int] = {}
        self._has_started = False

    def is_open(self, key: str) -> bool:
        """Whether a task is with the workers, or waits to be done alone."""
        return key in self._open

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open."""
        return not self._open

    @property
    def has_room(self) -> bool:
        """Whether workers may have more batches."""
        return len(self._out) < self._workers.places and not self._suspects

    def hand_out(self, *tasks: Task) -> None:
        """Submit a batch of tasks; workers start with the first."""
        if not self._has_started:
            self._has_started = True
            with doing("starting the workers"):
                self._workers.start()
        batch = Batch(tasks)
        self._open.update(task.key for task in tasks)
        self._out[batch.key] = batch
        self._workers.submit(batch)

    def wait(self) -> list[Finished]:
        """Wait for a batch; return keys and results of its tasks.

        None for the result of a task by which each worker died that had it. Nothing at all: a
        worker died, and what it had will be done again.
        """
        if not self._out:
            self.hand_out(self._suspects.popleft())
        key, results = self._workers.wait()
        batch = self._out.pop(key, None)
        if batch is None:
            return []
        if results is None:
            if not self._is_to_blame(batch):
                self._suspects.extend(batch.tasks)
                return []
            results = [None]
        finished = [(task.key, x) for task, x in zip(batch.tasks, results, strict=False)]
        self._open.difference_update(key for key, _ in finished)
        if finished and len(finished) < len(batch.tasks):
            self.hand_out(*batch.tasks[len(finished) :])
        return finished

    def _is_to_blame(self, batch: Batch) -> bool:
        """Whether a batch is one task, by which workers died that had no other one."""
        for task in batch.tasks:  # not counted: the first
            self._deaths[task.key] = self._deaths.get(task.key, -1) + 1
        return len(batch.tasks) == 1 and self._deaths[batch.key] >= self._workers.deaths_alone
