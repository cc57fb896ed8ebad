"""Closed forms of waiting against the recurrence that they solve, and against cases by hand."""

import random
from collections import deque
from fractions import Fraction

import pytest

from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams.timing import FedLoop, idle_cycles, interval_cycles


class FeedClock:
    """The recurrence step by step."""

    def __init__(self, depth: int, *, transfer_cycles: int = 0) -> None:
        self.now = Fraction(0)
        """The device's time."""
        self.idle = Fraction(0)
        """Cycles that the device has waited."""
        self._transfer_cycles = transfer_cycles
        self._arrived = Fraction(0)
        self._taken: deque[Fraction] = deque(maxlen=depth)

    def take(self, made: Fraction) -> None:
        """Wait until the next element, made by the host at cycle `made`, is there."""
        begin = max(made, self._arrived)
        if len(self._taken) == self._taken.maxlen:
            begin = max(begin, self._taken[0])
        self._arrived = begin + self._transfer_cycles
        waited = max(Fraction(0), self._arrived - self.now)
        self.idle += waited
        self.now += waited
        self._taken.append(self.now)

    def advance(self, cycles: int) -> None:
        """Let the device work."""
        self.now += cycles


def stepped(loop: FedLoop, steps: int, depth: int) -> tuple[list[Fraction], Fraction]:
    """Return when each step begins and the whole idle time, step by step."""
    clock = FeedClock(depth, transfer_cycles=loop.transfer_cycles)
    begins = []
    for step in range(steps):
        clock.take(max(0, step + 1 - loop.ready) * loop.interval_cycles)
        begins.append(clock.now)
        clock.advance(loop.step_cycles)
    return begins, clock.idle


def test_the_closed_form_is_the_recurrence() -> None:
    draw = random.Random(4)
    for _ in range(400):
        loop = FedLoop(
            step_cycles=draw.randrange(1, 60),
            interval_cycles=Fraction(draw.randrange(0, 400), draw.randrange(1, 9)),
            transfer_cycles=draw.choice((0, draw.randrange(1, 60))),
            ready=draw.choice((0, 0, draw.randrange(9))),
        )
        steps, depth = draw.randrange(1, 40), draw.randrange(1, 5)
        begins, idle = stepped(loop, steps, depth)
        assert [loop.begin_of(step) for step in range(steps)] == begins
        assert 0 <= loop.idle_cycles(steps) - idle < 1


def test_by_hand() -> None:
    # An element each 30 cycles, steps of 10: nine waits of 20 after the first of 30.
    assert FedLoop(10, Fraction(30)).idle_cycles(10) == 30 + 9 * 20
    # An infinitely fast host is never waited for.
    assert FedLoop(10).idle_cycles(10**6) == 0
    # Transfers of 25 beside steps of 10: the first one, and then 15 for each.
    assert FedLoop(10, transfer_cycles=25).idle_cycles(4) == 25 + 3 * 15
    assert FedLoop(10, transfer_cycles=5).idle_cycles(4) == 5
    assert FedLoop(10).total_cycles(0) == 0


def test_a_stated_rate() -> None:
    # 1.33 GHz, 10^5 elements a second: 13,300 cycles each.
    assert interval_cycles(1_330_000_000, 1e5) == 13_300
    assert idle_cycles(1000, 13_000, clock_hz=1_330_000_000, elements_per_second=1e5) == (
        13_300 + 999 * 300
    )
    assert idle_cycles(1000, 14_000, clock_hz=1_330_000_000, elements_per_second=1e5) == 13_300
    assert idle_cycles(10, 1, clock_hz=10**9) == 0


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_that_is_none(rate: float) -> None:
    with pytest.raises(StreamError):
        interval_cycles(10**9, rate)


def test_verdicts() -> None:
    host = FedLoop(10, Fraction(40), 20)
    assert (host.verdict, host.starved_share) == ("host-bound", 0.75)
    transfer = FedLoop(10, Fraction(5), 20)
    assert (transfer.verdict, transfer.starved_share) == ("transfer-bound", 0.5)
    device = FedLoop(10, Fraction(5), 9)
    assert (device.verdict, device.starved_share) == ("device-bound", 0.0)


def test_a_million_steps_are_no_work() -> None:
    assert FedLoop(10, Fraction(1, 3), 11).total_cycles(10**12) > 10**13
