"""Channels of a candidate's pipeline: what positions hand to each other, and when it takes memory.

On one IPU a position reads what another has made where it lies, if one micro-batch waits; what
comes over links lies where it is read from. Where several micro-batches wait, each has a place that
is there throughout, and is copied for the slot that reads it. In remote memory it takes no tiles.
An IPU does its positions of a slot one after the other, later ones first, and a turn of `interval`
slots repeats itself (`hloipu_runtime.memory.regions`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.lowering.core.offloading import LEAST_BYTES
from hloipu_compiler.partition.search.candidate import Candidate
from hloipu_compiler.partition.search.cut import Cut
from hloipu_compiler.partition.search.slots import Floats
from hloipu_compiler.plan.schedule import Schedule

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Channels:
    """What is handed on, one row for each reader of each array."""

    bytes: Floats
    source: Numbers
    """Number of what is handed on from `maker`: the array as it was made, or came over links."""
    maker: Numbers
    """Position of the pipeline."""
    reader: Numbers
    count: Numbers
    """Micro-batches that wait at once."""
    crosses: Flags
    """Whether it goes to another IPU."""
    is_offloaded: Flags
    """Whether it waits in remote memory."""

    @property
    def has_places(self) -> Flags:
        """Which wait in places of their own on tiles."""
        has_places: Flags = (self.count > 1) & ~self.is_offloaded
        return has_places

    @property
    def is_read_where_made(self) -> Flags:
        """Which need no copy."""
        needs_no_copy: Flags = (self.count == 1) & ~self.crosses & ~self.is_offloaded
        return needs_no_copy

    def throughout(self, ipu: Numbers, ipus: int) -> Floats:
        """Return the bytes of each IPU that are there in all slots; `ipu`: of each position."""
        bytes_by_ipu = np.zeros(ipus)
        places = self.has_places * self.count * self.bytes
        np.add.at(bytes_by_ipu, ipu[self.reader], places)
        return bytes_by_ipu

    def in_slots(
        self, schedule: Schedule, ipu: Numbers, working: Floats, ipus: int
    ) -> tuple[Floats, Floats]:
        """Return the most bytes of each IPU beside those that are there throughout.

        First at ends of slots, then at any moment. `ipu`, `working`: of each position its IPU, and
        what it makes at once.
        """
        at, end = _moments(schedule)
        moments = int(end.max()) + 1
        level = np.zeros((ipus, moments + 1))

        def there(first: Numbers, lasts: Numbers, place: Numbers, sizes: Floats) -> None:
            """Add arrays that are there from a moment on, and so many more."""
            last = first + lasts
            beyond = last >= moments
            np.add.at(level, (place, first), sizes)
            np.add.at(level, (place, np.where(beyond, last - moments, last) + 1), -sizes)
            np.add.at(level, (place[beyond], np.zeros(int(beyond.sum()), np.int64)), sizes[beyond])

        def until(first: Numbers, moment: Numbers) -> Numbers:
            """Return how many moments there are up to one, in this turn or the next."""
            count: Numbers = (moment - first) % moments
            return count

        # In more than a turn all moments come.
        is_long = self.reader - self.maker > schedule.interval
        read, produced, handed = at[self.reader], at[self.maker], end[self.maker]
        to_read = np.where(is_long, moments - 1, until(produced, read))
        lasts = np.where(self.is_read_where_made, to_read, until(produced, handed))
        _, row, source = np.unique(self.source, return_index=True, return_inverse=True)
        longest = np.zeros(len(row), np.int64)
        np.maximum.at(longest, source, lasts)
        there(produced[row], longest, ipu[self.maker[row]], self.bytes[row])

        stays = self.crosses & (self.count == 1) & ~self.is_offloaded
        lasts = np.where(is_long, moments - 1, until(handed, read))
        there(handed[stays], lasts[stays], ipu[self.reader[stays]], self.bytes[stays])
        taken = self.has_places | self.is_offloaded
        none = np.zeros(int(taken.sum()), np.int64)
        there(read[taken], none, ipu[self.reader[taken]], self.bytes[taken])
        passes = self.crosses & self.is_offloaded
        none = np.zeros(int(passes.sum()), np.int64)
        there(handed[passes], none, ipu[self.reader[passes]], self.bytes[passes])

        levels = np.cumsum(level[:, :moments], axis=1)
        between = levels[:, np.unique(end)].max(axis=1)
        levels[ipu, at] += working
        return between, levels.max(axis=1)


def _moments(schedule: Schedule) -> tuple[Numbers, Numbers]:
    """Return of each position when it works in a turn, and when its slot ends."""
    at, end = (np.zeros(schedule.positions, np.int64) for _ in range(2))
    moment = 0
    for slot in range(min(schedule.interval, schedule.positions)):
        positions = np.arange(slot, schedule.positions, schedule.interval)[::-1]
        at[positions] = moment + np.arange(len(positions))
        moment += len(positions)
        end[positions] = moment
        moment += 1
    return at, end


def channels_of(candidate: Candidate, schedule: Schedule, cut: Cut) -> Channels:
    """Return the channels of a cut on a candidate's IPUs.

    What comes over links to an IPU is handed on from the first position there that reads it.
    """
    handed = cut.parts.handed
    ipu = np.array(
        [candidate.ipu_of_stage[schedule.stage_of(n)] for n in range(schedule.positions)]
    )
    here, maker = ipu[handed.reader], handed.maker.copy()
    key = handed.op * candidate.ipus + here
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    relay = handed.reader[first[which]]
    is_relayed = (ipu[maker] != here) & (handed.reader != relay)
    maker[is_relayed] = relay[is_relayed]
    source = handed.op * schedule.positions + maker

    distance = handed.reader - maker
    if schedule.group > 1:
        most = np.full(len(maker), schedule.group)
    else:
        most = -(-distance // schedule.interval)
    count = np.clip(most, 1, max(schedule.micro_batches, 1))
    waits = distance * min(schedule.group, schedule.micro_batches) > 1
    is_offloaded = waits & (handed.bytes >= LEAST_BYTES) & candidate.offload_activations
    return Channels(
        handed.bytes, source, maker, handed.reader, count, ipu[maker] != here, is_offloaded
    )
