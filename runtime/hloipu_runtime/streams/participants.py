"""Streams of participants: replicas share queues, partitions share elements.

What partitions give out is the same for all of them, or theirs alone: the first one's is taken.
"""

import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Protocol

from hloipu_runtime.streams.element import Array
from hloipu_runtime.streams.host import Clock, StreamHost


class _Program(Protocol):
    """What is asked of a program."""

    @property
    def replicas(self) -> int: ...
    @property
    def partitions(self) -> int: ...


class _SharedStreams:
    """A replica's streams, of which every partition takes every element."""

    def __init__(self, host: StreamHost, partitions: int) -> None:
        self._host = host
        self._partitions = partitions
        self._lock = threading.RLock()
        self._waiting: dict[str, deque[Array]] = {}
        self._first: Counter[str] = Counter()
        """Number of the first element that waits."""
        self._taken: Counter[tuple[str, int]] = Counter()

    def take(self, stream: str, partition: int) -> Array:
        """Return a partition's next element."""
        with self._lock:
            number = self._taken[(stream, partition)]
            waiting = self._waiting.setdefault(stream, deque())
            if number - self._first[stream] == len(waiting):
                waiting.append(self._host.take(stream))
            found = waiting[number - self._first[stream]]
            self._taken[(stream, partition)] = number + 1
            if all(self._taken[(stream, p)] > self._first[stream] for p in range(self._partitions)):
                waiting.popleft()
                self._first[stream] += 1
            return found


class PartitionHost:
    """The host of one partition."""

    def __init__(self, shared: _SharedStreams, host: StreamHost, partition: int) -> None:
        self._shared = shared
        self._host = host
        self._partition = partition

    def take(self, stream: str) -> Array:
        """Return the next element of a stream."""
        return self._shared.take(stream, self._partition)

    def give(self, stream: str, value: Array) -> None:
        """Take over an element of the first partition."""
        if not self._partition:
            self._host.give(stream, value)


Hosts = Sequence[StreamHost | PartitionHost]


def hosts_of_all(first: StreamHost, program: _Program, clock: Clock) -> Hosts:
    """Return a host for each participant; those of the first replica take from `first`.

    Arrays that no queue carries are the same for all; what the first participant gives is kept.
    """
    found: list[StreamHost | PartitionHost] = []
    for replica in range(program.replicas):
        host = first
        if replica:
            host = StreamHost(
                first.infeeds,
                first.outfeeds,
                _Given(first),
                replica=replica,
                clock=clock,
                split=first.split,
            )
        if program.partitions == 1:
            found.append(host)
            continue
        shared = _SharedStreams(host, program.partitions)
        found += [PartitionHost(shared, host, p) for p in range(program.partitions)]
    return found


class _Given:
    """Arrays that all replicas are given, and of which only the first one gives others back."""

    def __init__(self, first: StreamHost) -> None:
        self._first = first

    def take(self, stream: str) -> Array:
        """Return the array of a stream."""
        return self._first.take(stream)

    def give(self, stream: str, value: Array) -> None:
        """Let an array go."""
