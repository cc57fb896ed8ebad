"""Timetable of pipeline positions: slots in closed form.

Position s does micro-batch m in slot `interval * m + s`, for every m below `count`. Between its
ramps a pipeline repeats itself every `interval` slots, so that however many micro-batches there
are, slots differ in few ways only.

Where one position alone works at a time, micro-batches may go through them in groups: all of a
group through one position, then all through the next. With n in a group, the i-th of group g is
done by position s of N in slot `(g * N + s) * n + i`; the last group may have fewer, r, and then
its slots are `g * n * N + s * r + i`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hloipu_runtime.frozen import dataclass


def longest_iterations(
    positions: Sequence[int], cycles: Sequence[float], places: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """Return positions of one slot that wait for each other, and take longest together.

    A position begins when all of its `places` are free, those of a slot later ones first.
    """
    free: dict[int, tuple[float, tuple[int, ...]]] = {}
    longest: tuple[float, tuple[int, ...]] = (0, ())
    for position in reversed(positions):
        latest: tuple[float, tuple[int, ...]] | None = None
        for place in places[position]:
            iteration = free.get(place)
            if iteration is not None and (latest is None or iteration[0] > latest[0]):
                latest = iteration
        begun, before = latest or (0, ())
        until = (begun + cycles[position], (*before, position))
        for place in places[position]:
            free[place] = until
        if until[0] > longest[0] or not longest[1]:
            longest = until
    return longest[1]


class Pattern(NamedTuple):
    """Slots in which the same positions are active."""

    positions: tuple[int, ...]
    """Ascending."""
    slots: int
    """How many there are."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """Slots of a pipeline."""

    positions: int
    interval: int
    """Slots from one micro-batch to the next, at least 1."""
    count: int
    """Micro-batches."""
    group: int = 1
    """Micro-batches that one position does before the next does; if several, `interval` is
    `positions`."""

    @property
    def groups(self) -> int:
        """Number of groups of micro-batches."""
        return -(-self.count // self.group)

    @property
    def slots(self) -> int:
        """Slots until the last micro-batch is through."""
        if not self.count or not self.positions:
            return 0
        return self.interval * (self.count - 1) + self.positions

    def slot(self, position: int, micro_batch: int) -> int:
        """Return the slot in which a position does a micro-batch."""
        if self.group > 1:
            first, place = self._group_of(micro_batch)
            together = min(self.group, self.count - first)
            return first * self.positions + position * together + place
        return self.interval * micro_batch + position

    def micro_batch(self, position: int, slot: int) -> int | None:
        """Return what a position does in a slot, or None where it waits."""
        if self.group > 1:
            at_work = self._at_work(slot)
            return at_work[1] if at_work is not None and at_work[0] == position else None
        number, offset = divmod(slot - position, self.interval)
        return number if not offset and 0 <= number < self.count else None

    def active(self, slot: int) -> tuple[int, ...]:
        """Return the positions that work in a slot, ascending."""
        if self.group > 1:
            at_work = self._at_work(slot)
            return () if at_work is None else at_work[:1]
        first = slot % self.interval
        return tuple(
            position
            for position in range(first, min(self.positions, slot + 1), self.interval)
            if slot - position <= self.interval * (self.count - 1)
        )

    def micro_batches_waiting(self, producer: int, consumer: int) -> int:
        """Return of how many micro-batches a value waits between two positions at once.

        It is made at the end of the producer's slot and read in the consumer's.
        """
        most = self.group if self.group > 1 else -(-(consumer - producer) // self.interval)
        return max(1, min(most, self.count))

    def begins_group(self, micro_batch: int) -> bool:
        """Whether a micro-batch is the first that a position does before the next one does."""
        return micro_batch % self.group == 0

    def ends_group(self, micro_batch: int) -> bool:
        """Whether a micro-batch is the last that a position does before the next one does."""
        return micro_batch % self.group == self.group - 1 or micro_batch == self.count - 1

    def patterns(self) -> list[Pattern]:
        """Return all slots, those alike in the steady state together; work: positions squared."""
        if self.group > 1:
            return [Pattern((n,), self.count) for n in range(self.positions) if self.count]
        first = self.positions - 1
        last = self.interval * (self.count - 1)
        if last - first < self.interval:
            return [Pattern(self.active(slot), 1) for slot in range(self.slots)]
        steady = last - first + 1
        patterns = [Pattern(self.active(slot), 1) for slot in range(first)]
        for place in range(self.interval):
            times = (steady - place + self.interval - 1) // self.interval
            patterns.append(Pattern(self.active(first + place), times))
        return patterns + [Pattern(self.active(slot), 1) for slot in range(last + 1, self.slots)]

    def span(self, cycles: Sequence[int], places: Sequence[int]) -> int:
        """Return the sum over slots of the slowest place; positions of a place take turns.

        `cycles`: of each position; `places`: where it is, such as the number of its IPU.
        """
        several = [(place,) for place in places]
        return sum(
            pattern.slots
            * sum(cycles[n] for n in longest_iterations(pattern.positions, cycles, several))
            for pattern in self.patterns()
        )

    def _group_of(self, micro_batch: int) -> tuple[int, int]:
        place = micro_batch % self.group
        return micro_batch - place, place

    def _at_work(self, slot: int) -> tuple[int, int] | None:
        if not 0 <= slot < self.slots:
            return None
        group, slot_in_group = divmod(slot, self.group * self.positions)
        first = group * self.group
        position, place = divmod(slot_in_group, min(self.group, self.count - first))
        return position, first + place
