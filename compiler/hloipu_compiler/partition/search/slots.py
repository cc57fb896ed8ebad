"""Pipeline slots in closed form: their cycles, and how busy IPUs are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.plan.schedule import Schedule

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Work:
    """What each position does in a slot, in cycles."""

    cycles: Floats
    """Of its body."""
    copies: Floats
    """At the end of the slot, on its IPU."""
    links: Floats
    """At the end of the slot, between IPUs."""
    stored: Floats
    """At the end of the slot, from its IPU to the memory beside it."""
    offloading: Floats | None = None
    """Of transfers that go on beside bodies; on one chassis, one after the other."""
    chassis_ipus: int = 1
    """IPUs that share lines to the host."""


def sums(schedule: Schedule, work: Work, ipu_of_stage: Sequence[int]) -> tuple[float, float]:
    """Return the cycles of the slowest IPUs, summed over all slots, and those of the slots' ends.

    Micro-batches in groups change nothing: one position works in each slot, as without them.
    Once all positions are at work slots repeat themselves, so that few have to be looked at.
    """
    interval, positions = schedule.interval, schedule.positions
    full = -(-(positions - 1) // interval) + 1
    count = schedule.micro_batches
    place = np.array([ipu_of_stage[schedule.stage_of(n)] for n in range(positions)])
    if count <= full:
        return _sums(interval, count, work, place)
    few, more = (_sums(interval, n, work, place) for n in (full, full + 1))
    rest = count - full
    return few[0] + rest * (more[0] - few[0]), few[1] + rest * (more[1] - few[1])


def _sums(interval: int, count: int, work: Work, place: NDArray[np.int64]) -> tuple[float, float]:
    """Return both sums, slot by slot."""
    positions = len(place)
    slots = np.arange(interval * (count - 1) + positions)
    since = slots[None, :] - np.arange(positions)[:, None]
    active = (since >= 0) & (since % interval == 0) & (since <= interval * (count - 1))

    def busiest(cycles: Floats, places: NDArray[np.int64]) -> Floats:
        busy = np.zeros((int(places.max()) + 1, len(slots)))
        np.add.at(busy, places, active * cycles[:, None])
        most_busy: Floats = busy.max(axis=0)
        return most_busy

    span = busiest(work.cycles, place)
    if work.offloading is not None:
        span = np.maximum(span, busiest(work.offloading, place // work.chassis_ipus))
    ends = busiest(work.copies, place) + (active * work.links[:, None]).max(axis=0)
    if work.stored.any():
        ends = ends + busiest(work.stored, place)
    return float(span.sum()), float(ends.sum())
