"""Queues from the device to the host, read by anybody while the program runs.

Elements are numbered from 0 over all runs and carry the simulated cycle at which they arrived.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from hloipu_runtime.arguments import DEFAULT_TIMEOUT_SECONDS, Number, Positive, Replicas, checked
from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams import faults
from hloipu_runtime.streams.draining import Draining, Kept, forgotten, serve
from hloipu_runtime.streams.element import ElementSpec, Intake, Leaves
from hloipu_runtime.streams.per_host import EVERY_HOST
from hloipu_runtime.streams.settings import MAX_LEAD, Mode, parse_mode, positive_seconds, streams_of
from hloipu_runtime.streams.source import positive
from hloipu_runtime.streams.structure import flatten, rebuild
from hloipu_runtime.streams.worker import GRACE_SECONDS, Worker


class Arrived(NamedTuple):
    """One element on the host."""

    number: int
    """Counted from 0 over all runs, what the mode leaves out too."""
    cycle: int | None
    """Simulated cycle of the arrival; None: the program runs without a clock."""
    element: Any
    """Nested arrays in the user's types; with R > 1 replicas each has a first axis of size R."""


Sink = Callable[[Arrived], None]


class OutfeedQueue:
    """What a program gives out, in order."""

    @checked
    def __init__(
        self,
        name: str,
        mode: str | Mode = "all",
        spec: ElementSpec | None = None,
        *,
        capacity: int | None = None,
        drop_oldest: bool = False,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        replicas: Replicas = 1,
        streams: tuple[str, ...] = (),
        sink: Sink | None = None,
    ) -> None:
        """Make the queue.

        `capacity` bounds it: a full one makes the program wait `timeout` seconds at most, or drops
        its oldest element. `sink` is called with each element on a thread of the queue's own.
        `spec` may come later, through `bind`. Raises StreamError E2031.
        """
        self.name = name
        self.mode: Mode = parse_mode(mode)
        self.spec = spec
        self._intake = None if spec is None else Intake(spec, name)
        self.timeout: float = positive_seconds(timeout, name)
        self.replicas: int = positive(replicas, "replicas")
        self.host: int = EVERY_HOST
        """Whose replicas it serves."""
        self.given_streams: tuple[str, ...] = streams
        self._state = Draining(
            name, None if capacity is None else positive(capacity, "capacity"), drop_oldest
        )
        self._lanes: list[deque[Leaves]] = [deque() for _ in range(replicas)]
        self._lane_lock = threading.Lock()
        self._count = 0
        self._count_in_run = 0
        self._held: Kept | None = None
        self._sink = sink
        self._worker: Worker | None = None
        self._finalizer = weakref.finalize(self, forgotten, self._state, None)

    @property
    def streams(self) -> tuple[str, ...]:
        """The program's stream of each leaf."""
        return streams_of(self.name, len(self._spec().leaves), self.given_streams)

    @property
    def count(self) -> int:
        """Elements that the program has given out."""
        return self._count

    @property
    def dropped(self) -> int:
        """Elements that a full queue dropped."""
        return self._state.dropped

    @property
    def abandoned(self) -> bool:
        """Whether a closed queue has left a thread behind that hangs in code without end."""
        return self._state.closed and self._worker is not None and self._worker.alive

    @checked
    def bind(self, spec: ElementSpec, streams: tuple[str, ...] = ()) -> None:
        """Say what the program gives out and through which streams, unless the user said it."""
        self.given_streams = self.given_streams or streams
        if self.spec is None:
            self.spec = spec
            self._intake = Intake(spec, self.name)

    def counted(self) -> dict[str, int]:
        """Return how many elements the program gave, and how many of them found no room."""
        return {"given": self.count, "dropped": self.dropped}

    def refuse_run(self) -> None:
        """Raise StreamError E2025 on a thread that runs this queue's sink."""
        self._state.refuse_inside(-1, "its sink runs the program that it serves")

    def begin_run(self) -> None:
        """Begin a run of the program; `first` and `last` count from here."""
        state = self._state
        state.refuse(self._count)
        self._count_in_run = 0
        self._held = None
        if self._sink is not None and self._worker is None:
            sink, spec = self._sink, self._spec()

            def take(kept: Kept) -> None:
                sink(_arrived(kept, spec))

            self._worker = Worker(self.name, lambda worker: serve(worker, state, take))
            self._finalizer.detach()
            self._finalizer = weakref.finalize(self, forgotten, state, self._worker)
            self._worker.start()
        state.running = True

    def put(self, leaves: Leaves, cycle: int | None = None, replica: int = 0) -> None:
        """Take over an element in storage form; waits where the queue is full.

        Raises StreamError E2023 to E2029 and E2033: not what was declared, thread lost, called from
        the queue's own sink, closed, interrupted, full for too long, sink raised, reader gone.
        """
        self._state.refuse_inside(self._count, "its sink gives it an element")
        self._state.refuse(self._count)
        if self._intake is None:
            raise faults.unbound(self.name)
        self._intake.check_storage(leaves, self._count)
        if self.replicas == 1:
            self._put(leaves, cycle)
            return
        with self._lane_lock:
            if len(self._lanes[replica]) >= MAX_LEAD:
                raise faults.too_far_ahead(self.name, self._count, replica=replica)
            self._lanes[replica].append(leaves)
            if all(self._lanes):
                parts = [lane.popleft() for lane in self._lanes]
                self._put(tuple(np.stack(column) for column in zip(*parts, strict=True)), cycle)

    def end_run(self, failure: BaseException | None = None) -> None:
        """End a run; readers on other threads get `failure` as the cause of E2034."""
        state = self._state
        last, self._held = self._held, None
        if failure is not None:
            if last is not None:
                state.items.append(last)
            state.fail(faults.run_failed(self.name, self._count, failure), failure)
            self.close()
            return
        if last is not None:
            self._append(last)
        state.running = False
        state.tell_readers()
        if self._worker is not None:
            try:
                state.flush(self._worker, self.timeout, self._count)
            except (KeyboardInterrupt, StreamError) as error:
                self._broken_off(error)

    @property
    def unread(self) -> int:
        """Elements that have arrived and were not read yet."""
        return len(self._state.items)

    @checked
    def drain(self, most: Number | None = None) -> list[Arrived]:
        """Return the elements that arrived and were not read yet, at most `most`; does not wait."""
        return [_arrived(kept, self._spec()) for kept in self._state.take_all(most)]

    def latest(self) -> Arrived | None:
        """Return the newest of what has arrived and was not read; drops the others."""
        arrived = self.drain()
        return arrived[-1] if arrived else None

    def __iter__(self) -> Iterator[Any]:
        """Return the elements, those too that arrive while a run is going on."""
        return _elements(self._state, self.spec)

    @checked
    def follow(self, timeout: Positive | None = None) -> Iterator[Arrived]:
        """Return elements as they arrive until the queue is closed; for another thread.

        `timeout` is how long to wait for each; None: as long as the queue is open. Raises
        StreamError E2037 after it, E2034 where the program failed.
        """
        return _follow(self._state, self._spec(), timeout)

    def close(self) -> None:
        """Take no more elements; what has arrived can still be read."""
        self._close(GRACE_SECONDS)

    def _close(self, grace_seconds: float) -> None:
        state = self._state
        state.close()
        self._finalizer.detach()
        if self._worker is not None:
            self._worker.stop(state.wake, grace_seconds)

    def __enter__(self) -> "OutfeedQueue":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _spec(self) -> ElementSpec:
        if self.spec is None:
            raise faults.unbound(self.name)
        return self.spec

    def _put(self, leaves: Leaves, cycle: int | None) -> None:
        kept = Kept(self._count, cycle, leaves)
        match self.mode.kind:
            case "last":
                self._held = kept
            case "first" if self._count_in_run:
                pass
            case "every" if (self._count + 1) % self.mode.every:
                pass
            case _:
                self._append(kept)
        self._count += 1
        self._count_in_run += 1

    def _append(self, kept: Kept) -> None:
        try:
            self._state.append(kept, self._worker, self.timeout)
        except (KeyboardInterrupt, StreamError) as error:
            self._broken_off(error)

    def _broken_off(self, error: KeyboardInterrupt | StreamError) -> NoReturn:
        """Close the queue after a wait that failed, and raise why."""
        if isinstance(error, KeyboardInterrupt):
            fault = faults.interrupted(self.name, self._count)
            self._state.fail(fault, error)
            self.close()
            raise fault from error
        # A sink that has had its time already is broken off at once.
        self._close(0.0 if error.code in ("E2028", "E2036") else GRACE_SECONDS)
        raise error


def together(queues: Sequence[OutfeedQueue]) -> list[Arrived]:
    """Return what has arrived at the queues of all hosts, their rows put together.

    What the others have not given yet stays for later.
    """
    count = min(queue.unread for queue in queues)
    columns = [queue.drain(count) for queue in queues]
    return rows_together(columns, are_rows=queues[0].replicas == 1)


def rows_together(columns: Sequence[Sequence[Arrived]], *, are_rows: bool) -> list[Arrived]:
    """Return elements with the rows of those of several hosts; `are_rows`: each is one itself."""
    if len(columns) == 1:
        return list(columns[0])
    join, elements = np.stack if are_rows else np.concatenate, []
    for parts in zip(*columns, strict=True):
        leaves = [flatten(part.element) for part in parts]
        rows = [join(column) for column in zip(*(each[0] for each in leaves), strict=True)]
        elements.append(parts[0]._replace(element=rebuild(leaves[0][1], rows)))
    return elements


def _arrived(kept: Kept, spec: ElementSpec) -> Arrived:
    return Arrived(kept.number, kept.cycle, spec.to_user(kept.leaves))


def _elements(state: Draining, spec: ElementSpec | None) -> Iterator[Any]:
    if spec is None:
        return
    while batch := state.take_waiting(None, while_running=True):
        for kept in batch:
            yield spec.to_user(kept.leaves)


def _follow(state: Draining, spec: ElementSpec, timeout: float | None) -> Iterator[Arrived]:
    """Hold the queue's state, not the queue: a forgotten one is collected and ends its readers."""
    state.readers += 1
    ended = False
    try:
        while batch := state.take_waiting(timeout, while_running=False):
            for kept in batch:
                yield _arrived(kept, spec)
        ended = True
    finally:
        state.readers -= 1
        if not ended and not state.readers:
            state.reader_gone = True
            state.wake()
