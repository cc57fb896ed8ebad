"""Run the points of a study: batches of jobs to workers, results into the file.

Tasks of a worker that died run again, each alone.
"""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

from hloipu.sweeping.jobs import WORKER_DIED, Job, failure
from hloipu.sweeping.request import Compile
from hloipu.sweeping.store import Store
from hloipu.sweeping.workers import Finished, Task, Workers
from hloipu_runtime.watching import doing, telling

_PLANNED_AT_ONCE = 500
"""Points that are written down in one transaction, and brought into an order that suits workers."""
_MOST_IN_BATCH = 16
_BATCHES_OF_A_PLACE = 4
"""At least, of a study's points: else workers end at very different times. Both assumed."""


class Runner:
    """Runs compiles and keeps their results; equal ones run once."""

    def __init__(self, store: Store, workers: Workers, count: int) -> None:
        self.store = store
        self._tasks = Dispatch(workers)
        self._workers = workers
        self._count = count
        self._done = store.keys_done()
        self._seconds: deque[float] = deque(maxlen=_MOST_IN_BATCH)
        """That the last compiles took."""

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

    def in_batch(self) -> int:
        """Return how many compiles go out as one: by what earlier ones took, few seconds' work."""
        places = self._workers.places
        if places == 1 or not self._seconds:
            return 1
        share = self._count // (_BATCHES_OF_A_PLACE * places)
        by_time = int(BATCH_SECONDS * len(self._seconds) / sum(self._seconds))
        return max(1, min(_MOST_IN_BATCH, share, by_time))

    def begin(self, *compiles: Compile) -> None:
        """Submit compiles as one batch, except those done or submitted."""
        jobs: dict[str, Job] = {}
        for compile in compiles:
            if self.is_done(compile.key) or self._tasks.is_open(compile.key):
                continue
            if compile.job is None:
                error = compile.error
                assert error is not None
                self._keep([(compile.key, failure(error.code, error.message))])
                continue
            jobs[compile.key] = compile.job
        if jobs:
            self._tasks.hand_out(*jobs.values())

    def wait(self) -> list[str]:
        """Wait for results and keep them; return their keys: none where a worker died."""
        died = f"{DIED}: its memory or its time, or a fault of the system, ended it"
        finished = self._tasks.wait()
        self._seconds.extend(max(x["wall_seconds"], 1e-3) for _, x in finished if x)
        if finished:
            self._keep([(key, x or failure(WORKER_DIED, died)) for key, x in finished])
        return [key for key, _ in finished]

    def _keep(self, results: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        self.store.add_results(results)
        self._done.update(key for key, _ in results)

    def tell(self, done: int) -> None:
        """Report how many points are done."""
        telling("points", done, self._count)


def run_points(runner: Runner, compiles: Iterator[Sequence[Compile]]) -> None:
    """Run compiles, batch by batch of what is alike, as many at a time as workers take."""
    done, waiting = 0, Counter[str]()

    def settle(keys: Iterable[str]) -> None:
        nonlocal done
        done += sum(waiting.pop(key, 0) for key in keys)
        runner.tell(done)

    settle(())
    for planned in compiles:
        waiting.update(x.key for x in planned)
        todo = [x for x in planned if not runner.is_done(x.key)]
        for batch in _batches(todo, runner.in_batch):
            while not runner.has_room:
                settle(runner.wait())
            runner.begin(*batch)
        settle([x.key for x in planned if runner.is_done(x.key)])
    while not runner.is_idle:
        settle(runner.wait())


def _batches(compiles: Iterable[Compile], most: Callable[[], int]) -> Iterator[list[Compile]]:
    """Yield compiles in batches of at most so many, those of one text for one machine together.

    They share what their worker keeps: the module as it is rewritten, and the prices of its ops.
    """
    groups: dict[Hashable, list[Compile]] = {}
    for compile in compiles:
        job = compile.job
        shared_by = job and (
            job.digest,
            job.rewrite,
            job.options.get("target"),
            job.options.get("set"),
        )
        groups.setdefault(shared_by, []).append(compile)
    batch: list[Compile] = []
    for group in groups.values():
        if batch and len(batch) + len(group) > most():
            yield batch
            batch = []
        batch += group
        while len(batch) >= (count := most()):
            yield batch[:count]
            batch = batch[count:]
    if batch:
        yield batch


def planned(
    store: Store, points: Iterator[dict[str, str]], compile_of: Callable[[dict[str, str]], Compile]
) -> Iterator[list[Compile]]:
    """Yield the points' compiles, some at a time, once they are in the file, numbered from 1 on."""
    number = 0
    while batch := list(islice(points, _PLANNED_AT_ONCE)):
        rows, compiles = [], []
        for point in batch:
            number += 1
            compile = compile_of(point)
            rows.append((number, point, compile.key, compile.command))
            compiles.append(compile)
        store.add_points(rows)
        yield compiles


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
