"""The host of a queue-fed program: streams by name, arrays for the others."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Protocol, TypeVar

from hloipu_runtime.errors import StreamError, UsageError
from hloipu_runtime.program.seen import Split
from hloipu_runtime.program.stacks import Stack
from hloipu_runtime.streams import faults
from hloipu_runtime.streams.element import Array, Leaves
from hloipu_runtime.streams.infeed import InfeedQueue, InfeedState
from hloipu_runtime.streams.outfeed import OutfeedQueue
from hloipu_runtime.streams.per_host import EVERY_HOST, host_of, of_host

NO_SPLIT: Mapping[str, Split] = MappingProxyType({})


def names_of(streams: Sequence[str], split: Mapping[str, Split]) -> tuple[str, ...]:
    """Return the program's streams of a queue's leaves."""
    return tuple(
        name
        for stream in streams
        for name in (split[stream].streams if stream in split else (stream,))
    )


def cuts_of(streams: Sequence[str], split: Mapping[str, Split]) -> tuple[Stack | None, ...]:
    """Return how each leaf is cut; nothing where none is."""
    if not any(stream in split for stream in streams):
        return ()
    return tuple(split[stream].stack if stream in split else None for stream in streams)


def cut(leaves: Leaves, cuts: Sequence[Stack | None]) -> Leaves:
    """Return what each stream carries of an element."""
    pieces: list[Array] = []
    for leaf, stack in zip(leaves, cuts, strict=True):
        pieces += [leaf] if stack is None else stack.pieces(leaf)
    return tuple(pieces)


def joined(pieces: Leaves, cuts: Sequence[Stack | None]) -> Leaves:
    """Return the element of which each stream carried a piece."""
    rest = iter(pieces)
    leaves: list[Array] = []
    for stack in cuts:
        own = [next(rest) for _ in range(1 if stack is None else len(stack.sizes))]
        leaves.append(own[0] if stack is None else stack.joined(own))
    return tuple(leaves)


T = TypeVar("T")

MAX_UNREAD_LEAVES = 4096
"""Of one stream, while another stream of the same queue is read on."""

Clock = Callable[[], int]
"""Returns the simulated cycle of now."""


class ArrayHost(Protocol):
    """A host of whole arrays, for the streams that no queue carries; arrays in storage form."""

    def take(self, stream: str) -> Array:
        """Return the array of a stream."""
        ...

    def give(self, stream: str, value: Array) -> None:
        """Take over an array."""
        ...


@dataclass(slots=True)
class _Reader:
    """Takes a queue's elements apart into the streams of its leaves."""

    queue: InfeedQueue
    replica: int
    wanted: tuple[int, ...]
    """Leaves that the program reads."""
    unread: list[deque[Array]] = field(default_factory=list)
    cuts: tuple[Stack | None, ...] = ()
    """How each leaf of an element is cut; empty: none is, and pieces are leaves."""

    def take(self, leaf: int) -> Array:
        mine = self.unread[leaf]
        if not mine:
            element = self.queue.take(self.replica)
            if self.cuts:
                element = cut(element, self.cuts)
            if len(self.wanted) == 1:
                return element[leaf]
            for number in self.wanted:
                others = self.unread[number]
                if len(others) >= MAX_UNREAD_LEAVES:
                    raise faults.unread_leaf(self.queue.name, self.queue.position, leaf=number)
                others.append(element[number])
        return mine.popleft()


@dataclass(slots=True)
class _Writer:
    """Puts the streams of a queue's leaves together to elements."""

    queue: OutfeedQueue
    replica: int
    given: list[deque[Array]]
    cuts: tuple[Stack | None, ...] = ()

    def give(self, leaf: int, value: Array, clock: Clock | None) -> None:
        leaves: Leaves = (value,)
        if len(self.given) > 1:
            self.given[leaf].append(value)
            if len(self.given[leaf]) > MAX_UNREAD_LEAVES:
                raise faults.unread_leaf(self.queue.name, self.queue.count, leaf=leaf)
            if not all(self.given):
                return
            leaves = tuple(part.popleft() for part in self.given)
        if self.cuts:
            leaves = joined(leaves, self.cuts)
        self.queue.put(leaves, None if clock is None else clock(), self.replica)


class StreamHost:
    """Where a running program's streams begin and end: queues, and arrays for the rest.

    One host serves one replica; hosts of several replicas share the queues, those that only
    replicas of another host take part in among them.
    """

    def __init__(
        self,
        infeeds: Sequence[InfeedQueue] = (),
        outfeeds: Sequence[OutfeedQueue] = (),
        arrays: ArrayHost | None = None,
        *,
        replica: int = 0,
        host: int = 0,
        clock: Clock | None = None,
        streams: Collection[str] | None = None,
        split: Mapping[str, Split] = NO_SPLIT,
    ) -> None:
        """Bind the queues of a host to the streams of one of its replicas.

        `clock` stamps what arrives. `streams` are those that the program has: leaves of a queue
        that it does not read are left out. `split`: leaves, by their streams, that go through
        several. Raises StreamError E2030 where two queues have one name or one stream.
        """
        unique_names(infeeds, outfeeds)
        self.infeeds = tuple(infeeds)
        self.outfeeds = tuple(outfeeds)
        self.arrays = arrays
        self.clock = clock
        self.split = split
        self._lock = threading.Lock()
        mine = (EVERY_HOST, host)
        read = chain.from_iterable(
            _read(queue, replica % queue.replicas, streams, split)
            for queue in infeeds
            if queue.host in mine
        )
        written = chain.from_iterable(
            _written(queue, replica % queue.replicas, split)
            for queue in outfeeds
            if queue.host in mine
        )
        self._readers = _by_stream(read)
        self._writers = _by_stream(written)

    def take(self, stream: str) -> Array:
        """Return the next element of a stream; see InfeedQueue.take for what it raises."""
        reader = self._readers.get(stream)
        if reader is not None:
            return reader[0].take(reader[1])
        if self.arrays is None:
            raise faults.no_stream(stream, self._readers)
        return self.arrays.take(stream)

    def give(self, stream: str, value: Array) -> None:
        """Take over an element; see OutfeedQueue.put for what it raises.

        A copy is kept, as `value` may be a view of device memory.
        """
        writer = self._writers.get(stream)
        if writer is not None:
            writer[0].give(writer[1], value.copy(), self.clock)
        elif self.arrays is None:
            raise faults.no_stream(stream, self._writers)
        else:
            self.arrays.give(stream, value)

    @property
    def is_running(self) -> bool:
        """Whether a run is going on, on whichever thread."""
        return self._lock.locked()

    def refuse_run(self) -> None:
        """Raise StreamError E2025 where a run cannot begin: another is going on."""
        for source in self.infeeds:
            source.refuse_run()
        for queue in self.outfeeds:
            queue.refuse_run()
        if self.is_running:
            raise self.second_run()

    def refuse_state(self, steps: int) -> None:
        """Raise StreamError E2061 where a run is going on: it has the state in parts."""
        if self.is_running:
            raise StreamError(
                "E2061",
                "the state is asked for, or given, while a run is going on",
                expected="a session that does not run",
                found=f"a run after {steps} steps",
                hint="do it between two calls of run; queues can be read meanwhile",
            )

    def outfeed(self, name: str, host: int = EVERY_HOST, hosts: int = 0) -> OutfeedQueue:
        """Return a queue of outfeeds, of a host where so many have one each; UsageError E3155."""
        wanted = of_host(name, host)
        for queue in self.outfeeds:
            if queue.name == wanted:
                return queue
        if hosts and any(host_of(queue.name)[1] == name for queue in self.outfeeds):
            raise UsageError(
                "E3155",
                f"{hosts} hosts have an outfeed {name!r} each",
                hint=f"say whose: stream({name!r}, host=0); or arrived({name!r}) for all",
            )
        names = ", ".join(queue.name for queue in self.outfeeds)
        raise UsageError(
            "E3155",
            f"the program has no outfeed {name!r}",
            hint=f"it has {names}" if names else "compile with --outfeed",
        )

    def second_run(self) -> StreamError:
        """Return the error of a run that begins while one is going on."""
        names = chain((q.name for q in self.infeeds), (q.name for q in self.outfeeds))
        return faults.reentrant(next(names, ""), what="a second run begins while one is going on")

    def running(self, elements: Mapping[str, int] | None = None) -> "_Running":
        """Frame one run of the program; raises StreamError E2025 while another is going on.

        `elements` is how many an infeed is to give to a replica, where it is known, for messages.
        Readers of outfeeds on other threads are told how the run ends.
        """
        return _Running(self, self._lock, elements)

    def resume(self, positions: Mapping[str, int]) -> None:
        """Have all infeeds go on where a checkpoint says, or none; see InfeedQueue.resume."""
        moved = [
            (queue, InfeedState(queue.name, positions[queue.name]))
            for queue in self.infeeds
            if queue.position != positions[queue.name]
        ]
        for queue, place in moved:
            queue.require_resumable(place)
        for queue, place in moved:
            queue.resume(place)

    def states(self) -> tuple[InfeedState, ...]:
        """Return where each infeed stands, for a checkpoint."""
        return tuple(queue.state() for queue in self.infeeds)

    def close(self) -> None:
        """Close all queues."""
        for source in self.infeeds:
            source.close()
        for queue in self.outfeeds:
            queue.close()

    def __enter__(self) -> "StreamHost":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def unique_names(infeeds: Sequence[InfeedQueue], outfeeds: Sequence[OutfeedQueue]) -> None:
    """Raise StreamError E2030 where two queues of one session have one name."""
    seen: set[str] = set()
    for name in chain((q.name for q in infeeds), (q.name for q in outfeeds)):
        if name in seen:
            raise StreamError(
                "E2030",
                f"two queues of one session are named {name!r}",
                queue=name,
                expected="a name of its own for each queue",
                found=name,
            )
        seen.add(name)


def _by_stream(served: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return the queue of each stream; StreamError E2030 where two queues carry one."""
    by_stream: dict[str, T] = {}
    for stream, server in served:
        if stream in by_stream:
            raise StreamError(
                "E2030",
                f"two queues carry the program's stream {stream!r}",
                queue=stream,
                expected="one queue for each stream",
                found="two",
            )
        by_stream[stream] = server
    return by_stream


class _Running:
    """One run; a block of a generator would take a short step as long as its queues do."""

    __slots__ = ("_begun", "_elements", "_host", "_lock")

    def __init__(
        self, host: StreamHost, lock: threading.Lock, elements: Mapping[str, int] | None
    ) -> None:
        self._host = host
        self._lock = lock
        self._elements = elements
        self._begun: list[OutfeedQueue] = []

    def __enter__(self) -> None:
        host, elements = self._host, self._elements
        for source in host.infeeds:
            source.refuse_run()
            each = None if elements is None else elements.get(host_of(source.name)[1])
            total = None if each is None else source.position + each * source.replicas
            source.expected_total = total
        for queue in host.outfeeds:
            queue.refuse_run()
        if not self._lock.acquire(blocking=False):
            raise host.second_run()
        try:
            for source in host.infeeds:
                source.start()
            for queue in host.outfeeds:
                queue.begin_run()
                self._begun.append(queue)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Readers on other threads must learn of any end, an interrupt too.
        try:
            for queue in self._begun:
                queue.end_run(error)
        finally:
            self._lock.release()


def _read(
    queue: InfeedQueue, replica: int, streams: Collection[str] | None, split: Mapping[str, Split]
) -> Iterator[tuple[str, tuple[_Reader, int]]]:
    names = names_of(queue.streams, split)
    wanted = tuple(
        number for number, stream in enumerate(names) if streams is None or stream in streams
    )
    cuts = cuts_of(queue.streams, split)
    reader = _Reader(queue, replica, wanted, [deque() for _ in names], cuts)
    for number in wanted:
        yield names[number], (reader, number)


def _written(
    queue: OutfeedQueue, replica: int, split: Mapping[str, Split]
) -> Iterator[tuple[str, tuple[_Writer, int]]]:
    names = names_of(queue.streams, split)
    cuts = cuts_of(queue.streams, split)
    writer = _Writer(queue, replica, [deque() for _ in names], cuts)
    for number, stream in enumerate(names):
        yield stream, (writer, number)
