"""Simulated time of a session: host calls, steps, waits.

A call begins when the one before has ended. With an iteration of `step` cycles, of which nothing
overlaps the transfer, step k of a call that began at cycle t, whose first element is number n, ends
at the largest of

    t + call + (k + 1) * step            the device is the slowest
    made(n) + (k + 1) * step             it waited for the call's first element
    made(n + k) + step                   the host is the slowest

with made(i) = origin + (i + 1) * interval: the longest path of a loop, by calls. Where
transfers go on beside the iterations, an element that was late has to come in before its turn.
"""

from fractions import Fraction

from hloipu_runtime.costs.step_times import StepTimes


class SessionClock:
    """When each step of a session ends; fractions of a cycle are rounded up once, at the end."""

    def __init__(self, times: StepTimes, interval: Fraction = Fraction(0)) -> None:
        """Begin at cycle 0; `interval`: cycles between two elements of the slowest feed."""
        self.times = times
        self.now = 0
        """Cycle at which the call going on began, or the next one will."""
        self.idle_cycles = 0
        """Of all cycles, those of waiting for the host's elements."""
        self.loading_cycles = 0
        """Of all cycles, those of loading what is to lie on the device."""
        self._interval = interval
        self._origin = 0
        self._elements = 0

    def begin_at(self, cycle: int) -> None:
        """Go on from a cycle: the host begins to make elements then."""
        self.now = self._origin = cycle
        self._elements = 0

    def end_of(self, steps: int) -> int:
        """Return the cycle at which so many steps of the call going on are done."""
        busy = self.now + self.times.cycles_after(steps)
        if not self._interval or not steps:
            return busy
        first = self._made_parts(self._elements)
        last = self._made_parts(self._elements + steps - 1)
        parts, iteration = self._interval.denominator, self.times.iteration_cycles
        waited = max(first + steps * iteration * parts, last + iteration * parts)
        return max(busy, -(-waited // parts))

    def end_call(self, steps: int) -> None:
        """Note that a call has ended after so many steps."""
        end = self.end_of(steps)
        self.idle_cycles += end - self.now - self.times.cycles_after(steps)
        self.now = end
        self._elements += steps

    def add(self, cycles: int) -> None:
        """Note that calls took longer than they can at least, as data decided."""
        self.now += cycles

    def load(self, cycles: int) -> None:
        """Note that the host loaded something between calls."""
        self.now += cycles
        self.loading_cycles += cycles

    def _made_parts(self, element: int) -> int:
        """Return when an element is there, in whole parts of a cycle."""
        interval = self._interval
        begun = self._origin + self.times.transfer_cycles
        return begun * interval.denominator + (element + 1) * interval.numerator
