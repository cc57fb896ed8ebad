"""Data that each host of a program has of its own.

A program on H hosts and R replicas has k = R / H replicas on each host, in their order. A queue of
one host serves these alone: the i-th of them takes the elements i, i + k, i + 2k, … of its source.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from hloipu_runtime.errors import StreamError
from hloipu_runtime.plain_text import plain_message

EVERY_HOST = -1
"""In place of a host's number: of a queue that serves the replicas of all hosts."""
Operands = dict[int, list[np.ndarray[Any, Any]]]
"""What members of a collective bring, by their places in its group."""


@runtime_checkable
class Elsewhere(Protocol):
    """Participants that other processes run: those of other hosts."""

    numbers: range
    """Of the participants that this process runs."""
    host: int
    """Whose these are; EVERY_HOST: the process is none of the program's hosts."""

    def exchange(self, name: str, group: tuple[int, ...], operands: Operands) -> Operands:
        """Hand on what the members here bring, by place in the group; return what all bring."""
        ...


class PerHost:
    """Another source for each host, or another mode of an outfeed."""

    def __init__(self, each: Sequence[Any] | Callable[[int], Any]) -> None:
        """Take what each host has, in their order, or a function of the host's number.

        Raises StreamError E2074 for anything else: a text or a mapping has no order of hosts.
        """
        is_list = isinstance(each, Sequence) and not isinstance(each, str | bytes)
        if not is_list and not callable(each):
            raise StreamError(
                "E2074",
                f"{type(each).__name__} does not say what each host has",
                expected="a list with something for each host, or a function of its number",
                found=type(each).__name__,
                hint="give PerHost([source_of_host_0, source_of_host_1, …])",
            )
        self.each: Sequence[Any] | Callable[[int], Any] = each

    def map(self, function: Callable[[Any], Any]) -> "PerHost":
        """Return `function` of what each host has."""
        each = self.each
        if callable(each):
            return PerHost(lambda host: function(each(host)))
        return PerHost([function(one) for one in each])

    @property
    def count(self) -> int | None:
        """Elements that the hosts' sources have together, as many of each; None: not known."""
        if callable(self.each):
            return None
        counts = [one.count for one in self.each]
        return None if None in counts or not counts else min(counts) * len(counts)

    def of_one(self, queue: str, host: int, hosts: int) -> Any:
        """Return what one of so many hosts has.

        Raises StreamError E2074 where it is for others, E2022 where the user's function raises.
        """
        if callable(self.each):
            try:
                return self.each(host)
            except Exception as error:
                raise StreamError(
                    "E2022",
                    f"queue {of_host(queue, host)!r}: the function of its PerHost raised "
                    f"{plain_message(error)}",
                    queue=of_host(queue, host),
                    expected=f"what host {host} has",
                    found=type(error).__name__,
                    hint="the function's own error is shown above",
                ) from error
        if len(self.each) != hosts:
            raise StreamError(
                "E2074",
                f"queue {queue!r} is given for {len(self.each)} hosts; the program has {hosts}",
                queue=queue,
                expected=f"something for each of {hosts} hosts",
                found=f"{len(self.each)} of them",
                hint=f"compile with hosts={len(self.each)}, or give {hosts}",
            )
        return self.each[host]


def of_host(name: str, host: int) -> str:
    """Return what a queue that one host has goes by.

    >>> of_host("data", 1)
    'host 1: data'
    """
    return name if host == EVERY_HOST else f"host {host}: {name}"


def host_of(name: str) -> tuple[int, str]:
    """Return the host of a queue's name, and the name without it.

    >>> host_of("host 1: data"), host_of("data")
    ((1, 'data'), (-1, 'data'))
    """
    first, mark, rest = name.partition(": ")
    number = first.removeprefix("host ")
    if mark and number != first and number.isdecimal():
        return int(number), rest
    return EVERY_HOST, name


def host_of_replica(replica: int, replicas: int, hosts: int) -> int:
    """Return the host that feeds a replica."""
    return replica // (replicas // max(hosts, 1))
