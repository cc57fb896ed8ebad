"""Simulated time of a queue-fed loop: starts and waits of its steps.

All times are cycles of the device; the host's rate becomes an interval in cycles. For step i:

    made(i)  = (i + 1 - ready) * interval, not below 0: when the host has made element i
    begin(i) = max(made(i), arrived(i - 1), taken(i - depth)); arrived(i) = begin(i) + transfer
    taken(i) = max(arrived(i), taken(i - 1) + step): when step i begins

Without overlap the device makes the transfer itself: its cost is part of the step, and the device
merely waits for the host. Intervals are exact fractions and rounded up once, at the end.
"""

from fractions import Fraction
from typing import Literal

from hloipu_runtime.errors import StreamError
from hloipu_runtime.frozen import dataclass

Verdict = Literal["device-bound", "transfer-bound", "host-bound"]


@dataclass(frozen=True, slots=True)
class FedLoop:
    """A loop whose every step takes one element (of all its infeeds together)."""

    step_cycles: int
    """Of one iteration without any wait; includes the transfer where that does not overlap."""
    interval_cycles: Fraction = Fraction(0)
    """Between two elements of the host; 0: it is infinitely fast."""
    transfer_cycles: int = 0
    """Of one element, beside the loop; 0: no overlap."""
    ready: int = 0
    """Elements made before the loop began."""

    def begin_of(self, step: int) -> Fraction:
        """Return when a step begins, in cycles from the loop's begin."""
        return Fraction(self._scaled_begin(step), self.interval_cycles.denominator)

    def begin_cycle(self, step: int) -> int:
        """Return the first whole cycle of a step."""
        return -(-self._scaled_begin(step) // self.interval_cycles.denominator)

    def _scaled_begin(self, step: int) -> int:
        """Return a begin in whole parts of a cycle: integers, as a clock asks for each element.

        The recurrence is a longest path whose weights are linear in the step, so that the longest
        one turns at the first or the last element: three candidates, whatever the depth.
        """
        interval, parts = self.interval_cycles.numerator, self.interval_cycles.denominator
        transfer, cycles = self.transfer_cycles * parts, self.step_cycles * parts
        first = max(0, 1 - self.ready) * interval
        last = max(0, step + 1 - self.ready) * interval
        return max(
            first + transfer + step * cycles,
            first + (step + 1) * transfer,
            last + transfer,
        )

    def total_cycles(self, steps: int) -> int:
        """Return the cycles of a run of `steps`."""
        return self.begin_cycle(steps - 1) + self.step_cycles if steps else 0

    def idle_cycles(self, steps: int) -> int:
        """Return the cycles that the device waited for elements, during a run of `steps`."""
        return self.total_cycles(steps) - steps * self.step_cycles

    @property
    def verdict(self) -> Verdict:
        """What a long run waits for."""
        if self._period == self.step_cycles:
            return "device-bound"
        return "transfer-bound" if self._period == self.transfer_cycles else "host-bound"

    @property
    def starved_share(self) -> float:
        """Share of a long run's time that the device waits: 0 where the device is the slowest."""
        return float(1 - self.step_cycles / self._period) if self._period else 0.0

    @property
    def _period(self) -> Fraction:
        longer = max(Fraction(self.step_cycles), Fraction(self.transfer_cycles))
        return max(longer, self.interval_cycles)


def idle_cycles(
    steps: int,
    step_cycles: int,
    *,
    clock_hz: int,
    elements_per_second: float | None = None,
    transfer_cycles: int = 0,
    ready: int = 0,
) -> int:
    """Return the cycles that a loop of `steps` waits for a host of a stated rate; None: never."""
    interval = interval_cycles(clock_hz, elements_per_second)
    return FedLoop(step_cycles, interval, transfer_cycles, ready).idle_cycles(steps)


def interval_cycles(clock_hz: int, elements_per_second: float | None) -> Fraction:
    """Return the cycles between two elements; StreamError E2031 for a rate that is no rate."""
    if elements_per_second is None or elements_per_second == float("inf"):
        return Fraction(0)
    if not elements_per_second > 0:
        raise StreamError(
            "E2031",
            f"a producer of {elements_per_second} elements per second never makes one",
            expected="a positive rate",
            found=str(elements_per_second),
        )
    return Fraction(clock_hz) / Fraction(elements_per_second)
