"""Streams of participants: replicas share queues, partitions share elements.

Of arrays in blocks each partition takes its block, and the blocks that they give are joined. What
else partitions give out is the same for all of them, or theirs alone: the first one's is taken.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Protocol

from hloipu_runtime.program.blocks import Blocks
from hloipu_runtime.streams.element import Array
from hloipu_runtime.streams.host import StreamHost
from hloipu_runtime.streams.per_host import Elsewhere, host_of_replica

_NO_BLOCKS: Mapping[str, Blocks] = MappingProxyType({})


class _Program(Protocol):
    """What is asked of a program."""

    @property
    def replicas(self) -> int: ...
    @property
    def partitions(self) -> int: ...
    @property
    def participants(self) -> int: ...
    @property
    def hosts(self) -> int: ...


class _SharedStreams:
    """A replica's streams, of which every partition takes every element.

    Other processes may run some of its partitions: they take the same elements from sources of
    their own, and each puts together what all give.
    """

    def __init__(
        self,
        host: StreamHost,
        partitions: int,
        blocks: Mapping[str, Blocks],
        here: range,
        elsewhere: Elsewhere | None,
    ) -> None:
        """Take the streams of a replica; `here`: the participants of it that are run here."""
        self._host = host
        self._blocks = blocks
        first = here.start - here.start % partitions
        self._here = range(here.start - first, here.stop - first)
        self._elsewhere = elsewhere if len(here) < partitions else None
        self._group = tuple(range(first, first + partitions))
        self._lock = threading.RLock()
        self._waiting: dict[str, deque[Array]] = {}
        self._first: Counter[str] = Counter()
        """Number of the first element that waits."""
        self._taken: Counter[tuple[str, int]] = Counter()
        self._given: dict[str, list[deque[Array]]] = {}
        """By stream, the blocks of each partition that wait for those of others."""

    def take(self, stream: str, partition: int) -> Array:
        """Return a partition's next element, or its block of that."""
        element = self._next(stream, partition)
        blocks = self._blocks.get(stream)
        return element if blocks is None else blocks.block(element, partition)

    def give(self, stream: str, value: Array, partition: int) -> None:
        """Take over a partition's element, or its block of one."""
        blocks = self._blocks.get(stream)
        if blocks is None:
            if not partition:
                self._host.give(stream, value)
            return
        with self._lock:
            known = self._given.setdefault(stream, [deque() for _ in self._here])
            known[partition - self._here.start].append(value.copy())
            if all(known):
                given = {n: [x.popleft()] for n, x in zip(self._here, known, strict=True)}
                if self._elsewhere is not None:
                    given = self._elsewhere.exchange(f"giving {stream}", self._group, given)
                whole = blocks.joined([given[n][0] for n in range(len(self._group))], stream)
                self._host.give(stream, whole)

    def _next(self, stream: str, partition: int) -> Array:
        with self._lock:
            number = self._taken[(stream, partition)]
            waiting = self._waiting.setdefault(stream, deque())
            if number - self._first[stream] == len(waiting):
                waiting.append(self._host.take(stream))
            element = waiting[number - self._first[stream]]
            self._taken[(stream, partition)] = number + 1
            if all(self._taken[(stream, p)] > self._first[stream] for p in self._here):
                waiting.popleft()
                self._first[stream] += 1
            return element


class PartitionHost:
    """The host of one partition."""

    def __init__(self, shared: _SharedStreams, partition: int) -> None:
        self._shared = shared
        self._partition = partition

    def take(self, stream: str) -> Array:
        """Return the next element of a stream."""
        return self._shared.take(stream, self._partition)

    def give(self, stream: str, value: Array) -> None:
        """Take over the partition's element."""
        self._shared.give(stream, value, self._partition)


Hosts = Sequence[StreamHost | PartitionHost]


def hosts_of_all(
    first: StreamHost,
    program: _Program,
    clock: Callable[[int], int],
    blocks: Mapping[str, Blocks] = _NO_BLOCKS,
    elsewhere: Elsewhere | None = None,
) -> Hosts:
    """Return a host for each participant; those of the first replica take from `first`.

    `clock`: the simulated cycle of a participant, by its place among those that are run, which are
    all that are not `elsewhere`. Arrays that no queue carries are the same for all; what the first
    participant gives is kept.
    """
    hosts: list[StreamHost | PartitionHost] = []
    numbers = range(program.participants) if elsewhere is None else elsewhere.numbers
    for start in range(numbers.start, numbers.stop, program.partitions):
        replica, host = start // program.partitions, first
        if start != numbers.start:
            host = StreamHost(
                first.infeeds,
                first.outfeeds,
                _SharedArrays(first),
                replica=replica,
                host=host_of_replica(replica, program.replicas, program.hosts),
                clock=partial(clock, len(hosts)),
                split=first.split,
            )
        if program.partitions == 1:
            hosts.append(host)
            continue
        here = numbers[len(hosts) : len(hosts) + program.partitions]
        shared = _SharedStreams(host, program.partitions, blocks, here, elsewhere)
        hosts += [PartitionHost(shared, n % program.partitions) for n in here]
    return hosts


class _SharedArrays:
    """Arrays that all replicas are given, and of which only the first one gives others back."""

    def __init__(self, first: StreamHost) -> None:
        self._first = first

    def take(self, stream: str) -> Array:
        """Return the array of a stream."""
        return self._first.take(stream)

    def give(self, stream: str, value: Array) -> None:
        """Let an array go."""
