"""Balances forward ops over stages of which some have several IPUs.

Such a stage costs what its fullest branch does, with what joins branches, where `independent_parts`
finds as many as it has IPUs; that is looked up only for stages of cuts that would be best if its
work were spread evenly, until those are the best indeed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.partition.stages.assignment import Stages
from hloipu_compiler.partition.stages.branches import Branching
from hloipu_compiler.partition.stages.cut_tables import Budget, between, least_cuts, least_dearest
from hloipu_compiler.partition.stages.cutting import Costing, by_cuts
from hloipu_compiler.partition.stages.independent_parts import independent_parts
from hloipu_compiler.partition.stages.loads import Floats, Loads, loads_of
from hloipu_compiler.partition.training.step_phases import FORWARD, Phases
from hloipu_compiler.plan.schedule import Schedule

_MOST_PLACES = 48
"""Places to cut at that are looked at: those at which least crosses."""
_MOST_LOOKS = 120
"""Times that best cuts are looked for, each time with more stages known."""
_TRIES = 48
"""Of bounds for the parts of one stage."""
_SLACKS = (1.0, 2.0, 4.0, np.inf)
"""Of the memory that there is, as for stages on one IPU."""


def with_branches(
    entry: Computation,
    phases: Phases,
    schedule: Schedule,
    constants: Sequence[int],
    costing: Costing,
    device_map: Sequence[tuple[int, ...]],
) -> dict[int, int]:
    """Return the stage of every forward op where stages have branches; nothing where none has.

    `constants`: parameters that stay on the device and are no state. Nothing is returned either
    where the map does not fit the stages, or no cuts have all branches.
    """
    ipus = [len(here) for here in device_map]
    ahead = [n for n, phase in enumerate(phases.phase) if phase == FORWARD]
    if max(ipus, default=1) == 1 or len(ipus) != schedule.stages or len(ahead) < len(ipus):
        return {}
    if schedule.stages == 1:
        return dict.fromkeys(ahead, 0)
    loads = loads_of(entry, phases, constants, costing.cycles)
    cuts = ConcurrentCutting(entry, phases, loads, schedule, costing.budget, ipus).cuts()
    return by_cuts(loads.ahead, cuts) if cuts is not None else {}


@dataclass
class ConcurrentCutting:
    """Cuts whose stages have several IPUs."""

    entry: Computation
    phases: Phases
    loads: Loads
    schedule: Schedule
    budget: Budget
    ipus: Sequence[int]
    """How many each stage has."""

    def __post_init__(self) -> None:
        entry, loads, schedule = self.entry, self.loads, self.schedule
        count = len(loads.ahead)
        order = np.lexsort((np.arange(1, count), loads.crossing[1:count]))
        places = np.sort(order[: max(_MOST_PLACES, schedule.stages - 1)] + 1)
        self.ends = [0, *map(int, places), count]
        work = np.diff(loads.forward_until + loads.backward_until)
        self.cycles = [0.0] * len(entry.instructions)
        for position, cycles in zip(loads.ahead, work, strict=True):
            self.cycles[position] = float(cycles)
        nowhere: Stages = (-1,) * len(entry.instructions)
        self.weights = Branching(entry, self.phases, nowhere, {}).weights

    def cuts(self) -> tuple[int, ...] | None:
        """Return where stages begin by place among the forward ops, in the least room.

        None: no cuts have all branches.
        """
        exact: dict[tuple[int, int, int], float] = {}
        for slack in _SLACKS:
            costs = [self._costs(stage, slack) for stage in range(self.schedule.stages)]
            for key, cycles in exact.items():
                self._learn(costs, key, cycles)
            for _ in range(_MOST_LOOKS):
                places = _best(costs)
                if places is None:
                    break
                chosen = [(stage, a, b) for stage, (a, b) in enumerate(pairwise(places))]
                news = [x for x in chosen if self.ipus[x[0]] > 1 and x not in exact]
                for key in news:
                    exact[key] = self._looked_up(*key)
                    self._learn(costs, key, exact[key])
                if not news:
                    return tuple(self.ends[place] for place in places[1:-1])
        return None

    def _costs(self, stage: int, slack: float) -> Floats:
        """Return a stage's cost by its first and last place, its work spread evenly."""
        loads, budget, ends, ipus = self.loads, self.budget, self.ends, self.ipus[stage]
        into = loads.crossing[ends] * budget.cycles_per_byte
        into[-1] = 0.0
        costs = between((loads.forward_until + loads.backward_until)[ends]) / ipus
        costs += into[:, None] + into[None, :]
        state = between(loads.state_until[ends])
        state += budget.accumulators * between(loads.gradients_until[ends])
        state += budget.optimizer * between(loads.optimizer_until[ends])
        depth = self.schedule.stash_depth(stage) + 1
        state += depth * between(loads.stash_until[ends]) if self.schedule.trains else 0.0
        costs[state > slack * ipus * budget.memory_bytes] = np.inf
        costs[np.tril_indices(len(ends))] = np.inf  # a stage ends behind its beginning
        return costs

    def _looked_up(self, stage: int, a: int, b: int) -> float:
        """Return the cycles of a stage with branches; infinite where it has not enough of them."""
        members = self.loads.ahead[self.ends[a] : self.ends[b]]
        count = self.ipus[stage]
        parts = independent_parts(
            self.entry, members, self.weights, self.cycles, count, most=_TRIES
        )
        return parts.cycles if parts.used == count else np.inf

    def _learn(self, costs: list[Floats], key: tuple[int, int, int], cycles: float) -> None:
        stage, a, b = key
        into = self.loads.crossing[self.ends] * self.budget.cycles_per_byte
        sent = into[a] + (into[b] if b < len(self.ends) - 1 else 0.0)
        if np.isfinite(costs[stage][a, b]):
            costs[stage][a, b] = cycles + sent


def _best(costs: Sequence[Floats]) -> list[int] | None:
    """Return the places of the cuts whose dearest stage is cheapest, and of those with least sums.

    With the first place and the last; None where there are none.
    """
    most = least_dearest(costs)
    if not np.isfinite(most):
        return None
    places = len(costs[0])

    def total(stage: int, rest: Floats) -> Floats:
        return np.where(costs[stage] <= most, costs[stage], np.inf) + rest

    return [0, *least_cuts(len(costs), places, total), places - 1]
