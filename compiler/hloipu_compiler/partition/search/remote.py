"""Cycles of transfers to and from remote memory.

Each copy that takes longer than an access stands alone; smaller ones go one after the other
(`codegen.late_copies`).
"""

from collections.abc import Sequence

from hloipu_compiler.partition.search.candidate import Candidate
from hloipu_compiler.partition.search.cut import Cut
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import remote_transfer


class RemoteCycles:
    """What transfers of one machine take."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._each: dict[tuple[int, bool], int] = {}
        self._lists: dict[tuple[tuple[int, ...], bool, int], int] = {}

    def one(self, size: int, *, write: bool) -> int:
        """Return the cycles of one copy that stands alone."""
        key = (size, write)
        if key not in self._each:
            self._each[key] = remote_transfer(self.machine, size, write=write).cycles
        return self._each[key]

    def several(self, sizes: tuple[int, ...], *, write: bool, parts: int = 1) -> int:
        """Return the cycles of copies in one direction, of one part in so many of each array."""
        key = (sizes, write, parts)
        if key not in self._lists:
            access = self.one(1, write=write)
            cut = [over(size, parts) for size in sizes]
            alone = [self.one(size, write=write) for size in cut]
            large = sum(cycles for cycles in alone if cycles > 2 * access)
            small = sum(
                size for size, cycles in zip(cut, alone, strict=True) if cycles <= 2 * access
            )
            self._lists[key] = large + self.one(small, write=write)
        return self._lists[key]

    def both_ways(self, sizes: tuple[int, ...], parts: int = 1) -> int:
        """Return the cycles of bringing arrays and storing them."""
        return sum(self.several(sizes, write=write, parts=parts) for write in (False, True))

    def in_slots(self, candidate: Candidate, cut: Cut) -> list[int]:
        """Return what each position fetches and stores for a micro-batch, in cycles.

        What comes once for a group of micro-batches is left out.
        """
        cycles_by_position = [0] * len(cut.fetched)
        if candidate.offload_weights and candidate.batch_serialization == 1:
            cycles_by_position = [self.several(sizes, write=False) for sizes in cut.fetched]
        if candidate.offload_accumulators and candidate.batch_serialization == 1:
            last = len(cycles_by_position) - 1
            for stage, sizes in enumerate(cut.accumulators):
                # Each is fetched, added to and stored before the next.
                each = [self.one(n, write=False) + self.one(n, write=True) for n in sizes]
                cycles_by_position[last - stage] += sum(each)
        return cycles_by_position

    def of_groups(self, candidate: Candidate, cut: Cut) -> int:
        """Return the cycles of what comes and goes for groups of micro-batches, of an update."""
        if candidate.batch_serialization == 1:
            return 0
        each = 0
        if candidate.offload_weights:
            each += sum(self.several(sizes, write=False) for sizes in cut.fetched)
        if candidate.offload_accumulators:
            each += sum(self.both_ways(sizes) for sizes in cut.accumulators)
        return over(candidate.micro_batches, candidate.batch_serialization) * each

    def of_update(self, candidate: Candidate, cut: Cut, *, is_offloading: bool) -> Sequence[int]:
        """Return what each stage brings for an update and stores after it, in cycles.

        `is_offloading`: whether what only the update reads lies there.
        """
        cycles_by_stage = [0] * candidate.stages
        for stage in range(candidate.stages):
            if is_offloading:
                parts = candidate.replicas if candidate.shard_optimizer else 1
                cycles_by_stage[stage] += self.both_ways(cut.aside[stage], parts)
            if candidate.offload_weights:
                cycles_by_stage[stage] += self.both_ways(cut.weights[stage])
                cycles_by_stage[stage] += self.several(cut.read_before[stage], write=False)
                cycles_by_stage[stage] += self.several(cut.cast[stage], write=True)
            if candidate.offload_accumulators:
                cycles_by_stage[stage] += self.several(cut.accumulators[stage], write=False)
        return cycles_by_stage
