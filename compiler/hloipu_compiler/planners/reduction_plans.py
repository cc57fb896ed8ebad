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
    indexing_of,
    least_price,
    staged,
    total_cycles,
)
from hloipu_runtime.codelets.core.codelet import Tensor
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


class _Left(NamedTuple):
    """What is left to be reduced: arrays of one shape that lie alike."""

    codelet: Reduce
    element_types: tuple[str, ...]
    shape: Sizes
    mapping: Mapping
    code_price: CodePrice


_AskedOfStage = tuple[Reduce, tuple[PlacedOperand, ...], tuple[Tensor, ...], Placement, CodePrice]


class _Candidate(NamedTuple):
    """A stage before its exchange is priced."""

    least: int
    """What it costs at least."""
    asked: _AskedOfStage
    """What prices it."""

    @classmethod
    def of(cls, machine: Machine, *asked: *_AskedOfStage) -> "_Candidate":
        """Return a candidate with what it costs at least."""
        return cls(least_price(machine, *asked), asked)


class _Ahead(NamedTuple):
    """A candidate that is not yet taken up; the cheapest first, so far as is known."""

    least: int
    """What a plan that begins so costs at least."""
    number: int
    """Of the candidate; no two have the same, so that nothing behind it is compared."""
    after: _Left | None = None
    """What it leaves, if that is known."""
    least_after: int = 0
    """What that costs at least."""
    stage: Stage | None = None
    """Priced."""


@lru_cache(1 << 12)
def reduction_plan(
    machine: Machine,
    codelet: Reduce,
    element_types: tuple[str, ...],
    partial_types: tuple[str, ...],
    shape: Sizes,
    mapping: Mapping,
    budget_bytes: int,
    code_price: CodePrice = NO_CODE_PRICE,
) -> ReductionPlan:
    """Return the cheapest plan that holds at most `budget_bytes` on a tile, or the smallest.

    `code_price`: what a byte of exchange code is worth.
    """
    left = _Left(codelet, element_types, shape, mapping, code_price)
    plan = _best(machine, left, partial_types, budget_bytes, _MOST_STAGES, None)
    if plan is not None:
        return plan
    every = reduction_alternatives(
        machine, codelet, element_types, partial_types, shape, mapping, budget_bytes, code_price
    )
    return min(every, key=lambda x: (x.held_bytes, x.price))


def reduction_alternatives(
    machine: Machine,
    codelet: Reduce,
    element_types: tuple[str, ...],
    partial_types: tuple[str, ...],
    shape: Sizes,
    mapping: Mapping,
    budget_bytes: int,
    code_price: CodePrice = NO_CODE_PRICE,
) -> list[ReductionPlan]:
    """Return the cheapest plan for each way to begin."""
    left = _Left(codelet, element_types, shape, mapping, code_price)
    plans = []
    for candidate in (*_whole_ones(machine, left), *_partial_ones(machine, left, partial_types)):
        first = staged(machine, *candidate.asked)
        rest: ReductionPlan | None = _NOTHING_LEFT
        if candidate.asked[0].parts:
            after = _after(left, candidate, partial_types)
            rest = _best(machine, after, partial_types, budget_bytes, _MOST_STAGES - 1, None)
            if rest is None:
                rest = _best(machine, after, partial_types, 1 << 62, _MOST_STAGES - 1, None)
        if rest is not None:
            plans.append(_joined(first, rest))
    return plans


def _best(
    machine: Machine,
    left: _Left,
    partial_types: tuple[str, ...],
    budget_bytes: int,
    stages: int,
    most: int | None,
) -> ReductionPlan | None:
    """Return the cheapest plan of so many stages that costs less than `most`; None: none does.

    Of equal prices one with more stages, then the one with the cheapest first stage. Candidates
    are taken up by what they cost at least, at first alone, then with the least that can follow,
    then with the stage's price: most are dropped before that.
    """
    stage = _where_it_lies(machine, left)
    if stage is not None and stage.held_bytes <= budget_bytes:
        return _joined(stage, _NOTHING_LEFT) if most is None or stage.price < most else None
    best = None
    rank = (1 << 62 if most is None else most, -1, 0, 0)
    candidates = _candidates(machine, left, partial_types, stages)
    ahead = [_Ahead(candidate.least, n) for n, candidate in enumerate(candidates)]
    heapify(ahead)
    while ahead and ahead[0].least <= rank[0]:
        least, n, after, least_after, stage = heappop(ahead)
        if stage is None and after is None and candidates[n].asked[0].parts:
            after = _after(left, candidates[n], partial_types)
            following = _candidates(machine, after, partial_types, stages - 1)
            least_after = min(candidate.least for candidate in following)
            heappush(ahead, _Ahead(least + least_after, n, after, least_after))
            continue
        if stage is None:
            stage = staged(machine, *candidates[n].asked)
            if stage.held_bytes <= budget_bytes:
                at_least = stage.price + least_after
                heappush(ahead, _Ahead(at_least, n, after, least_after, stage))
            continue
        rest: ReductionPlan | None = _NOTHING_LEFT
        if after is not None:
            may_equal = (0, stage.price, n) < rank[1:]
            rest_most = rank[0] - stage.price + may_equal
            rest = _best(machine, after, partial_types, budget_bytes, stages - 1, rest_most)
        if rest is not None:
            plan = _joined(stage, rest)
            plan_rank = (plan.price, int(after is None), stage.price, n)
            if plan_rank < rank:
                best, rank = plan, plan_rank
    return best


def _candidates(
    machine: Machine, left: _Left, partial_types: tuple[str, ...], stages: int
) -> tuple[_Candidate, ...]:
    """Return the first stages of plans of so many stages."""
    if stages < 2:
        return _whole_ones(machine, left)
    return (*_whole_ones(machine, left), *_partial_ones(machine, left, partial_types))


@lru_cache(1 << 12)
def _where_it_lies(machine: Machine, left: _Left) -> Stage | None:
    """Return the stage that reduces all where the array lies, if no other can be cheaper.

    All others begin or go on with an exchange, and share the work among all tiles at best.
    """
    kept = tuple(n for d, n in enumerate(left.shape) if d not in left.codelet.dimensions)
    results = tuple(Tensor(kind, kept) for kind in left.codelet.element_types)
    operands = _operands(left)
    indexing = indexing_of(left.codelet, tuple([x.tensor for x in operands]), results)
    lying = followed(indexing, indexing.operands[0], left.mapping)
    if lying is None:
        return None
    stage = staged(machine, left.codelet, operands, results, lying, left.code_price)
    if stage.cycles.exchange or stage.cycles.sync:
        return None
    moving = exchange_price(machine, [arriving(machine, WORD_BYTES)]).cycles
    spread = stage.cycles.compute * lying.tiles.count // machine.chip.tiles_per_ipu
    return stage if stage.cycles.compute <= moving + spread else None


def _operands(left: _Left) -> tuple[PlacedOperand, ...]:
    """Return the arrays and the init scalars, which are constants more often than not."""
    arrays = tuple(
        PlacedOperand(Tensor(kind, left.shape), left.mapping) for kind in left.element_types
    )
    inits = tuple(PlacedOperand(Tensor(kind, ()), None) for kind in left.codelet.element_types)
    return (*arrays, *inits)


_NOTHING_LEFT = ReductionPlan((), 0, 0)


def _after(left: _Left, first: _Candidate, partial_types: tuple[str, ...]) -> _Left:
    """Return what a stage of pieces leaves."""
    done, operands, results, placement, _ = first.asked
    kept = [d for d in range(len(left.shape)) if d not in done.dimensions]
    pieces = len(done.parts)
    more = (pieces + n for n, d in enumerate(kept) if d in left.codelet.dimensions)
    indexing = indexing_of(done, tuple([x.tensor for x in operands]), results)
    shape = results[0].shape
    return _Left(
        replace(left.codelet, dimensions=(*range(pieces), *more)),
        partial_types,
        shape,
        Mapping(placement.tiles, placement.spans(indexing.results[0], shape)),
        left.code_price,
    )


def _joined(first: Stage, rest: ReductionPlan) -> ReductionPlan:
    return ReductionPlan(
        (first, *rest.stages), first.price + rest.price, max(first.held_bytes, rest.held_bytes)
    )


@lru_cache(1 << 12)
def _whole_ones(machine: Machine, left: _Left) -> tuple[_Candidate, ...]:
    """Return stages that reduce all that is left."""
    operands = _operands(left)
    kept = tuple(n for d, n in enumerate(left.shape) if d not in left.codelet.dimensions)
    results = tuple(Tensor(kind, kept) for kind in left.codelet.element_types)
    return tuple(
        _Candidate.of(machine, left.codelet, operands, results, placement, left.code_price)
        for placement in dict.fromkeys(_whole_grids(machine, left, operands, results))
    )


@lru_cache(1 << 12)
def _partial_ones(
    machine: Machine, left: _Left, partial_types: tuple[str, ...]
) -> tuple[_Candidate, ...]:
    """Return stages that reduce pieces; a later stage reduces the partial results."""
    codelet = left.codelet
    candidates: list[_Candidate] = []
    if not codelet.dimensions:
        return ()
    arrays = _operands(left)[: len(left.element_types)]
    for dimensions, parts in _cuts(machine, left):
        cut = replace(codelet, dimensions=dimensions, parts=parts, element_types=partial_types)
        shape = (
            *(over(left.shape[d], part) for d, part in zip(dimensions, parts, strict=False)),
            *(n for d, n in enumerate(left.shape) if d not in dimensions),
        )
        partials = tuple(Tensor(kind, shape) for kind in partial_types)
        candidates += [
            _Candidate.of(machine, cut, arrays, partials, placement, left.code_price)
            for placement in dict.fromkeys(_cut_grids(machine, left, cut, arrays, partials))
        ]
    return tuple(candidates)


def _whole_grids(
    machine: Machine, left: _Left, operands: tuple[PlacedOperand, ...], results: tuple[Tensor, ...]
) -> Iterator[Placement]:
    """Yield grids that split what is kept alone."""
    indexing = indexing_of(left.codelet, tuple([x.tensor for x in operands]), results)
    lying = followed(indexing, indexing.operands[0], left.mapping)
    if lying is not None:
        yield lying
    if left.codelet.dimensions == (0,):
        shared = gathered(left.mapping, results[0].shape)
        if shared is not None:
            yield shared
    tiles = machine.chip.tiles_per_ipu
    sizes = results[0].shape
    bits = ELEMENT_TYPES[results[0].element_type].bits
    grains = [1] * len(sizes)
    if sizes:
        grains[-1] = max(1, GRAIN_BYTES * 8 // bits)
    ones = (1,) * len(sizes)
    counts = {1, min(tiles, left.mapping.tiles.count), tiles, over(tiles, 4), over(tiles, 16)}
    for count in sorted(counts):
        if count <= 1 or count <= prod(sizes):
            yield split(sizes, ones, tuple(grains), count)
            yield split(sizes, ones, ones, count)


def _cuts(machine: Machine, left: _Left) -> Iterator[tuple[tuple[int, ...], Sizes]]:
    """Yield the dimensions of a partial stage, those that are cut first, and their pieces' sizes.

    What each tile has of all that is reduced becomes one piece, or what it has along one of the
    dimensions that are split; else the longest ones are cut until there are so many pieces.
    """
    tiles, spans = machine.chip.tiles_per_ipu, left.mapping.spans
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


def _cut_grids(
    machine: Machine,
    left: _Left,
    cut: Reduce,
    arrays: tuple[PlacedOperand, ...],
    results: tuple[Tensor, ...],
) -> Iterator[Placement]:
    """Yield grids for a partial stage: where the array lies, else pieces by what is kept."""
    indexing = indexing_of(cut, tuple([x.tensor for x in arrays]), results)
    lying = followed(indexing, indexing.operands[0], left.mapping)
    if lying is not None:
        yield lying
        return
    last = len(results[0].shape) - 1
    for grain in _GRAINS if last >= len(cut.parts) else (1,):
        rest = machine.chip.tiles_per_ipu
        counts = []
        for label, size in enumerate(results[0].shape):
            least = grain if label == last else 1
            counts.append((label, min(rest, max(1, over(size, least))), least))
            rest //= counts[-1][1]
        yield grid(counts, results[0].shape)
