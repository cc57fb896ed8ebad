"""Estimated cycles of a program, without a run."""

from collections.abc import Mapping
from typing import NamedTuple

from hloipu_runtime.arguments import Number
from hloipu_runtime.costs.costs import (
    Called,
    Choice,
    Costs,
    DataLoop,
    Inner,
    Loop,
    Pipelined,
    Together,
    blocks_inside,
)
from hloipu_runtime.costs.counting import BlockCounts, count_blocks, spent_of
from hloipu_runtime.costs.spent import FREE, Spent
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import seconds
from hloipu_runtime.program.program import Program

Trips = Number | Mapping[str, Number] | None
"""How often loops are taken to turn of which only data knows: all of them, or by name."""


class Unknown(NamedTuple):
    """A loop or a choice whose cost only data knows."""

    path: str
    kind: str
    """`while` or `branch`."""
    name: str


@dataclass(frozen=True)
class Estimate:
    """Cycles along the critical path; where data decides, `spent` is what is spent at least."""

    spent: Spent
    lower_bound_cycles: int
    total_cycles: int | None
    """None where data decides."""
    seconds: float | None
    unknown: tuple[Unknown, ...]
    counts: BlockCounts
    """Executions of each block; where data decides, at least."""

    @property
    def compute_cycles(self) -> int:
        """Cycles that the slowest tiles compute."""
        return self.spent.compute.cycles

    @property
    def exchange_cycles(self) -> int:
        """Cycles of exchanges between tiles and IPUs."""
        return self.spent.exchange.cycles

    @property
    def sync_cycles(self) -> int:
        """Cycles of barriers."""
        return self.spent.sync.cycles

    @property
    def host_cycles(self) -> int:
        """Cycles of transfers from and to the host that the device waits for."""
        return self.spent.host.cycles

    @property
    def remote_cycles(self) -> int:
        """Cycles of copies from and to the memory beside the IPUs."""
        return self.spent.remote.cycles

    @property
    def device_cycles(self) -> int:
        """Cycles that the device spends on its own: computing, exchanges, barriers, copies."""
        return self.spent.device.cycles

    @property
    def idle_cycles(self) -> int:
        """Cycles of waiting for data from the host; an estimate knows of none."""
        return self.spent.idle.cycles

    @property
    def assumed_cycles(self) -> int:
        """Cycles that rest on assumed numbers."""
        return self.spent.total.assumed_cycles


def estimate(
    program: Program, machine: Machine, assume_trips: Trips = None, costs: Costs | None = None
) -> Estimate:
    """Return the cycles of a verified program; time does not depend on trip counts.

    A loop that data ends is unknown unless `assume_trips` has it; a choice is unknown unless its
    branches cost the same. At least, such a loop runs 0 times and the cheapest branch is taken.
    """
    sums = _Sums(costs or step_charges(program, machine), assume_trips)
    counts = count_blocks(sums.costs, sums.decide)
    spent, unknown = spent_of(sums.costs, counts), sums.unknown[sums.costs.root]
    cycles = spent.total.cycles
    return Estimate(
        spent,
        cycles,
        None if unknown else cycles,
        None if unknown else seconds(machine, cycles),
        tuple(sums.unknowns) if unknown else (),
        counts,
    )


class _Sums:
    """What each block costs with all that is inside, from the innermost blocks outwards."""

    def __init__(self, costs: Costs, trips: Trips) -> None:
        self.costs = costs
        self.trips = trips
        self.least: list[Spent] = []
        self.unknown: list[bool] = []
        self.unknowns: list[Unknown] = []
        for block in costs.blocks:
            self.least.append(block.spent)
            self.unknown.append(False)
            for inner in block.inner:
                spent, unknown = self._inside(inner)
                self.least[-1] = self.least[-1].plus(spent)
                self.unknown[-1] |= unknown

    def assumed_trips(self, loop: DataLoop) -> int | None:
        """Return how often a loop is taken to turn; None: nothing is assumed."""
        if self.trips is None or isinstance(self.trips, int):
            return self.trips
        return self.trips.get(loop.name, self.trips.get(loop.path))

    def cycles(self, block: int) -> int:
        return self.least[block].total.cycles

    def chosen(self, inner: Choice | Together) -> int:
        """Return the place of the cheapest branch, or of the slowest of those run together."""
        places = range(len(inner.branches))
        if isinstance(inner, Together):
            return max(places, key=lambda n: self.cycles(inner.branches[n]), default=0)
        return min(places, key=lambda n: self.cycles(inner.branches[n]), default=0)

    def _inside(self, inner: Inner) -> tuple[Spent, bool]:
        match inner:
            case Called():
                return self.least[inner.body], self.unknown[inner.body]
            case Loop():
                spent = self.least[inner.body].times(inner.iterations)
                return spent, self.unknown[inner.body] and inner.iterations > 0
            case DataLoop():
                return self._data_loop(inner)
            case Choice():
                return self._choice(inner)
            case Together():
                if not inner.branches:
                    return FREE, False
                slowest = inner.branches[self.chosen(inner)]
                return self.least[slowest], any(self.unknown[b] for b in inner.branches)
            case Pipelined():
                return self._pipelined(inner)

    def _pipelined(self, inner: Pipelined) -> tuple[Spent, bool]:
        spent, blocks = FREE, blocks_inside(inner)
        for slots, places in inner.slowest([self.cycles(b) for b in blocks]):
            for place in places:
                spent = spent.plus(self.least[blocks[place]].times(slots))
        unknown = any(self.unknown[b] for b in blocks)
        return spent, unknown and inner.iterations > 0

    def _data_loop(self, inner: DataLoop) -> tuple[Spent, bool]:
        trips = self.assumed_trips(inner)
        condition = self.least[inner.condition].times(1 + (trips or 0))
        if trips is None:
            self.unknowns.append(Unknown(inner.path, "while", inner.name))
            return condition, True
        unknown = self.unknown[inner.condition] or (trips > 0 and self.unknown[inner.body])
        return condition.plus(self.least[inner.body].times(trips)), unknown

    def _choice(self, inner: Choice) -> tuple[Spent, bool]:
        if not inner.branches:
            return FREE, False
        unknown = any(self.unknown[b] for b in inner.branches)
        if len({self.cycles(b) for b in inner.branches}) > 1:
            self.unknowns.append(Unknown(inner.path, "branch", inner.name))
            unknown = True
        return self.least[inner.branches[self.chosen(inner)]], unknown

    def decide(self, inner: DataLoop | Choice, around: int) -> list[int]:
        """Return how often the blocks inside run at least."""
        if isinstance(inner, DataLoop):
            trips = self.assumed_trips(inner) or 0
            return [around * (trips + 1), around * trips]
        chosen = self.chosen(inner)
        return [around if n == chosen else 0 for n in range(len(inner.branches))]
