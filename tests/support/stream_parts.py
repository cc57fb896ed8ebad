"""What programs that are fed by failing sources, or drained by failing sinks, are made of."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from hloipu_runtime.streams.element import Array, ElementSpec, LeafSpec
from hloipu_runtime.streams.host import StreamHost
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.outfeed import Arrived, OutfeedQueue

TIMEOUT_SECONDS = 0.4
LONG = 30.0
"""Where something else is to end the wait."""
SPEC = ElementSpec((LeafSpec("f32", (3,)),))


class OwnError(Exception):
    """What sources and sinks of these cases raise."""


def row(number: int) -> Array:
    return np.full(3, number, np.float32)


def feed(source: Any, takes: int, timeout: float = TIMEOUT_SECONDS, **settings: Any) -> None:
    """Run a program that takes elements, each of which must be the right one."""
    queue = InfeedQueue("data", SPEC, source, timeout=timeout, **settings)
    with StreamHost([queue]) as host, host.running():
        for number in range(takes):
            assert host.take("data")[0] == number


def give(gives: int, sink: Callable[[Arrived], None] | None = None, **settings: Any) -> None:
    """Run a program that gives elements."""
    settings.setdefault("timeout", TIMEOUT_SECONDS)
    queue = OutfeedQueue("loss", spec=SPEC, sink=sink, **settings)
    with StreamHost([], [queue]) as host, host.running():
        for number in range(gives):
            host.give("loss", row(number))


def feed_two(source: Any, takes: int, **settings: Any) -> None:
    """Run a program on two replicas in turn: replica i takes element i modulo 2."""
    queue = InfeedQueue("data", SPEC, source, timeout=TIMEOUT_SECONDS, replicas=2, **settings)
    hosts = [StreamHost([queue], replica=replica) for replica in (0, 1)]
    with hosts[0], hosts[0].running():
        for number in range(takes):
            assert hosts[number % 2].take("data")[0] == number


def give_two(gives: int, sink: Callable[[Arrived], None] | None = None, **settings: Any) -> None:
    """Run a program that gives elements from two replicas."""
    queue = OutfeedQueue(
        "loss", spec=SPEC, sink=sink, timeout=TIMEOUT_SECONDS, replicas=2, **settings
    )
    hosts = [StreamHost([], [queue], replica=replica) for replica in (0, 1)]
    with hosts[0], hosts[0].running():
        for number in range(gives):
            for host in hosts:
                host.give("loss", row(number))


def rows_then(count: int, last: Callable[[], Any]) -> Iterator[Any]:
    for number in range(count):
        yield row(number)
    while True:
        yield last()


def raised() -> NoReturn:
    raise OwnError("from within")


def died() -> NoReturn:
    raise SystemExit(3)


def for_ever() -> NoReturn:
    while True:
        time.sleep(0.005)


def slowly(count: int) -> Iterator[Array]:
    for number in range(count):
        time.sleep(0.02)
        yield row(number)


def stubborn() -> NoReturn:
    """Wait for ever, and hold out against every ordinary exception."""
    while True:
        try:
            for_ever()
        except Exception:
            continue
