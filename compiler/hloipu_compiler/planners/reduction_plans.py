"""Planner of reductions: tiles, stages, and pieces of each stage.

A stage reduces wholly what is left, or pieces of some dimensions, whose partial results the next
stage reduces. Stages are tried where the array lies, and on grids that split what is kept, or
pieces too; what follows is planned alike, from where the partial results lie. Prices are the
machine's: work, exchange from where operands lie, and syncs.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import isqrt, prod
from typing import NamedTuple

from hloipu_compiler.planners.placing import GRAIN_BYTES, Placement, followed, gathered, grid, split
from hloipu_compiler.planners.planned import Cycles
from hloipu_compiler.planners.stages import (
    PlacedOperand,
    Stage,
    Work,
    least_price,
    staged,
    total_cycles,
)
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.costs.exchange_price import NO_CODE_PRICE, CodePrice, arriving, exchange_price
from hloipu_runtime.costs.traffic import WORD_BYTES
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping, Sizes

_MOST_STAGES = 3
"""Partial results of partial results: with more stages syncs cost more than fewer pieces save."""
_GRAINS = (1, 4, 16)
"""Elements that a tile of a partial stage gets at least of what is kept: messages are fewer and
longer, tiles fewer."""


class ReductionPlan(NamedTuple):
    """Stages, the last of which has no `parts`, and their price."""

    stages: tuple[Stage, ...]
    price: int
    """Cycles, and what the exchanges' code is worth."""
    held_bytes: int
    """On a tile, by the stage that holds most."""

    @property
    def cycles(self) -> Cycles:
        """Predicted cycles of all stages."""
        return total_cycles(self.stages)


class ReductionWork(NamedTuple):
    """What is to be reduced, or left of that: arrays of one shape that lie alike."""

    machine: Machine
    codelet: Reduce
    element_types: tuple[str, ...]
    partial_types: tuple[str, ...]
    shape: Sizes
    mapping: Mapping
    code_price: CodePrice = NO_CODE_PRICE
    """What a byte of exchange code is worth."""

    @property
    def arrays(self) -> tuple[PlacedOperand, ...]:
        """The arrays, and where they lie."""
        return tuple(PlacedOperand(Tensor(x, self.shape), self.mapping) for x in self.element_types)

    @property
    def whole(self) -> Work:
        """Reducing all at once; init scalars are constants more often than not."""
        types = self.codelet.element_types
        kept = tuple(n for d, n in enumerate(self.shape) if d not in self.codelet.dimensions)
        inits = tuple(PlacedOperand(Tensor(kind, ()), None) for kind in types)
        results = tuple(Tensor(kind, kept) for kind in types)
        operands = (*self.arrays, *inits)
        return Work(self.machine, self.codelet, operands, results, self.code_price)


class _Candidate(NamedTuple):
    """A stage before its exchange is priced."""

    least: int
    """What it costs at least."""
    work: Work
    placement: Placement

    @classmethod
    def of(cls, work: Work, placement: Placement) -> "_Candidate":
        return cls(least_price(work, placement), work, placement)

    @property
    def is_partial(self) -> bool:
        return isinstance(self.work.codelet, Reduce) and bool(self.work.codelet.parts)


class _Ahead(NamedTuple):
    """A candidate that is not yet taken up; the cheapest first, so far as is known."""

    least: int
    """What a plan that begins so costs at least."""
    number: int
    """Of the candidate; no two have the same, so that nothing behind it is compared."""
    after: ReductionWork | None = None
    """What it leaves, if that is known."""
    least_after: int = 0
    """What that costs at least."""
    stage: Stage | None = None
    """Priced."""


@lru_cache(1 << 12)
def reduction_plan(left: ReductionWork, budget_bytes: int) -> ReductionPlan:
    """Return the cheapest plan that holds at most `budget_bytes` on a tile, or the smallest."""
    plan = _best(left, budget_bytes, _MOST_STAGES, None)
    if plan is not None:
        return plan
    every = reduction_alternatives(left, budget_bytes)
    return min(every, key=lambda x: (x.held_bytes, x.price))


def reduction_alternatives(left: ReductionWork, budget_bytes: int) -> list[ReductionPlan]:
    """Return the cheapest plan for each way to begin."""
    plans = []
    for candidate in (*_whole_ones(left), *_partial_ones(left)):
        first = staged(candidate.work, candidate.placement)
        rest: ReductionPlan | None = _NOTHING_LEFT
        if candidate.is_partial:
            after = _after(left, candidate)
            rest = _best(after, budget_bytes, _MOST_STAGES - 1, None)
            if rest is None:
                rest = _best(after, 1 << 62, _MOST_STAGES - 1, None)
        if rest is not None:
            plans.append(_joined(first, rest))
    return plans


def _best(
    left: ReductionWork, budget_bytes: int, stages: int, most: int | None
) -> ReductionPlan | None:
    """Return the cheapest plan of so many stages that costs less than `most`; None: none does.

    Of equal prices one with more stages, then the one with the cheapest first stage. Candidates
    are taken up by what they cost at least, at first alone, then with the least that can follow,
    then with the stage's price: most are dropped before that.
    """
    stage = _where_it_lies(left)
    if stage is not None and stage.held_bytes <= budget_bytes:
        return _joined(stage, _NOTHING_LEFT) if most is None or stage.price < most else None
    best = None
    rank = (1 << 62 if most is None else most, -1, 0, 0)
    candidates = _candidates(left, stages)
    ahead = [_Ahead(candidate.least, n) for n, candidate in enumerate(candidates)]
    heapify(ahead)
    while ahead and ahead[0].least <= rank[0]:
        least, n, after, least_after, stage = heappop(ahead)
        if stage is None and after is None and candidates[n].is_partial:
            after = _after(left, candidates[n])
            following = _candidates(after, stages - 1)
            least_after = min(candidate.least for candidate in following)
            heappush(ahead, _Ahead(least + least_after, n, after, least_after))
            continue
        if stage is None:
            stage = staged(candidates[n].work, candidates[n].placement)
            if stage.held_bytes <= budget_bytes:
                at_least = stage.price + least_after
                heappush(ahead, _Ahead(at_least, n, after, least_after, stage))
            continue
        rest: ReductionPlan | None = _NOTHING_LEFT
        if after is not None:
            may_equal = (0, stage.price, n) < rank[1:]
            rest_most = rank[0] - stage.price + may_equal
            rest = _best(after, budget_bytes, stages - 1, rest_most)
        if rest is not None:
            plan = _joined(stage, rest)
            plan_rank = (plan.price, int(after is None), stage.price, n)
            if plan_rank < rank:
                best, rank = plan, plan_rank
    return best


def _candidates(left: ReductionWork, stages: int) -> tuple[_Candidate, ...]:
    """Return the first stages of plans of so many stages."""
    return _whole_ones(left) if stages < 2 else (*_whole_ones(left), *_partial_ones(left))


@lru_cache(1 << 12)
def _where_it_lies(left: ReductionWork) -> Stage | None:
    """Return the stage that reduces all where the array lies, if no other can be cheaper.

    All others begin or go on with an exchange, and share the work among all tiles at best.
    """
    machine, work = left.machine, left.whole
    lying = followed(work.indexing, work.indexing.operands[0], left.mapping)
    if lying is None:
        return None
    stage = staged(work, lying)
    if stage.cycles.exchange or stage.cycles.sync:
        return None
    moving = exchange_price(machine, [arriving(machine, WORD_BYTES)]).cycles
    spread = stage.cycles.compute * lying.tiles.count // machine.chip.tiles_per_ipu
    return stage if stage.cycles.compute <= moving + spread else None


_NOTHING_LEFT = ReductionPlan((), 0, 0)


def _after(left: ReductionWork, first: _Candidate) -> ReductionWork:
    """Return what a stage of pieces leaves."""
    work, placement, done = first.work, first.placement, first.work.codelet
    assert isinstance(done, Reduce)
    kept = [d for d in range(len(left.shape)) if d not in done.dimensions]
    pieces = len(done.parts)
    more = (pieces + n for n, d in enumerate(kept) if d in left.codelet.dimensions)
    shape = work.results[0].shape
    return left._replace(
        codelet=replace(left.codelet, dimensions=(*range(pieces), *more)),
        element_types=left.partial_types,
        shape=shape,
        mapping=Mapping(placement.tiles, placement.spans(work.indexing.results[0], shape)),
    )


def _joined(first: Stage, rest: ReductionPlan) -> ReductionPlan:
    return ReductionPlan(
        (first, *rest.stages), first.price + rest.price, max(first.held_bytes, rest.held_bytes)
    )


@lru_cache(1 << 12)
def _whole_ones(left: ReductionWork) -> tuple[_Candidate, ...]:
    """Return stages that reduce all that is left."""
    work = left.whole
    return tuple(_Candidate.of(work, x) for x in dict.fromkeys(_whole_grids(left, work)))


@lru_cache(1 << 12)
def _partial_ones(left: ReductionWork) -> tuple[_Candidate, ...]:
    """Return stages that reduce pieces; a later stage reduces the partial results."""
    codelet, types = left.codelet, left.partial_types
    candidates: list[_Candidate] = []
    if not codelet.dimensions:
        return ()
    for dimensions, parts in _cuts(left):
        cut = replace(codelet, dimensions=dimensions, parts=parts, element_types=types)
        shape = (
            *(over(left.shape[d], part) for d, part in zip(dimensions, parts, strict=False)),
            *(n for d, n in enumerate(left.shape) if d not in dimensions),
        )
        partials = tuple(Tensor(kind, shape) for kind in types)
        work = Work(left.machine, cut, left.arrays, partials, left.code_price)
        grids = dict.fromkeys(_cut_grids(left, work, len(parts)))
        candidates += [_Candidate.of(work, placement) for placement in grids]
    return tuple(candidates)


def _whole_grids(left: ReductionWork, work: Work) -> Iterator[Placement]:
    """Yield grids that split what is kept alone."""
    lying = followed(work.indexing, work.indexing.operands[0], left.mapping)
    if lying is not None:
        yield lying
    kind, sizes = work.results[0]
    if left.codelet.dimensions == (0,):
        shared = gathered(left.mapping, sizes)
        if shared is not None:
            yield shared
    tiles = left.machine.chip.tiles_per_ipu
    bits = ELEMENT_TYPES[kind].bits
    grains = [1] * len(sizes)
    if sizes:
        grains[-1] = max(1, GRAIN_BYTES * 8 // bits)
    ones = (1,) * len(sizes)
    counts = {1, min(tiles, left.mapping.tiles.count), tiles, over(tiles, 4), over(tiles, 16)}
    for count in sorted(counts):
        if count <= 1 or count <= prod(sizes):
            yield split(sizes, ones, tuple(grains), count)
            yield split(sizes, ones, ones, count)


def _cuts(left: ReductionWork) -> Iterator[tuple[tuple[int, ...], Sizes]]:
    """Yield the dimensions of a partial stage, those that are cut first, and their pieces' sizes.

    What each tile has of all that is reduced becomes one piece, or what it has along one of the
    dimensions that are split; else the longest ones are cut until there are so many pieces.
    """
    tiles, spans = left.machine.chip.tiles_per_ipu, left.mapping.spans
    dimensions = left.codelet.dimensions
    seen: set[tuple[Sizes, Sizes]] = set()
    if left.mapping.is_partition and not left.mapping.replicated_axes:
        split_ones = tuple(d for d in dimensions if spans[d].axis >= 0)
        others = tuple(d for d in dimensions if spans[d].axis < 0)
        for ones in dict.fromkeys((split_ones, *((d,) for d in split_ones))):
            parts = tuple(min(spans[d].size, left.shape[d]) for d in ones)
            # Ones alone shrink nothing.
            if parts and prod(parts) * prod(left.shape[d] for d in others) > 1:
                seen.add(((*ones, *others), parts))
                yield (*ones, *others), parts
    ordered = sorted(dimensions, key=lambda d: -left.shape[d])
    size = prod(left.shape[d] for d in dimensions)
    kept = prod(n for d, n in enumerate(left.shape) if d not in dimensions)
    pieces = {tiles, tiles // max(1, kept), isqrt(size), 2 * isqrt(size)}
    pieces |= {4**n for n in range(1, tiles.bit_length() // 2 + 1)}
    for count in sorted(n for n in pieces if 2 <= n <= min(tiles, size - 1)):
        parts = ()
        for d in ordered:
            if count > 1:
                parts = (*parts, over(left.shape[d], min(count, left.shape[d])))
                count //= over(left.shape[d], parts[-1])
        if (tuple(ordered), parts) not in seen:
            seen.add((tuple(ordered), parts))
            yield tuple(ordered), parts


def _cut_grids(left: ReductionWork, work: Work, pieces: int) -> Iterator[Placement]:
    """Yield grids for a partial stage: where the array lies, else pieces by what is kept.

    The result's first dimensions, `pieces` of them, count pieces.
    """
    lying = followed(work.indexing, work.indexing.operands[0], left.mapping)
    if lying is not None:
        yield lying
        return
    sizes = work.results[0].shape
    last = len(sizes) - 1
    for grain in _GRAINS if last >= pieces else (1,):
        rest = left.machine.chip.tiles_per_ipu
        counts = []
        for label, size in enumerate(sizes):
            least = grain if label == last else 1
            counts.append((label, min(rest, max(1, over(size, least))), least))
            rest //= counts[-1][1]
        yield grid(counts, sizes)
