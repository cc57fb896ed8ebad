"""Hands tasks to workers; tasks that a dead worker had are done again, each alone."""

from collections import deque

from hloipu.sweeping.workers import Finished, Task, Workers
from hloipu_runtime.watching import doing

DIED = "its worker died, each time that it was tried"


class Dispatch:
    """Tasks that are with workers, or wait to be done alone."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._out: dict[str, Task] = {}
        self._suspects: deque[Task] = deque()
        """Tasks that were out when a worker died."""
        self._deaths: dict[str, int] = {}
        self._has_started = False

    def is_open(self, key: str) -> bool:
        """Whether a task is with the workers, or waits to be done alone."""
        return key in self._out or any(task.key == key for task in self._suspects)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open."""
        return not self._out and not self._suspects

    @property
    def has_room(self) -> bool:
        """Whether workers may have more tasks."""
        return len(self._out) < self._workers.places and not self._suspects

    def hand_out(self, task: Task) -> None:
        """Hand a task out; workers start with the first."""
        if not self._has_started:
            self._has_started = True
            with doing("starting the workers"):
                self._workers.start()
        self._out[task.key] = task
        self._workers.submit(task)

    def wait(self) -> Finished | None:
        """Wait for a result; None for that of a task by which each worker died that had it.

        None in place of key and result: a worker died, and what it had will be done again.
        """
        if not self._out:
            self.hand_out(self._suspects.popleft())
        key, result = self._workers.wait()
        task = self._out.pop(key, None)
        if task is None:
            return None
        if result is None:
            deaths = self._deaths[key] = self._deaths.get(key, -1) + 1  # not counted: the first
            if deaths < self._workers.deaths_alone:
                self._suspects.append(task)
                return None
        return key, result
