"""Balances forward ops over stages: least cost of the dearest stage within the memory budget.

A stage costs its forward and backward cycles and what crosses its borders; it needs room for its
state, accumulators and as many stashes as its schedule keeps. Cuts are found from the last stage
backwards (dynamic programming), since what a stage keeps depends on how many come after it. Of cuts
that cost nearly the same those at which least crosses are taken: the borders of equal blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.partition.stages.loads import Floats, Loads
from hloipu_compiler.plan.schedule import Schedule

Places = NDArray[np.int64]

MOST_PLACES = 256
"""Places to cut at that are looked at: those at which least crosses."""
_NEARLY = 1.02
"""What borders with less to send may cost beside the best. Assumed."""
_WHOLE = 1.1
"""What stages of whole trips of loops may cost beside others: the code of a trip is there once for
each stage, and least goes from one trip to the next. Assumed."""
_SLACKS = (1.0, 1.5, 2.0, 4.0, 16.0, np.inf)
"""Of the memory that there is: where nothing fits, stages that need least beyond it."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What the machine gives a stage."""

    cycles_per_byte: float
    """Of a link between IPUs."""
    memory_bytes: float
    """Of an IPU, for state, accumulators and stashes."""
    accumulators: float = 1.0
    """Bytes of accumulators to bytes of gradients; none without micro-batches."""
    optimizer: float = 1.0
    """Share of what only the update reads that lies on the tiles."""
    weights: float = 1.0
    """Share of weights that does."""
    stashes: float = 1.0
    """Share of what waits for the backward pass that does."""


@dataclass(frozen=True, slots=True)
class Burden:
    """What one stage costs and needs."""

    forward_cycles: float
    backward_cycles: float
    bytes_in: float
    """That come from the stage before, for each micro-batch."""
    state_bytes: float
    """With accumulators."""
    stash_bytes: float
    """Of all micro-batches that wait."""

    @property
    def memory_bytes(self) -> float:
        """All that it keeps from slot to slot."""
        return self.state_bytes + self.stash_bytes


def cuts_of(
    loads: Loads, schedule: Schedule, budget: Budget, *, recomputes: bool = False
) -> tuple[int, ...]:
    """Return where stages begin, by place among the forward ops, the first stage left out.

    There are at least as many forward ops as stages. `recomputes`: stages keep their inputs only,
    and work forward twice.
    """
    if schedule.stages == 1:
        return ()
    places = range(1, len(loads.ahead))
    tables = _Tables(loads, schedule, budget, _least_crossed(loads, places, schedule), recomputes)
    slack = next(slack for slack in _SLACKS if np.isfinite(tables.dearest(slack)))
    least = tables.dearest(slack)
    if loads.inside:
        borders = _least_crossed(loads, [n for n in places if n not in loads.inside], schedule)
        few = _Tables(loads, schedule, budget, borders, recomputes)
        if few.dearest(slack) <= least * _WHOLE:
            tables, least = few, few.dearest(slack)
    return tuple(int(tables.ends[n]) for n in tables.chosen(slack, least * _NEARLY))


def _least_crossed(loads: Loads, places: Sequence[int], schedule: Schedule) -> Places:
    """Return the places at which least crosses, in order, between those of begin and end.

    Half of them are the best in parts of equal work: else, of places that are alike, the first
    would be taken, and the rest of the step could not be cut.
    """
    at = np.asarray(places, np.int64)
    count = max(MOST_PLACES, schedule.stages - 1)
    order = np.lexsort((at, loads.crossing[at]))
    if len(at) > count:
        work = (loads.forward_until + loads.backward_until)[at]
        parts = np.floor(work * (count // 2 / max(float(work[-1]), 1.0)))
        _, best = np.unique(parts[order], return_index=True)
        order = np.concatenate((order[best], np.delete(order, best)))
    found = np.sort(at[order[:count]])
    return np.concatenate(([0], found, [len(loads.ahead)]))


class _Tables:
    """Costs of all stages between two places."""

    def __init__(
        self, loads: Loads, schedule: Schedule, budget: Budget, ends: Places, recomputes: bool
    ) -> None:
        self.ends = ends
        self.schedule, self.budget, self.recomputes = schedule, budget, recomputes
        self.stages = schedule.stages
        into = loads.crossing[ends] * budget.cycles_per_byte
        into[-1] = 0.0
        self.into = into
        self.forward: Floats = _between(loads.forward_until[ends])
        work = self.forward + _between(loads.backward_until[ends])
        self.work: Floats = work + into[:, None] + into[None, :]
        self.state = budget.weights * _between(loads.state_until[ends])
        self.state += budget.accumulators * _between(loads.gradients_until[ends])
        self.state += budget.optimizer * _between(loads.optimizer_until[ends])
        self.stash = budget.stashes * _between(loads.stash_until[ends])
        inputs = np.broadcast_to(loads.crossing[ends][:, None], self.stash.shape)
        self.inputs = budget.stashes * inputs if self.schedule.trains else inputs
        self.work[np.tril_indices(len(ends))] = np.inf  # a stage ends behind its beginning

    def kept(self, stage: int) -> Floats:
        """Return the bytes that a stage keeps, by its first and last place."""
        depth = self.schedule.stash_depth(stage) + 1
        if not self.schedule.trains:
            return self.state + self.inputs
        if self._works_again(stage):
            return self.state + depth * self.inputs + self.stash
        return self.state + depth * self.stash

    def _works_again(self, stage: int) -> bool:
        return self.recomputes and stage < self.stages - 1

    def costs(self, stage: int, slack: float) -> Floats:
        """Return the cost of a stage by its first and last place; infinite where it has no room."""
        costs: Floats = self.work + self.forward if self._works_again(stage) else self.work
        if not np.isfinite(slack):
            return costs
        fits = self.kept(stage) <= slack * self.budget.memory_bytes
        allowed: Floats = np.where(fits, costs, np.inf)
        return allowed

    def _too_much(self, stage: int) -> Floats:
        """Return the squares of what a stage keeps beyond the memory that there is, in its units.

        Squares, so that where not all fits no stage has much more than others.
        """
        if not np.isfinite(self.budget.memory_bytes):
            return np.zeros_like(self.state)
        beyond: Floats = np.maximum(self.kept(stage) / self.budget.memory_bytes - 1.0, 0.0)
        return beyond * beyond

    def dearest(self, slack: float) -> float:
        """Return the cost of the dearest stage of the best cuts."""
        rest = np.full(len(self.into), np.inf)
        rest[-1] = 0.0
        for stage in range(self.stages - 1, -1, -1):
            rest = np.min(np.maximum(self.costs(stage, slack), rest[None, :]), axis=1)
        return float(rest[0])

    def chosen(self, slack: float, most: float) -> list[int]:
        """Return the cuts at which least crosses, of those whose stages cost `most` at most.

        Where not all have room, first those that are least beyond it.
        """
        everything = 1.0 + float(self.into.sum())
        rest = np.full(len(self.into), np.inf)
        rest[-1] = 0.0
        after = []
        for stage in range(self.stages - 1, -1, -1):
            allowed = np.where(self.costs(stage, slack) <= most, 0.0, np.inf)
            whole = allowed + self.into[:, None] + rest[None, :]
            whole += everything * self._too_much(stage)
            after.append(np.argmin(whole, axis=1))
            rest = whole[np.arange(len(rest)), after[-1]]
        found, at = [], 0
        for chosen in reversed(after):
            at = int(chosen[at])
            found.append(at)
        return found[:-1]


def _between(sums: Floats) -> Floats:
    """Return the differences between all pairs, the earlier one as row."""
    return sums[None, :] - sums[:, None]


def burdens(
    loads: Loads,
    schedule: Schedule,
    budget: Budget,
    cuts: tuple[int, ...],
    *,
    recomputes: bool = False,
) -> list[Burden]:
    """Return what each stage of some cuts costs and needs."""
    found = []
    last = schedule.stages - 1
    for stage, (a, b) in enumerate(pairwise((0, *cuts, len(loads.ahead)))):
        forward = float(loads.forward_until[b] - loads.forward_until[a])
        backward = float(loads.backward_until[b] - loads.backward_until[a])
        state = budget.weights * float(loads.state_until[b] - loads.state_until[a])
        gradients = float(loads.gradients_until[b] - loads.gradients_until[a])
        bytes_in = float(loads.crossing[a])
        depth = schedule.stash_depth(stage) + 1
        stash = depth * float(loads.stash_until[b] - loads.stash_until[a])
        if recomputes and stage < last:
            backward += forward
            stash = depth * bytes_in + stash / depth
        stash *= budget.stashes
        if not schedule.trains:
            stash = bytes_in
        optimizer = float(loads.optimizer_until[b] - loads.optimizer_until[a])
        state += budget.accumulators * gradients + budget.optimizer * optimizer
        found.append(Burden(forward, backward, bytes_in, state, stash))
    return found
