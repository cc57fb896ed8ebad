"""Bounded queues from the host to the device, filled ahead by a thread.

Elements are handed over as views, many for each switch of threads: a lock and a switch for each
would cost more than making a batch. In the inline form, the default for arrays and made-up
data, the program's thread takes elements from the source itself.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from hloipu_runtime.arguments import DEFAULT_TIMEOUT_SECONDS, Number, Replicas, checked
from hloipu_runtime.errors import StreamError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.streams import faults
from hloipu_runtime.streams.element import ElementSpec, Leaves
from hloipu_runtime.streams.filling import Filling, close_rows, fill, forgotten
from hloipu_runtime.streams.made import source_of
from hloipu_runtime.streams.per_host import EVERY_HOST
from hloipu_runtime.streams.settings import MAX_LEAD, positive_seconds, streams_of
from hloipu_runtime.streams.source import Element, Source, positive
from hloipu_runtime.streams.worker import GRACE_SECONDS, TICK_SECONDS, Worker, is_inside

DEFAULT_CAPACITY = 32
"""Elements that a queue holds at most; one more may be in the making."""
DEFAULT_PREFETCH_DEPTH = 3
"""Elements on their way to the device, in simulated time."""


@dataclass(frozen=True, slots=True)
class InfeedState:
    """Where a queue stands: what a checkpoint keeps of it."""

    name: str
    position: int
    """Elements that the device has taken; the next run goes on with this one."""


class InfeedQueue:
    """The elements of a source, one after the other, checked and in storage form.

    With R replicas, replica i takes element i, i + R, i + 2R, …
    """

    @checked
    def __init__(
        self,
        name: str,
        spec: ElementSpec,
        source: Any,
        prefetch_depth: int = DEFAULT_PREFETCH_DEPTH,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        *,
        capacity: int = DEFAULT_CAPACITY,
        inline: bool | None = None,
        replicas: Replicas = 1,
        start: Number = 0,
        streams: tuple[str, ...] = (),
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        """Make the queue; nothing is read before `start()` or the first `take()`.

        `source` is anything that `source_of` takes. `timeout` is how long in seconds the program
        waits for one element; the inline form cannot hold a source to it. `start` elements are
        left out. `streams` names the program's stream of each leaf. `on_stop` is called when the
        queue closes, to release a source that waits for something. Raises StreamError E2031.
        """
        self.name = name
        self.spec = spec
        self.source: Source = source_of(source)
        self.prefetch_depth: int = positive(prefetch_depth, "prefetch_depth")
        self.timeout: float = positive_seconds(timeout, name)
        self.replicas: int = positive(replicas, "replicas")
        self.host: int = EVERY_HOST
        """Whose replicas it serves."""
        self.served: range = range(replicas)
        """Replicas that take elements here; those of the others are let go."""
        self.streams: tuple[str, ...] = streams_of(name, len(spec.leaves), streams)
        self.inline: bool = self.source.quick if inline is None else inline
        self.waited_seconds: float = 0.0
        """Host time that the program waited for elements."""
        self.expected_total: int | None = None
        """Elements that the program will have taken in the end, where it is known."""
        self._start = start
        self._handed = start
        self._on_stop = on_stop
        self._state = Filling(name, spec, positive(capacity, "capacity"), start)
        self._lanes: list[deque[Leaves]] = [deque() for _ in range(replicas)]
        self._lane_lock = threading.RLock()
        self._taken = [0] * replicas
        self._worker: Worker | None = None
        self._rows: Iterator[Element] | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    @property
    def position(self) -> int:
        """Elements taken by the device; what is merely prefetched does not count."""
        return self._start + min(self._taken[n] for n in self.served) * self.replicas

    @property
    def abandoned(self) -> bool:
        """Whether a closed queue has left a thread behind that hangs in code without end."""
        return self._state.closed and self._worker is not None and self._worker.alive

    @property
    def source_seconds(self) -> float:
        """Host time that the source took so far."""
        return self.waited_seconds if self._worker is None else self._worker.busy_seconds

    @property
    def source_rate(self) -> float | None:
        """Elements per second of host time that the source made so far; None: none yet."""
        elements, seconds = self._state.elements_made - self._start, self.source_seconds
        return elements / seconds if elements and seconds else None

    def counted(self) -> dict[str, Any]:
        """Return what went through, and who waited how long in the host's own time."""
        return {
            "taken": self.position - self._start,
            "capacity": self._state.limit,
            "prefetch_depth": self.prefetch_depth,
            "inline": self.inline,
            "waited_seconds": self.waited_seconds,
            "source_seconds": self.source_seconds,
            "source_rate": self.source_rate,
        }

    def refuse_run(self) -> None:
        """Raise StreamError E2025 on a thread that runs this queue's source."""
        if is_inside(self._state):
            raise faults.reentrant(self.name, what="its source runs the program that it feeds")

    def state(self) -> InfeedState:
        """Return where the queue stands; `resume` or `start=` go on from there."""
        return InfeedState(self.name, self.position)

    @checked
    def resume(self, state: InfeedState) -> None:
        """Go on where another queue over the same source was left; before the first element."""
        self.require_resumable(state)
        self._start = self._handed = self._state.elements_made = state.position

    def require_resumable(self, state: InfeedState) -> None:
        """Raise StreamError E2031 where `resume` could not go on from a state."""
        if state.name != self.name or self._worker or self._rows or self._handed != self._start:
            raise StreamError(
                "E2031",
                f"infeed {self.name!r} cannot go on from the state of {state.name!r}",
                queue=self.name,
                expected=f"a state of {self.name!r}, before the first element is taken",
                found=state.name,
            )

    def start(self) -> None:
        """Begin to fill the queue, if that is done ahead."""
        self._state.refuse(self._handed)
        if self.inline:
            if self._rows is None:
                self._rows = self._state.open(self.source, self._start)
            return
        if self._worker is None:
            state, source, skip = self._state, self.source, self._start
            self._worker = Worker(self.name, lambda worker: fill(worker, state, source, skip))
            # Shut down by the program's end as well: a thread must not outlive the interpreter.
            self._finalizer = weakref.finalize(self, forgotten, state, self._worker, self._on_stop)
            self._worker.start()

    def take(self, replica: int = 0) -> Leaves:
        """Return a replica's next element in storage form; waits for it, at most the timeout.

        Raises StreamEndedError E2020 after the last one, StreamError E2021 to E2027 for a source
        that is stuck, raises, gives something else, has lost its thread, waits for itself, was
        closed or interrupted; the queue is closed then.
        """
        if self.replicas == 1:
            element = self._next()
            self._taken[0] += 1
            return element
        with self._lane_lock:
            lane = self._lanes[replica]
            while not lane:
                number = self._handed
                place = (number - self._start) % self.replicas
                if place not in self.served:
                    self._next()
                    continue
                other = self._lanes[place]
                if len(other) >= MAX_LEAD:
                    raise faults.too_far_ahead(self.name, number, replica=replica)
                other.append(self._next())
            self._taken[replica] += 1
            return lane.popleft()

    def close(self) -> None:
        """End the thread and release the source; a second call does nothing."""
        self._close(GRACE_SECONDS)

    def _close(self, grace_seconds: float) -> None:
        state = self._state
        if state.closed:
            return
        state.closed = True
        try:
            if self._on_stop is not None:
                self._on_stop()
        finally:
            if self._worker is not None:
                self._worker.stop(state.wake, grace_seconds)
                if self._finalizer is not None:
                    self._finalizer.detach()
            state.items.clear()
            if self._rows is not None:
                rows, self._rows = self._rows, None
                close_rows(rows)

    def __enter__(self) -> "InfeedQueue":
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _next(self) -> Leaves:
        state = self._state
        if is_inside(state):
            raise faults.reentrant(
                self.name, self._handed, what="its source asks for an element of it"
            )
        if not state.items:
            try:
                self._fetch()
            except KeyboardInterrupt as interrupt:
                self._fail(faults.interrupted(self.name, self._handed), interrupt)
        try:
            element = state.items.popleft()
        except IndexError:  # another thread has closed the queue meanwhile
            raise faults.closed(self.name, self._handed) from None
        self._handed += 1
        if state.crowded and len(state.items) <= state.low:
            state.notify()
        return element

    def _fetch(self) -> None:
        """Let at least one element be there."""
        self.start()
        began = time.perf_counter()
        try:
            if self.inline:
                self._pull()
            else:
                self._wait()
        finally:
            self.waited_seconds += time.perf_counter() - began

    def _pull(self) -> None:
        """Take elements from the source on this thread; several where none of it is the user's."""
        state, rows = self._state, self._rows
        if rows is None:
            raise faults.closed(self.name, self._handed)
        try:
            state.make_some(rows, state.low if self.source.quick else 1)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Whatever a source raises is told as the source's, never swallowed.
            state.over, state.failure = True, state.failure_of(error)
        if not state.items:
            fault = state.failure or faults.ended(self.name, self._handed, self.expected_total)
            self._fail(fault, fault.__cause__)

    def _wait(self) -> None:
        state, worker = self._state, self._worker
        if worker is None:
            raise faults.closed(self.name, self._handed)
        deadline = time.monotonic() + self.timeout
        with state.changed:
            state.hungry = True
            while True:
                # First this, then the items: who is over or dead has put in the last one before.
                fault = self._fault(worker, deadline)
                if state.items or fault is not None:
                    break
                state.changed.wait(max(0.0, min(deadline - time.monotonic(), TICK_SECONDS)))
            state.hungry = False
        if not state.items and fault is not None:
            self._fail(fault, fault.__cause__)

    def _fault(self, worker: Worker, deadline: float) -> StreamError | None:
        """Return why no element will come, if none is there."""
        state, step = self._state, self._handed
        if state.over:
            return state.failure or faults.ended(self.name, step, self.expected_total)
        if state.closed:
            return faults.closed(self.name, step)
        if not worker.alive:
            return faults.thread_died(self.name, step)
        if time.monotonic() >= deadline:
            return faults.stuck(self.name, step, timeout=self.timeout)
        return None

    def _fail(self, fault: StreamError, cause: BaseException | None) -> None:
        """Close the queue for good and raise."""
        self._state.failed = fault
        # Where the source has had its time already it is broken off at once.
        self._close(0.0 if fault.code == "E2021" else GRACE_SECONDS)
        raise fault from cause
