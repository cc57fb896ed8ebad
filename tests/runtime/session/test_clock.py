"""The clock of a session against the recurrence it stands for, step by step."""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest

from hloipu_runtime.costs.step_times import StepTimes
from hloipu_runtime.session.clock import SessionClock


def times(call: int, turn: int) -> StepTimes:
    return StepTimes(call + 3 * turn, call, turn, call, is_exact=True, loop_path="body/0/repeat")


@pytest.mark.parametrize("seed", range(40))
def test_every_step_ends_when_the_recurrence_says(seed: int) -> None:
    """begin = max(the step before has ended, its element is made), one step after the other."""
    draw = np.random.default_rng(seed)
    call, turn = int(draw.integers(0, 500)), int(draw.integers(1, 200))
    interval = Fraction(int(draw.integers(1, 4000)), int(draw.integers(1, 20)))
    origin = int(draw.integers(0, 1000)) * int(draw.integers(0, 2))
    clock = SessionClock(times(call, turn), interval)
    clock.begin_at(origin)
    now, waited, element = Fraction(origin), Fraction(0), 0
    for _ in range(int(draw.integers(1, 6))):
        steps = int(draw.integers(1, 12))
        begun = now = Fraction(ceil(now))  # a call begins with a whole cycle
        now += call
        for step in range(1, steps + 1):
            made = origin + (element + 1) * interval
            now = max(now, made) + turn
            element += 1
            assert clock.end_of(step) == ceil(now)
        clock.end_call(steps)
        waited += ceil(now) - begun - call - steps * turn
        assert clock.now == ceil(now)
        assert clock.idle_cycles == waited


def test_a_host_that_is_never_late_costs_nothing() -> None:
    clock = SessionClock(times(100, 7))
    clock.end_call(10)
    clock.end_call(10)
    assert (clock.now, clock.idle_cycles) == (2 * (100 + 10 * 7), 0)


@pytest.mark.parametrize("steps", [1, 5, 1000])
def test_a_slow_host_sets_the_pace(steps: int) -> None:
    """The last element is made after steps * interval; its step is all that follows."""
    clock = SessionClock(times(100, 7), Fraction(801, 2))
    clock.end_call(steps)
    assert clock.now == ceil(steps * Fraction(801, 2)) + 7


@pytest.mark.parametrize("steps", [1, 5, 1000])
def test_a_host_that_works_ahead_is_waited_for_once_at_most(steps: int) -> None:
    """With an interval below a turn all elements but the first are there in time."""
    for call, first_wait in ((0, 6), (4, 2), (100, 0)):
        clock = SessionClock(times(call, 7), Fraction(6))
        clock.end_call(steps)
        clock.end_call(steps)
        assert clock.idle_cycles == first_wait
