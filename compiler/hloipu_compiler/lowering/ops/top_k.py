"""Lowering of top-k: candidates of row pieces on many tiles, merged a few at a time."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import TileTensor, Value
from hloipu_compiler.lowering.core.views import compute_spread, seen_as
from hloipu_compiler.lowering.ops.sorting import sorted_on_tiles
from hloipu_compiler.lowering.ops.sorting_over_tiles import MOST_GATHERED_BYTES, cuts
from hloipu_compiler.planners.planned import (
    Choice,
    Cycles,
    PlannedOp,
    cycles_of,
    losers,
    shape_texts,
)
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.generate import Iota
from hloipu_runtime.codelets.ops.sort import Sort
from hloipu_runtime.codelets.ops.topk import TopK, TopKMerge, TopKPieces
from hloipu_runtime.costs.exchange_price import arriving, exchange_price
from hloipu_runtime.element_types import ELEMENT_TYPES, shape_text
from hloipu_runtime.kernels.sorting import SortKey
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine


@lowers("topk")
def _topk(context: LoweringContext) -> Sequence[Value]:
    k, largest = context.attributes.integer("k"), context.attributes.flag("largest", True)
    return top_k(context.builder, context.tile_tensor(0), k, largest=largest)


def top_k(builder: Builder, x: TileTensor, k: int, *, largest: bool) -> list[TileTensor]:
    """Return values and s32 places of the k best along the last dimension."""
    results = [(x.element_type, (*x.shape[:-1], k)), ("s32", (*x.shape[:-1], k))]
    if 0 in x.shape or k == 0:
        return compute_spread(builder, TopK(k, largest), [x], results)
    sort = Sort(len(x.shape) - 1, (SortKey(0, descending=largest),))
    if _is_sorted_sooner(builder.machine, sort, x, k):
        return _top_of_sorted(builder, sort, x, k)
    pieces, most = _choose_merging(builder, x, k)
    if pieces == 1:
        return compute_spread(builder, TopK(k, largest), [x], results)
    block = -(-x.shape[-1] // pieces)
    pieces = -(-x.shape[-1] // block)
    shape = (*x.shape[:-1], pieces, k)
    piece_results = [(x.element_type, shape), ("s32", shape)]
    candidates = compute_spread(builder, TopKPieces(k, block, largest), [x], piece_results)
    while pieces > 1:
        fan = min(most, pieces)
        pieces = -(-pieces // fan)
        shape = (*x.shape[:-1], pieces, k)
        piece_results = [(x.element_type, shape), ("s32", shape)]
        candidates = compute_spread(builder, TopKMerge(k, fan, largest), candidates, piece_results)
    return seen_as(builder, candidates, (*x.shape[:-1], k))


def _is_sorted_sooner(machine: Machine, sort: Sort, x: TileTensor, k: int) -> bool:
    """Whether to sort all: where merging so many takes more cycles, or gathers too much."""
    length, element = x.shape[-1], ELEMENT_TYPES[x.element_type].byte_width
    fits = length * element <= MOST_GATHERED_BYTES
    if not fits and 2 * k * (element + 4) > MOST_GATHERED_BYTES:
        return True
    rows = max(1, prod(x.shape[:-1]))
    sorting = cuts(machine, sort, (x.element_type, "s32"), rows, length)[0]
    merging = merging_options(machine, x.element_type, rows, length, k).values()
    return not sorting.is_too_much and sorting.cycles < min(x.total for x in merging)


def _top_of_sorted(builder: Builder, sort: Sort, x: TileTensor, k: int) -> list[TileTensor]:
    """Sort all and keep the first."""
    (places,) = builder.compute(Iota(sort.dimension, "s32"), [], [("s32", x.shape)])
    sorted_values = sorted_on_tiles(builder, sort, [x, places], counting=1)
    shape = (*x.shape[:-1], k)
    box = tuple((0, n) for n in shape)
    return seen_as(builder, sorted_values, shape, ((x.shape, box, (0,) * len(shape)),))


class _Merging(NamedTuple):
    """How the best of long rows are found."""

    pieces: int
    """Of each row; 1: it is whole on a tile."""
    fan: int
    """Pieces whose candidates are merged at once."""


def _choose_merging(builder: Builder, x: TileTensor, k: int) -> _Merging:
    """Return the pieces and the fan with the fewest cycles, of those that gather little."""
    rows = max(1, prod(x.shape[:-1]))
    options = merging_options(builder.machine, x.element_type, rows, x.shape[-1], k)
    builder.explains(lambda: _planned(builder, x, k, options))
    return min(options, key=lambda cut: options[cut].total)


@lru_cache(1 << 10)
def merging_options(
    machine: Machine, element_type: str, rows: int, length: int, k: int
) -> dict[_Merging, Cycles]:
    """Return pieces and fans, powers of two, with their predicted cycles; none gathers too much."""
    size = ELEMENT_TYPES[element_type].byte_width
    options = {}
    if length * size <= MOST_GATHERED_BYTES:
        options[_Merging(1, 2)] = _merging_cycles(machine, element_type, rows, length, k, 1, 2)
    pieces = 2
    most = machine.chip.tiles_per_ipu * machine.tile.worker_contexts
    while rows * pieces <= most and length >= 2 * k * (pieces // 2):
        fan = 2
        while fan <= pieces and (fan * k * (size + 4) <= MOST_GATHERED_BYTES or fan == 2):
            cut = _Merging(pieces, fan)
            options[cut] = _merging_cycles(machine, element_type, rows, length, k, *cut)
            fan *= 2
        pieces *= 2
    if not options:
        options[_Merging(1, 2)] = _merging_cycles(machine, element_type, rows, length, k, 1, 2)
    return options


def _merging_cycles(
    machine: Machine, element_type: str, rows: int, length: int, k: int, pieces: int, fan: int
) -> Cycles:
    tiles = machine.chip.tiles_per_ipu
    size = ELEMENT_TYPES[element_type].byte_width
    share, block = over(rows * pieces, tiles), over(length, pieces)
    best = [Tensor(element_type, (share, k))]
    compute = TopK(k).work(machine, [Tensor(element_type, (share, block))], best).cycles
    moving = exchange_price(machine, [arriving(machine, share * block * size)])
    while pieces > 1:
        taken = min(fan, pieces)
        pieces = over(pieces, taken)
        share = over(rows * pieces, tiles)
        candidates = [Tensor(kind, (share * taken, k)) for kind in (element_type, "s32")]
        best = [Tensor(kind, (share, k)) for kind in (element_type, "s32")]
        compute += TopKMerge(k, taken).work(machine, candidates, best).cycles
        both = arriving(machine, share * taken * k * (size + 4), 2 * share * taken)
        moving = moving.plus(exchange_price(machine, [both]))
    return Cycles(compute).plus(cycles_of(moving))


def _planned(
    builder: Builder, x: TileTensor, k: int, options: Mapping[_Merging, Cycles]
) -> PlannedOp:
    """Return the record of how the best of rows are found."""
    rows = max(1, prod(x.shape[:-1]))

    def choice(cut: _Merging) -> Choice:
        words = "rows whole" if cut.pieces == 1 else "the best of pieces, then of candidates"
        splits = (("pieces", cut.pieces),) if cut.pieces > 1 else ()
        block = over(x.shape[-1], cut.pieces)
        size = max(block, min(cut.fan, cut.pieces) * k) * ELEMENT_TYPES[x.element_type].byte_width
        details = (("fan", cut.fan),) if cut.pieces > 1 else ()
        tiles = min(builder.tile_count, rows * cut.pieces)
        return Choice(words, splits, tiles, options[cut], size, details)

    chosen = choice(min(options, key=lambda cut: options[cut].total))
    shape = (*x.shape[:-1], k)
    return PlannedOp(
        builder.origin,
        "topk",
        shape_texts([x]),
        (shape_text(x.element_type, shape), shape_text("s32", shape)),
        chosen,
        losers(chosen, map(choice, options)),
    )
