"""Spreads small tensors over more tiles, where much is computed on them."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from hloipu_compiler.planners.placing import Placement, split
from hloipu_compiler.planners.stages import part_of
from hloipu_runtime.codelets.core.codelet import Codelet, Indexing, Tensor
from hloipu_runtime.costs.computing import codelet_work
from hloipu_runtime.machine.costs import TileTraffic, exchange, sync
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Sizes

_FINER = 4
"""Each grid that is tried has so many times the tiles of the one before."""


@lru_cache(1 << 12)
def finer(
    machine: Machine,
    codelet: Codelet,
    operands: tuple[Tensor, ...],
    results: tuple[Tensor, ...],
    sizes: Sizes,
    default: Placement,
) -> tuple[Placement, ...]:
    """Return grids on more tiles on which the work takes less by more than one more exchange.

    `sizes` are those of the labels that may be split. Where a type of half a word would be split
    within words, as many tiles as there are words are enough.
    """
    tiles = machine.chip.tiles_per_ipu
    count = default.tiles.count
    most = min(tiles, prod(sizes))
    if 2 * count > most:
        return ()
    indexing = codelet.indexing(operands, results)
    before = _work(machine, codelet, indexing, operands, results, default)
    word = TileTraffic(received_bytes=4, received_fragments=1)
    moving = sync(machine).cycles + exchange(machine, [word]).cycles
    placements: list[Placement] = []
    ones = (1,) * len(sizes)
    while count < most and before > moving:
        count = min(most, _FINER * count)
        placement = split(sizes, ones, ones, count, 0)
        work = _work(machine, codelet, indexing, operands, results, placement)
        if before - work <= moving:
            continue
        placements.append(placement)
    return tuple(placements)


def _work(
    machine: Machine,
    codelet: Codelet,
    indexing: Indexing,
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    placement: Placement,
) -> int:
    """Return the cycles of the tile with the largest parts."""
    parts = [part_of(placement, i, x) for x, i in zip(operands, indexing.operands, strict=True)]
    result_parts = [
        part_of(placement, i, x) for x, i in zip(results, indexing.results, strict=True)
    ]
    return codelet_work(codelet, machine, tuple(parts), tuple(result_parts)).cycles
