"""What the stages of a step cost and keep, for all pairs of places to cut at, and best cuts.

A stage costs its forward and backward cycles and what crosses its borders; it needs room for its
state, accumulators and as many stashes as its schedule keeps, and for the update of its largest
weight. Cuts are found from the last stage backwards (dynamic programming), since what a stage keeps
depends on how many come after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.partition.stages.loads import Floats, Loads
from hloipu_compiler.partition.stages.recomputing import BLOCKS, CHEAP, FULL
from hloipu_compiler.plan.schedule import Schedule

Places = NDArray[np.int64]

NEARLY = 1.02
"""What borders with less to send may cost beside the best. Assumed."""
_HANDED = 2
"""Micro-batches beside those that wait in places: one where it was made, one where it is read."""
_IN_TURN = 0.5
"""Of a stage's memory, for what stages in turn keep: what is made again has gradients beside it.
Assumed."""
_HALVINGS = 20
"""Of what stages in turn may keep, to find the least."""


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
    updating: float = 0.0
    """What a byte counts while there is nothing but the update, to one that is kept meanwhile."""


class CutTables:
    """Costs of all stages between two places."""

    def __init__(
        self, loads: Loads, schedule: Schedule, budget: Budget, ends: Places, recompute: str
    ) -> None:
        self.ends = ends
        self.schedule, self.budget, self.recompute = schedule, budget, recompute
        self.stages = schedule.stages
        self.crossing: Floats = loads.crossing[ends]
        into = self.crossing * budget.cycles_per_byte
        into[-1] = 0.0
        self.into = into
        self.forward: Floats = between(loads.forward_until[ends])
        work = self.forward + between(loads.backward_until[ends])
        self.work: Floats = work + into[:, None] + into[None, :]
        self.state = budget.weights * between(loads.state_until[ends])
        self.state += budget.accumulators * between(loads.gradients_until[ends])
        self.state += budget.optimizer * between(loads.optimizer_until[ends])
        self.tied = [
            (first, last, (budget.weights + budget.accumulators) * size)
            for first, last, size in loads.tied
        ]
        for first, last, size in self.tied:  # an IPU that reads a weight of another has it, too
            begins = (ends > first) & (ends <= last)
            self.state += size * np.outer(begins, ends > last)
        self.updating = budget.updating * (self.state + _most_between(loads, ends, budget))
        stash_until = loads.stash_until
        if recompute == CHEAP and loads.cheap_stash_until is not None:
            stash_until = loads.cheap_stash_until
        self.stash = budget.stashes * between(stash_until[ends])
        inputs = np.broadcast_to(self.crossing[:, None], self.stash.shape)
        self.inputs = budget.stashes * inputs if self.schedule.trains else inputs
        self.work[np.tril_indices(len(ends))] = np.inf  # a stage ends behind its beginning

    def kept(self, stage: int) -> Floats:
        """Return the bytes that a stage keeps or updates, by its first and last place."""
        beside = _HANDED if self.schedule.stash_depth(stage) else 0
        kept_bytes: Floats = np.maximum(self.state + self.waiting(stage, beside), self.updating)
        return kept_bytes

    def waiting(self, stage: int, beside: int = 0) -> Floats:
        """Return the bytes of micro-batches that wait, by a stage's first and last place.

        `beside`: micro-batches that are there beside those.
        """
        depth = self.schedule.stash_depth(stage) + 1 + beside
        if not self.schedule.trains:
            return self.inputs
        if self.recompute == BLOCKS:
            crossing = self.budget.stashes * np.maximum.outer(self.crossing, self.crossing)
            return in_blocks(self.stash, crossing, depth)
        if self.works_again(stage):
            return depth * self.inputs + self.stash
        return depth * self.stash

    def works_again(self, stage: int) -> bool:
        """Whether a stage works forward twice; the last need not, but for its first blocks."""
        is_last = stage == self.stages - 1
        return self.recompute == BLOCKS or (self.recompute == FULL and not is_last)

    def costs(self, stage: int, slack: float) -> Floats:
        """Return the cost of a stage by its first and last place; infinite where it has no room."""
        costs: Floats = self.work + self.forward if self.works_again(stage) else self.work
        if not np.isfinite(slack):
            return costs
        fits = self.kept(stage) <= slack * self.budget.memory_bytes
        allowed: Floats = np.where(fits, costs, np.inf)
        return allowed

    def _too_much(self, stage: int, room: float) -> Floats:
        """Return the squares of what a stage keeps beyond its room, in units of an IPU's.

        Squares, so that where not all fits no stage has much more than others.
        """
        if not np.isfinite(self.budget.memory_bytes):
            return np.zeros_like(self.state)
        beyond: Floats = np.maximum((self.kept(stage) - room) / self.budget.memory_bytes, 0.0)
        return beyond * beyond

    def balanced(self, times: Sequence[float]) -> list[int]:
        """Return the cuts whose dearest stage costs least, each stage so many times its cost."""

        def dearest(stage: int, rest: Floats) -> Floats:
            return np.maximum(times[stage] * self.costs(stage, np.inf), rest)

        return least_cuts(self.stages, len(self.into), dearest)

    def dearest(self, slack: float) -> float:
        """Return the cost of the dearest stage of the best cuts."""
        return least_dearest([self.costs(stage, slack) for stage in range(self.stages)])

    def places(self, cuts: Sequence[int]) -> tuple[int, ...]:
        """Return cuts by place among the forward ops."""
        return tuple(int(self.ends[n]) for n in cuts)

    def chosen(self, slack: float, most: Sequence[float], rooms: Sequence[float] = ()) -> list[int]:
        """Return the cuts at which least crosses, of those whose stages cost `most` at most.

        Where not all have room, first those that are least beyond it. `rooms`: of each stage, the
        bytes that it may keep; empty: those of an IPU.
        """
        everything = 1.0 + float(self.into.sum())

        def crossing(stage: int, rest: Floats) -> Floats:
            allowed = np.where(self.costs(stage, slack) <= most[stage], 0.0, np.inf)
            room = rooms[stage] if rooms else self.budget.memory_bytes
            whole: Floats = allowed + self.into[:, None] + rest
            return whole + everything * self._too_much(stage, room)

        return least_cuts(self.stages, len(self.into), crossing)

    def in_turn(self) -> tuple[int, ...]:
        """Return cuts whose stages one IPU does in turn, each again from its inputs but the last.

        What waits for all stages is there while one is done again. Of cuts that have room, or take
        about as little as any can, those whose last stage is largest.
        """
        state = float(self.state[0, -1])
        low, high = 0.0, float(self.inputs[:-1].max()) * self.stages + float(self.stash[0, -1])
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._within(middle) else (middle, high)
        room = _IN_TURN * self.budget.memory_bytes - state
        return self.places(self._within(max(high * NEARLY, room)))

    def _within(self, most: float) -> list[int]:
        """Return cuts by which no stage done in turn sees more bytes wait; none: there are none.

        The last one is as early as it can be, and those before it leave least waiting.
        """
        waiting = np.where(np.arange(len(self.ends)) > 0, np.inf, 0.0)
        before = []
        for stage in range(self.stages):
            depth = self.schedule.stash_depth(stage) + 1
            whole = waiting[:, None] + depth * self.inputs
            whole = np.where(whole + self.stash <= most, whole, np.inf)
            whole[np.tril_indices(len(self.ends))] = np.inf
            before.append(np.argmin(whole, axis=0))
            waiting = whole.min(axis=0)
        starts = np.flatnonzero(np.isfinite(whole[:, -1]))
        if not len(starts):
            return []
        cuts = [int(starts[0])]
        for chosen in reversed(before[1:-1]):
            cuts.append(int(chosen[cuts[-1]]))
        return cuts[::-1]


def in_blocks(stash: Floats, crossing: Floats, depth: int) -> Floats:
    """Return the bytes that a stage keeps whose blocks are made again, one at a time.

    `stash`: what its backward part reads of a micro-batch; `crossing`: what goes from block to
    block, and is kept of `depth` micro-batches. There are as many blocks as make what is kept of
    one micro-batch and one block least: as many as there are of `crossing` in a block (Chen et al.,
    2016).
    """
    kept_bytes: Floats = np.minimum(
        (depth + 1) * np.sqrt(stash * np.minimum(crossing, stash)), depth * stash
    )
    return kept_bytes


def least_dearest(costs: Sequence[Floats]) -> float:
    """Return the cost of the dearest stage of the best cuts, from costs by first and last place."""
    rest = np.full(len(costs[0]), np.inf)
    rest[-1] = 0.0
    for cost in reversed(costs):
        rest = np.min(np.maximum(cost, rest[None, :]), axis=1)
    return float(rest[0])


def least_cuts(stages: int, places: int, total: Callable[[int, Floats], Floats]) -> list[int]:
    """Return the cuts of least total: of a stage by first and last place, and of all after it."""
    rest = np.full(places, np.inf)
    rest[-1] = 0.0
    after = []
    for stage in range(stages - 1, -1, -1):
        whole = total(stage, rest[None, :])
        after.append(np.argmin(whole, axis=1))
        rest = whole[np.arange(places), after[-1]]
    cuts, at = [], 0
    for chosen in reversed(after):
        at = int(chosen[at])
        cuts.append(at)
    return cuts[:-1]


def between(sums: Floats) -> Floats:
    """Return the differences between all pairs, the earlier one as row."""
    return sums[None, :] - sums[:, None]


def _most_between(loads: Loads, ends: Places, budget: Budget) -> Floats:
    """Return the most bytes that the update of a weight makes, by a stage's first and last place.

    What only the update reads comes to the tiles for it, unless it is there throughout.
    """
    most = np.zeros((len(ends), len(ends)))
    if loads.updates.size:
        between = np.maximum.reduceat(loads.updates[0 if budget.optimizer else 1], ends[:-1])
        for first in range(len(between)):
            most[first, first + 1 :] = np.maximum.accumulate(between[first:])
    return most
