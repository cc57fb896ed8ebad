"""State of a queue to the device, and its filling thread.

Elements pass through a deque, whose append and popleft need no lock. The lock is for waiting:
whoever is to wait says so first and looks again, whoever changes something looks after the change
whether somebody waits, so that one of the two sees the other.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams import faults
from hloipu_runtime.streams.element import ElementSpec, Intake, Leaves
from hloipu_runtime.streams.source import Element, Source
from hloipu_runtime.streams.worker import TICK_SECONDS, Inside, QueueState, Worker


class Filling(QueueState):
    """What the two threads share; knows nothing of the queue, which can be forgotten."""

    def __init__(self, name: str, spec: ElementSpec, capacity: int, start: int) -> None:
        super().__init__(name)
        self.intake = Intake(spec, name)
        self.limit = capacity
        self.low = capacity // 2
        """So many are left when a thread that waits for room is woken: one switch for many."""
        self.elements_made = start
        self.items: deque[Leaves] = deque()
        self.hungry = False
        """Whether the program waits for an element."""
        self.crowded = False
        """Whether the thread waits for room."""
        self.over = False
        """Whether no more elements come; set after the last one is in."""
        self.failure: StreamError | None = None
        """Why no more elements come; None: the source has ended."""

    def open(self, source: Source, skip: int) -> Iterator[Element]:
        """Return the source's elements; what it raises itself becomes E2022."""
        with Inside(self):
            return iter(source.elements(skip))

    def make(self, rows: Iterator[Element]) -> Leaves | None:
        """Return the source's next element, checked, or None at its end."""
        with Inside(self):
            for element in rows:
                leaves = self.intake.to_storage(element, self.elements_made)
                self.elements_made += 1
                return leaves
        return None

    def make_some(self, rows: Iterator[Element], count: int) -> None:
        """Put up to `count` of the source's elements in, checked; none if no more come."""
        if self.over:
            return
        with Inside(self):
            for element in islice(rows, max(1, count)):
                self.items.append(self.intake.to_storage(element, self.elements_made))
                self.elements_made += 1

    def failure_of(self, error: BaseException) -> StreamError:
        """Return what the program is told of an error in the source."""
        if isinstance(error, StreamError) and error.queue == self.name:
            return error
        fault = faults.source_failed(self.name, self.elements_made, error)
        fault.__cause__ = error
        return fault

    def notify(self) -> None:
        """Let both sides look again."""
        with self.changed:
            self.changed.notify_all()


def fill(worker: Worker, state: Filling, source: Source, skip: int) -> None:
    """Fill the queue until the source ends or nobody wants more; runs on the queue's thread."""
    rows: Iterator[Element] | None = None
    try:
        worker.enter()
        rows = state.open(source, skip)
        worker.leave()
        while (element := _next(worker, state, rows)) is not None:
            state.items.append(element)
            if state.hungry:
                state.notify()
            if len(state.items) >= state.limit and not _wait_for_room(worker, state):
                return
        _end(worker, state, None)
    except BaseException as error:
        # Whatever a source raises, SystemExit too, is told to the program's thread.
        worker.leave()
        _end(worker, state, state.failure_of(error))
    finally:
        if rows is not None:
            close_rows(rows)


def _next(worker: Worker, state: Filling, rows: Iterator[Element]) -> Leaves | None:
    worker.enter()
    leaves = state.make(rows)
    worker.leave()
    return leaves


def _wait_for_room(worker: Worker, state: Filling) -> bool:
    """Wait until half of the queue is empty; whether more elements are wanted."""
    with state.changed:
        state.crowded = True
        while len(state.items) > state.low and not worker.stopping:
            state.changed.wait(TICK_SECONDS)
        state.crowded = False
    return not worker.stopping


def _end(worker: Worker, state: Filling, failure: StreamError | None) -> None:
    if not worker.stopping:
        state.failure = failure
        state.over = True
        state.notify()


def forgotten(state: Filling, worker: Worker, on_stop: Callable[[], None] | None) -> None:
    """End the thread of a queue that nobody holds any more; must not wait."""
    state.closed = True
    if on_stop is not None:
        on_stop()
    worker.interrupt()
    state.wake()


def close_rows(rows: Iterator[Element]) -> None:
    """Let a generator release what it holds."""
    close = getattr(rows, "close", None)
    if close is not None:
        try:
            close()
        except KeyboardInterrupt:
            raise
        except BaseException:
            pass  # Nobody is left to be told of what goes wrong in the source's own end.
