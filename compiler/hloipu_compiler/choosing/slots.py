"""The slots of a pipeline in closed form: what they take, and how busy IPUs are in them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.plan.schedule import Schedule

Floats = NDArray[np.float64]


def sums(
    schedule: Schedule, cycles: Floats, ipu_of_stage: Sequence[int], ends: Floats
) -> tuple[float, float]:
    """Return the cycles of the slowest IPUs, summed over all slots, and those of the slots' ends.

    `cycles` and `ends` of each position: at its end a slot lasts as long as its slowest copy. Once
    all positions are at work slots repeat themselves, so that few have to be looked at.
    """
    interval, positions = schedule.interval, schedule.positions
    full = -(-(positions - 1) // interval) + 1
    count = schedule.micro_batches
    place = np.array([ipu_of_stage[schedule.stage_of(n)] for n in range(positions)])
    if count <= full:
        return _sums(interval, count, cycles, place, ends)
    few, more = (_sums(interval, n, cycles, place, ends) for n in (full, full + 1))
    rest = count - full
    return few[0] + rest * (more[0] - few[0]), few[1] + rest * (more[1] - few[1])


def _sums(
    interval: int, count: int, cycles: Floats, place: NDArray[np.int64], ends: Floats
) -> tuple[float, float]:
    """Return both sums, slot by slot."""
    positions = len(cycles)
    slots = np.arange(interval * (count - 1) + positions)
    since = slots[None, :] - np.arange(positions)[:, None]
    active = (since >= 0) & (since % interval == 0) & (since <= interval * (count - 1))
    busy = np.zeros((int(place.max()) + 1, len(slots)))
    np.add.at(busy, place, active * cycles[:, None])
    return float(busy.max(axis=0).sum()), float((active * ends[:, None]).max(axis=0).sum())
