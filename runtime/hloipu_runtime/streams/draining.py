"""State of a queue from the device, shared by program and readers."""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams import faults
from hloipu_runtime.streams.element import Leaves
from hloipu_runtime.streams.worker import TICK_SECONDS, Inside, QueueState, Worker, is_inside


class Kept(NamedTuple):
    """An element as the device gave it."""

    number: int
    cycle: int | None
    leaves: Leaves


class Draining(QueueState):
    """The elements that wait to be read, and who reads; knows nothing of the queue."""

    def __init__(self, name: str, capacity: int | None, drop_oldest: bool) -> None:
        super().__init__(name)
        self.capacity = capacity
        self.drop_oldest = drop_oldest
        self.items: deque[Kept] = deque()
        self.running = False
        self.waiting = 0
        """Readers that wait for an element."""
        self.readers = 0
        self.reader_gone = False
        """Whether the last reader went away before the end."""
        self.served = 0
        """Elements that the sink is done with."""
        self.unserved = 0
        self.dropped = 0
        self._at_least = 0

    def append(self, kept: Kept, worker: Worker | None, timeout: float) -> None:
        """Put an element in, waiting for room at most `timeout` seconds."""
        if self.capacity is None and worker is None:
            # Without a lock: a deque's append is atomic, and who waits has said so before.
            self.refuse(kept.number)
            self.items.append(kept)
            self.tell_readers()
            return
        with self.changed:
            if self._is_full():
                self._wait_for_room(kept, worker, timeout)
            self.refuse(kept.number)
            self.items.append(kept)
            if worker is not None:
                self.unserved += 1
                if not worker.alive:
                    self._raise(faults.thread_died(self.name, kept.number))
            self.changed.notify_all()

    def tell_readers(self) -> None:
        """Let readers look again that wait: they have said so before they looked."""
        if self.waiting:
            with self.changed:
                self.changed.notify_all()

    def _is_full(self) -> bool:
        return self.capacity is not None and len(self.items) >= self.capacity

    def _wait_for_room(self, kept: Kept, worker: Worker | None, timeout: float) -> None:
        if self.drop_oldest:
            self.items.popleft()
            self.dropped += 1
            self.unserved -= worker is not None
            return
        deadline = time.monotonic() + timeout
        while self._is_full():
            self.refuse(kept.number)
            left = deadline - time.monotonic()
            if worker is not None and not worker.alive:
                self._raise(faults.thread_died(self.name, kept.number))
            if self.reader_gone and not self.readers and worker is None:
                self._raise(faults.reader_gone(self.name, kept.number))
            if left <= 0:
                self._raise(
                    faults.full(
                        self.name, kept.number, capacity=self.capacity or 0, timeout=timeout
                    )
                )
            self.changed.wait(min(left, TICK_SECONDS))

    def flush(self, worker: Worker | None, timeout: float, step: int) -> None:
        """Wait until the sink has had all elements, `timeout` seconds at most for each."""
        with self.changed:
            deadline, seen = time.monotonic() + timeout, self.served
            while self.unserved and self.failed is None:
                if self.served != seen:
                    deadline, seen = time.monotonic() + timeout, self.served
                left = deadline - time.monotonic()
                if worker is not None and not worker.alive:
                    self._raise(faults.thread_died(self.name, step))
                if left <= 0:
                    self._raise(faults.sink_stuck(self.name, step - self.unserved, timeout=timeout))
                self.changed.wait(min(left, TICK_SECONDS))
        self.refuse(step)

    def take_all(self, most: int | None = None) -> list[Kept]:
        """Return the waiting elements, at most `most` of them."""
        with self.changed:
            return self._take(most)

    def take_waiting(self, timeout: float | None, *, while_running: bool) -> list[Kept]:
        """Return what is there, waiting for something; nothing at the end.

        The end is that the queue is closed or, `while_running`, that no run is going on.
        """
        if self.failed is None:
            self.refuse_inside(self._at_least, "its sink reads it")
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.changed:
            self.waiting += 1
            try:
                while True:
                    # First this, then the items: at the end the last one has been put in before.
                    at_end = self._at_end(while_running)
                    left = TICK_SECONDS if deadline is None else deadline - time.monotonic()
                    if self.items:
                        break
                    if at_end:
                        return []
                    if left <= 0:
                        raise faults.nothing_came(self.name, self._at_least, timeout=timeout or 0.0)
                    self.changed.wait(min(left, TICK_SECONDS))
            finally:
                self.waiting -= 1
            taken = self._take()
            self._at_least = taken[-1].number + 1
            return taken

    def _at_end(self, while_running: bool) -> bool:
        """Whether no more comes; raises what the program failed with once nothing is left."""
        ended = self.closed or (while_running and not self.running)
        if self.failed is not None and not self.items:
            raise faults.again(self.failed)
        return ended

    def _take(self, most: int | None = None) -> list[Kept]:
        # One by one: the program may append meanwhile.
        count = len(self.items) if most is None else min(most, len(self.items))
        taken = [self.items.popleft() for _ in range(count)]
        # What a reader takes, the sink does not get.
        self.unserved = max(0, self.unserved - len(taken))
        self.changed.notify_all()
        return taken

    def refuse_inside(self, step: int, what: str) -> None:
        """Raise E2025 on a thread that runs the sink."""
        if is_inside(self):
            raise faults.reentrant(self.name, step, what=what)

    def fail(self, fault: StreamError, cause: BaseException | None) -> None:
        """Fail for good; the first failure stays."""
        with self.changed:
            if self.failed is None:
                fault.__cause__ = cause
                self.failed = fault
            self.running = False
            self.changed.notify_all()

    def close(self) -> None:
        """Take no more elements."""
        with self.changed:
            self.closed = True
            self.running = False
            self.changed.notify_all()

    def _raise(self, fault: StreamError) -> None:
        self.fail(fault, fault.__cause__)
        raise fault


def serve(worker: Worker, state: Draining, sink: Callable[[Kept], None]) -> None:
    """Call the sink with each element; runs on the queue's thread."""
    while not worker.stopping:
        with state.changed:
            while not state.items and not worker.stopping:
                state.changed.wait(TICK_SECONDS)
            batch = [state.items.popleft() for _ in range(len(state.items))]
            state.changed.notify_all()
        for kept in batch:
            if not _serve_one(worker, state, sink, kept):
                return


def _serve_one(worker: Worker, state: Draining, sink: Callable[[Kept], None], kept: Kept) -> bool:
    """Call the sink once; whether there may be a next time."""
    worker.enter()
    try:
        with Inside(state):
            sink(kept)
    except BaseException as error:
        # Whatever a sink raises, SystemExit too, is told to the program's thread.
        worker.leave()
        if not worker.stopping:
            if isinstance(error, StreamError) and error.queue == state.name:
                state.fail(error, error.__cause__)
            else:
                state.fail(faults.sink_failed(state.name, kept.number, error), error)
        return False
    worker.leave()
    with state.changed:
        state.served += 1
        state.unserved -= 1
        state.changed.notify_all()
    return True


def forgotten(state: Draining, worker: Worker | None) -> None:
    """End readers and thread of a queue that nobody holds any more; must not wait."""
    state.closed = True
    if worker is not None:
        worker.interrupt()
    state.wake()
