"""Rates of a queue, with a clock that tells what it is told to."""

import time
from typing import Any, cast

import numpy as np
import pytest

from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams.element import ElementSpec, LeafSpec
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.rate import EpochRate, interval_cycles, measure

SPEC = ElementSpec((LeafSpec("f32", (4, 2)), LeafSpec("s8", (3,))))


class Watched(np.ndarray[Any, Any]):
    """An array that counts how often it is copied."""

    copies = 0

    def copy(self, order: Any = "C") -> Any:
        type(self).copies += 1
        return super().copy(order)


class Queue:
    """Hands over elements, and counts them."""

    spec = SPEC

    def __init__(self) -> None:
        self.taken = 0

    def take(self) -> tuple[Watched, Watched]:
        self.taken += 1
        a, b = np.zeros((4, 2), np.float32), np.zeros(3, np.int8)
        return a.view(Watched), b.view(Watched)


@pytest.mark.parametrize("copy", [False, True])
def test_rates_of_epochs(copy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((0.0, 2.0, 10.0, 10.0))
    queue, before = Queue(), Watched.copies
    with monkeypatch.context() as patched:
        patched.setattr(time, "perf_counter", lambda: next(times))
        found = measure(cast(InfeedQueue, queue), 2, 5, copy=copy)
    size = 5 * (4 * 2 * 4 + 3)
    assert SPEC.size_bytes == 35
    assert found == [
        EpochRate(5, size, 2.0, 2.5, size / 2.0 / 1e9),
        EpochRate(5, size, 1e-9, 5 / 1e-9, size / 1e-9 / 1e9),  # no clock is that fast
    ]
    assert queue.taken == 10
    assert Watched.copies - before == (20 if copy else 0)


@pytest.mark.parametrize(("epochs", "elements"), [(0, 5), (2, 0)])
def test_counts_below_one_are_refused(epochs: int, elements: int) -> None:
    with pytest.raises(StreamError) as caught:
        measure(cast(InfeedQueue, Queue()), epochs, elements, copy=False)
    assert caught.value.code == "E2031"


def test_a_stated_rate() -> None:
    # 1.33 GHz, 10^5 elements a second: 13,300 cycles each.
    assert interval_cycles(1_330_000_000, 1e5) == 13_300
    assert interval_cycles(10**9, None) == 0


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_that_is_none(rate: float) -> None:
    with pytest.raises(StreamError):
        interval_cycles(10**9, rate)
