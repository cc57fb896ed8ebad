"""Balances forward ops over stages: least cost of the dearest stage within the memory budget.

Where IPUs have several stages each, what counts is the sum on an IPU: cuts are moved, one and two
at a time, until no move makes the dearest IPU cheaper. Of cuts that cost nearly the same those at
which least crosses are taken: the borders of equal blocks.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.partition.stages.cut_tables import NEARLY, Budget, CutTables, Places
from hloipu_compiler.partition.stages.loads import Floats, Loads
from hloipu_compiler.partition.stages.recomputing import FULL, NONE
from hloipu_compiler.plan.schedule import SEQUENTIAL, Schedule

MOST_PLACES = 256
"""Places to cut at that are looked at: those at which least crosses."""
_MOST_SHARED = 128
"""The same where IPUs have several stages, and cuts are moved in pairs."""
_WHOLE = 1.1
"""What stages of whole trips of loops may cost beside others: the code of a trip is there once for
each stage, and least goes from one trip to the next. Assumed."""
_SQUARINGS = 4
"""Of the cycles of IPUs, summed: so high a power is near enough to the dearest, and smooth."""
_BEYOND = 100.0
"""What memory beyond that of an IPU counts, beside the cycles of an even IPU."""
_MOST_LARGE = 4
"""Stages that are tried as the large one of their IPU."""
_SMALL = 16.0
"""Times its cost, so that a stage beside a large one is small."""
_MOST_MOVES = 100
"""Rounds of moves of cuts."""
_NEAR = 0.25
"""Of the forward work of an even stage: so far around a place less may cross nowhere. Assumed."""
_HARDLY = 1e-9
"""Of a score: what is no better for computing with floats."""
_SLACKS = (1.0, 1.5, 2.0, 4.0, 16.0, np.inf)
"""Of the memory that there is: where nothing fits, stages that need least beyond it."""


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
    memory_bytes: float
    """All that it keeps from slot to slot, or what its update counts, if that is more."""


def cuts_of(
    loads: Loads,
    schedule: Schedule,
    budget: Budget,
    *,
    recompute: str = NONE,
    ipus: Sequence[int] = (),
) -> tuple[int, ...]:
    """Return where stages begin, by place among the forward ops, the first stage left out.

    There are at least as many forward ops as stages. `recompute`: with `full` stages keep their
    inputs only, with `blocks` those of blocks; both work forward twice. `ipus`: of each stage;
    empty: each stage has its own.
    """
    if schedule.stages == 1:
        return ()
    places = range(1, len(loads.ahead))

    # On the sequential schedule one stage works at a time, wherever it is.
    shared = len(set(ipus)) < len(ipus) == schedule.stages and schedule.kind != SEQUENTIAL

    def tables_of(some: Sequence[int]) -> CutTables:
        most = _MOST_SHARED if shared else MOST_PLACES
        ends = _least_crossed(loads, some, schedule, most)
        return CutTables(loads, schedule, budget, ends, recompute)

    is_in_turn = schedule.kind == SEQUENTIAL and len(set(ipus)) == 1
    if is_in_turn and schedule.trains and recompute == FULL:
        pinches = _pinches(loads, schedule.stages)
        return tables_of(pinches if len(pinches) >= schedule.stages - 1 else places).in_turn()
    solved = partial(_on_ipus, ipus=ipus) if shared else _on_own_ipus
    least, cuts = solved(tables_of(places))
    borders = [n for n in places if n not in loads.inside] if loads.inside else []
    if len(borders) >= schedule.stages - 1:
        cost, at_borders = solved(tables_of(borders))
        if cost <= least * _WHOLE:
            return at_borders
    return cuts


def _on_own_ipus(tables: CutTables) -> tuple[float, tuple[int, ...]]:
    """Return the cost of the dearest stage, and cuts, where each stage has an IPU."""
    slack = next(slack for slack in _SLACKS if np.isfinite(tables.dearest(slack)))
    least = tables.dearest(slack)
    return least, tables.places(tables.chosen(slack, [least * NEARLY] * tables.stages))


def _on_ipus(tables: CutTables, ipus: Sequence[int]) -> tuple[float, tuple[int, ...]]:
    """Return the cost of the dearest IPU, and cuts, where IPUs have several stages."""
    shared = _Shared(tables, ipus)
    even, *others = shared.starts()
    cuts = min((shared.moved(start) for start in (even, *others)), key=shared.score)
    if shared.score(even) <= shared.score(cuts) * NEARLY:
        cuts = even
    least, limits, rooms = shared.limits(cuts)
    nearly = tables.chosen(np.inf, limits, rooms)
    # Stages have their limits each: what they share of a weight may need more elsewhere.
    if tables.tied and shared.score(nearly) > shared.score(cuts) * NEARLY:
        nearly = cuts
    return least, tables.places(nearly)


def _least_crossed(
    loads: Loads, places: Sequence[int], schedule: Schedule, most: int = MOST_PLACES
) -> Places:
    """Return the places at which least crosses, in order, between those of begin and end.

    Half of them are the best in parts of equal work: else, of places that are alike, the first
    would be taken, and the rest of the step could not be cut.
    """
    at = np.asarray(places, np.int64)
    count = max(most, schedule.stages - 1)
    order = np.lexsort((at, loads.crossing[at]))
    if len(at) > count:
        work = (loads.forward_until + loads.backward_until)[at]
        parts = np.floor(work * (count // 2 / max(float(work[-1]), 1.0)))
        _, best = np.unique(parts[order], return_index=True)
        order = np.concatenate((order[best], np.delete(order, best)))
    chosen_places = np.sort(at[order[:count]])
    return np.concatenate(([0], chosen_places, [len(loads.ahead)]))


def _pinches(loads: Loads, stages: int) -> list[int]:
    """Return the places at which no more crosses than near them: the ends of blocks."""
    places = np.arange(1, len(loads.ahead))
    crossing, work = loads.crossing[places], loads.forward_until[places]
    near = float(work[-1]) * _NEAR / stages if len(work) else 0.0
    first = np.searchsorted(work, work - near)
    last = np.searchsorted(work, work + near, "right")
    return [
        n
        for n, a, b in zip(places.tolist(), first.tolist(), last.tolist(), strict=True)
        if crossing[n - 1] <= crossing[a:b].min()
    ]


class _Shared:
    """Cuts, as numbers of `ends`, whose stages share IPUs."""

    def __init__(self, tables: CutTables, ipus: Sequence[int]) -> None:
        self.tables = tables
        number = {ipu: n for n, ipu in enumerate(dict.fromkeys(ipus))}
        self.ipus = [number[ipu] for ipu in ipus]
        """Of each stage; the IPUs that have stages, numbered without gaps."""
        self.last = len(tables.ends) - 1
        stages = range(tables.stages)
        self.costs = [tables.costs(stage, np.inf) for stage in stages]
        self.kept = [tables.kept(stage) / tables.budget.memory_bytes for stage in stages]
        self.scale = float(tables.work[0, self.last]) / len(number) or 1.0
        self.beside = Counter(self.ipus)
        """Stages of each IPU."""
        self.tied = [(a, b, size / tables.budget.memory_bytes) for a, b, size in tables.tied]
        self.tried: dict[tuple[tuple[int, ...], int, int], tuple[tuple[int, ...], float]] = {}
        """Moves from some cuts, and what they led to: the ways from several starts meet."""

    def starts(self) -> Iterator[list[int]]:
        """Yield cuts to begin with: stages as small as they share an IPU, or one large among them.

        Even stages are the first.
        """
        yield self.tables.balanced([1.0] * len(self.ipus))
        shared = [float(self.beside[ipu]) for ipu in self.ipus]
        yield self.tables.balanced(shared)
        several = [stage for stage, ipu in enumerate(self.ipus) if self.beside[ipu] > 1]
        for stage in several[:_MOST_LARGE]:
            times = [
                _SMALL if ipu == self.ipus[stage] else each
                for ipu, each in zip(self.ipus, shared, strict=True)
            ]
            times[stage] = 1.0
            yield self.tables.balanced(times)

    def score(self, cuts: Sequence[int]) -> float:
        """Return how good cuts are: memory beyond that of IPUs first, then the dearest IPU."""
        counts = self._counts(*self._sums([0, *cuts, self.last]))
        return float(self._joined(*(each.sum() for each in counts)))

    def _sums(self, ends: Sequence[int], without: Sequence[int] = ()) -> tuple[Floats, Floats]:
        """Return cycles and memory of each IPU, stages of `without` left out."""
        sums: list[Floats] = []
        for tables in (self.costs, self.kept):
            each = [table.item(a, b) for table, (a, b) in zip(tables, pairwise(ends), strict=True)]
            for stage in without:
                each[stage] = 0.0
            sums.append(np.bincount(self.ipus, each, len(self.beside)).astype(np.float64))
        begins = self.tables.ends[ends[1:-1]]
        for *places, size in self.tied:
            first, last = np.searchsorted(begins, places, "right").tolist()
            if self._has_one(first, last) and not {first, last} & set(without):
                sums[1][self.ipus[last]] -= size
        return sums[0], sums[1]

    def _has_one(self, first: Places, last: Places) -> NDArray[np.bool_]:
        """Return whether two stages that read one weight, of which each counts it, share an IPU."""
        ipus = np.array(self.ipus)
        has_one: NDArray[np.bool_] = (first != last) & (ipus[first] == ipus[last])
        return has_one

    def _counts(self, cost: Floats, kept: Floats) -> tuple[Floats, Floats]:
        """Return what counts of cycles and memory of IPUs, each to be summed over these.

        Powers, so that a move that helps another IPU than the dearest counts a little, too.
        """
        powers = cost / self.scale
        for _ in range(_SQUARINGS):
            powers = powers * powers
        beyond: Floats = np.maximum(kept - 1.0, 0.0) ** 2
        return powers, beyond

    def _joined(self, powers: Floats, beyond: Floats) -> Floats:
        for _ in range(_SQUARINGS):
            powers = np.sqrt(powers)
        score: Floats = powers + _BEYOND * beyond
        return score

    def moved(self, cuts: Sequence[int]) -> list[int]:
        """Return cuts none of which, nor two that follow each other, is better elsewhere."""
        ends = [0, *cuts, self.last]
        best = self.score(cuts)
        firsts = range(1, len(ends) - 1)
        moves = [(n, count) for n in firsts for count in (1, 2) if n + count < len(ends)]
        useless = 0
        for first, count in moves * _MOST_MOVES:
            before, move = best, (tuple(ends), first, count)
            if move not in self.tried:
                best = self._move(ends, first, count, best)
                self.tried[move] = tuple(ends), best
            ends[:], best = self.tried[move]
            useless = useless + 1 if best >= before else 0
            if useless == len(moves):
                break
        return ends[1:-1]

    def _move(self, ends: list[int], first: int, count: int, best: float) -> float:
        """Put one cut or two where they are best between those around; return the score."""
        low, high = ends[first - 1], ends[first + count]
        if high - low == count + 1:
            return best  # there is no other place
        stages = range(first - 1, first + count)
        between = slice(low + 1, high)
        mine = sorted({self.ipus[stage] for stage in stages})
        sums = self._sums(ends, stages)
        # Cycles and memory of each IPU, by the cuts that they depend on.
        of_ipu = {ipu: [each[ipu] for each in sums] for ipu in mine}
        for stage in stages:
            for number, table in enumerate((self.costs, self.kept)):
                part = table[stage][between, between]
                if stage == stages[0]:
                    part = table[stage][low, between].reshape(-1, *(1,) * (count - 1))
                elif stage == stages[-1]:
                    part = table[stage][between, high]
                of_ipu[self.ipus[stage]][number] = of_ipu[self.ipus[stage]][number] + part
        self._count_once(ends, first, between, of_ipu)
        others = self._counts(*sums)
        for each in others:
            each[mine] = 0.0
        counts = zip(*(self._counts(*each) for each in of_ipu.values()), strict=True)
        powers, beyond = (sum(x) + rest.sum() for x, rest in zip(counts, others, strict=True))
        scores = self._joined(powers, beyond)
        at = np.unravel_index(int(np.argmin(scores)), scores.shape)
        if not scores[at] < best * (1 - _HARDLY):
            return best
        ends[first : first + count] = [low + 1 + int(n) for n in at]
        return float(scores[at])

    def _count_once(
        self, ends: Sequence[int], first: int, between: slice, of_ipu: dict[int, list[Floats]]
    ) -> None:
        """Take off what two stages of an IPU count of one weight, by the cuts that are moved."""
        shape = np.shape(next(iter(of_ipu.values()))[1])
        begins = self.tables.ends[ends[1:-1]]
        stages = range(first - 1, first + len(shape))
        for *places, size in self.tied:
            at = [int(np.searchsorted(begins, place, "right")) for place in places]
            if not set(at) & set(stages):
                continue
            where = [np.full(shape, stage) for stage in at]
            for number, place in enumerate(places):
                if at[number] in stages:
                    later = (self.tables.ends[between] <= place).astype(np.int64)
                    more = later if len(shape) == 1 else later[:, None] + later[None, :]
                    where[number] = stages[0] + more
            is_one, ipu = self._has_one(*where), np.array(self.ipus)[where[1]]
            for each, sums in of_ipu.items():
                sums[1] = sums[1] - size * (is_one & (ipu == each))

    def limits(self, cuts: Sequence[int]) -> tuple[float, list[float], list[float]]:
        """Return the cost of the dearest IPU, and what each stage may cost and keep."""
        ends = [0, *cuts, self.last]
        cost, kept = self._sums(ends)
        dearest = float(cost.max())
        most, rooms = [], []
        for stage, (a, b) in enumerate(pairwise(ends)):
            ipu = self.ipus[stage]
            spare = (dearest * NEARLY - float(cost[ipu])) / self.beside[ipu]
            most.append(float(self.costs[stage][a, b]) + spare)
            free = max(0.0, 1.0 - float(kept[ipu])) / self.beside[ipu]
            room = float(self.kept[stage][a, b]) + free
            rooms.append(room * self.tables.budget.memory_bytes)
        return dearest, most, rooms


def burdens(
    loads: Loads,
    schedule: Schedule,
    budget: Budget,
    cuts: tuple[int, ...],
    *,
    recompute: str = NONE,
) -> list[Burden]:
    """Return what each stage of some cuts costs and needs."""
    tables = CutTables(loads, schedule, budget, np.array([0, *cuts, len(loads.ahead)]), recompute)
    backward_cycles = np.diff(loads.backward_until[tables.ends]).tolist()
    burdens_by_stage = []
    for stage, backward in enumerate(backward_cycles):
        places = stage, stage + 1
        forward = float(tables.forward[places])
        again = forward if tables.works_again(stage) else 0.0
        state, waiting = float(tables.state[places]), float(tables.waiting(stage)[places])
        bytes_in, kept = float(tables.crossing[stage]), float(tables.kept(stage)[places])
        burdens_by_stage.append(Burden(forward, backward + again, bytes_in, state, waiting, kept))
    return burdens_by_stage
