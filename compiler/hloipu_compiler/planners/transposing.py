"""Planner of transposes: dimensions split over tiles in blocks.

A transpose costs its tiles the least where blocks are many small matrices of whole grains, and its
exchange the least where the operand lies; a search over the parts of all dimensions weighs both.
"""

from collections.abc import Callable
from functools import lru_cache
from math import prod

from hloipu_compiler.planners.op_grids import MovableOp, candidates, cheapest
from hloipu_compiler.planners.placing import GRAIN_BYTES, Placement, followed, grid, split
from hloipu_compiler.planners.planned import Choice, PlannedOp, losers, splits_of
from hloipu_compiler.planners.searching import Candidate, descend
from hloipu_compiler.planners.stages import PlacedOperand, Stage, Work, least_price, staged
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.move import Transpose
from hloipu_runtime.costs.exchange_price import NO_CODE_PRICE, CodePrice
from hloipu_runtime.element_types import ELEMENT_TYPES, shape_text
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping, Sizes

_COMPARED = 4
"""Grids that are priced with the way of the result, too; assumed: others are dearer by far."""

_MOST_ALONE = 6
"""Dimensions that are searched one by one; hardly any network has more (assumed)."""

_Placing = Callable[[Candidate], Placement]


@lru_cache(1 << 10)
def transpositions(
    machine: Machine,
    tensor: Tensor,
    permutation: tuple[int, ...],
    lying: Mapping | None,
    code_price: CodePrice = NO_CODE_PRICE,
) -> tuple[Stage, ...]:
    """Return the grids that were looked at for a transpose, priced, the cheapest first.

    `lying`: where the operand lies; None: it will lie where it is wanted. `code_price`: what a
    byte of exchange code is worth.
    """
    codelet = Transpose(permutation)
    result = Tensor(tensor.element_type, tuple(tensor.shape[d] for d in permutation))
    indexing = codelet.indexing([tensor], [result])
    tiles = machine.chip.tiles_per_ipu
    stages: dict[Placement, Stage] = {}
    work = Work(machine, codelet, (PlacedOperand(tensor, lying),), (result,), code_price)

    def price(placement: Placement) -> int:
        if placement not in stages:
            stages[placement] = staged(work, placement)
        return stages[placement].price

    if lying is not None:
        there = followed(indexing, indexing.operands[0], lying)
        if there is not None:
            price(there)
    sizes = indexing.sizes
    ones = (1,) * len(sizes)
    bits = ELEMENT_TYPES[tensor.element_type].bits
    most = min(tiles, prod(sizes))
    by_rows = split(sizes, ones, (*ones[:-1], max(1, GRAIN_BYTES * 8 // bits)), most)
    price(by_rows)
    groups = _searched_together(permutation)
    joined = tuple(prod(sizes[label] for label in group) for group in groups)
    beginnings = [
        tuple(min(n, most) if k == number else 1 for k, n in enumerate(joined))
        for number in range(len(joined))
    ]
    # A grain is what the vertex transposes at a time; parts within one are moved singly.
    for grain in sorted({1, max(1, GRAIN_BYTES * 8 // bits)}):

        def placed(candidate: Candidate, grain: int = grain) -> Placement:
            parts = _parts(candidate, groups, sizes)
            return grid([(label, n, grain) for label, n in enumerate(parts)], sizes)

        def of_candidate(candidate: Candidate, placed: _Placing = placed) -> float:
            return price(placed(candidate))

        def least(candidate: Candidate, placed: _Placing = placed) -> float:
            return least_price(work, placed(candidate))

        descend(beginnings, joined, most, of_candidate, least)
    return tuple(sorted(stages.values(), key=lambda x: x.price))


def _searched_together(permutation: tuple[int, ...]) -> list[list[int]]:
    """Return the result's dimensions in groups whose parts are looked for as those of one.

    Of few dimensions each is a group. The search takes the square of their number: of many, those
    that stand side by side before and after, as all but one do that is brought to the front.
    """
    groups: list[list[int]] = []
    for label, d in enumerate(permutation):
        beside = label > 0 and permutation[label - 1] + 1 == d
        if beside and len(permutation) > _MOST_ALONE:
            groups[-1].append(label)
        else:
            groups.append([label])
    return groups


def _parts(candidate: Candidate, groups: list[list[int]], sizes: Sizes) -> list[int]:
    """Return the parts of each dimension: of a group the outer ones are cut first."""
    parts: list[int] = []
    for group, left in zip(groups, candidate, strict=True):
        for label in group:
            parts.append(max(1, min(sizes[label], left)))
            left //= parts[-1]
    return parts


def transposition_preference(
    machine: Machine,
    tensor: Tensor,
    permutation: tuple[int, ...],
    default: Mapping,
    code_price: CodePrice = NO_CODE_PRICE,
) -> tuple[Mapping, int] | None:
    """Return where a transpose wants its operand, and what that saves; None if nothing."""
    best = transpositions(machine, tensor, permutation, None)[0]
    saved = transpositions(machine, tensor, permutation, default, code_price)[0].price - best.price
    result = best.results[0]
    indexing = best.codelet.indexing([tensor], [result])
    spans = best.placement.spans(indexing.operands[0], tensor.shape)
    return (Mapping(best.placement.tiles, spans), saved) if saved > 0 else None


def preferred_first(
    machine: Machine, stages: tuple[Stage, ...], op: MovableOp
) -> tuple[Stage, ...]:
    """Return stages with the one first from which the result comes cheapest to its readers.

    A result that is cut within what a reader takes as one run arrives there in single elements.
    """
    tensor, lying = op.operands[0]
    work = Work(machine, op.codelet, (PlacedOperand(tensor, lying),), op.results, op.code_price)
    least_tiles = -(-stages[0].placement.tiles.count // 2)
    preferred = candidates(work.indexing, (), op.preferences, least_tiles, ())
    near = [stage.placement for stage in stages[:_COMPARED]]
    best = cheapest(machine, op, [*near, *preferred])
    others = [stage for stage in stages if stage.placement != best]
    return (staged(work, best), *others)


def planned_transpose(op: str, tensor: Tensor, stages: tuple[Stage, ...]) -> PlannedOp:
    """Return the record of a transpose: the cheapest of the stages was chosen."""

    def choice(stage: Stage) -> Choice:
        names = [f"dimension {n}" for n in range(len(tensor.shape))]
        words = "after exchange" if stage.cycles.exchange else "where the operand lies"
        return Choice(
            words,
            splits_of(stage.placement, names),
            stage.placement.tiles.count,
            stage.cycles,
            stage.held_bytes,
        )

    chosen = choice(stages[0])
    result = stages[0].results[0]
    return PlannedOp(
        op,
        "transpose",
        (shape_text(*tensor),),
        (shape_text(*result),),
        chosen,
        losers(chosen, map(choice, stages[1:])),
    )
