"""Spreading values over tiles: in pieces on those that want them, finely where work is much."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.planners.placing import (
    GRAIN_BYTES,
    MINIMUM_BYTES,
    Placement,
    grid,
    in_blocks,
    split,
)
from hloipu_compiler.planners.stages import part_of
from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.costs.computing import codelet_work
from hloipu_runtime.costs.exchange_price import arriving, exchange_price
from hloipu_runtime.costs.traffic import WORD_BYTES
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping, Sizes


def worth_sharing(blocks: Sequence[int], element_type: str) -> int:
    """Return how many tiles may share out a part: each gets 128 bytes of it, or one gets all."""
    size = prod(blocks) * ELEMENT_TYPES[element_type].bits // 8
    return max(1, size // MINIMUM_BYTES)


def spread_over_copies(wanted: Mapping, shape: Sizes, element_type: str) -> Mapping:
    """Return a partition of a tensor with which tiles get their wanted parts in few pieces.

    Tiles that want the same part share it out, the first dimensions first.
    """
    wanting = wanted.tiles
    cut = [d for d, span in enumerate(wanted.spans) if span.axis >= 0]
    blocks = [min(span.size, size) for span, size in zip(wanted.spans, shape, strict=True)]
    copies = wanting.count // max(1, prod(wanting.extents[wanted.spans[d].axis] for d in cut))
    copies = min(copies, worth_sharing(blocks, element_type))
    for d, whole_block in enumerate(blocks):
        if copies < 2 or whole_block < 2:
            continue
        block = -(-whole_block // copies)
        if d == len(shape) - 1:
            grain = max(1, GRAIN_BYTES * 8 // ELEMENT_TYPES[element_type].bits)
            block = -(-block // grain) * grain
        blocks[d] = min(block, whole_block)
        copies //= -(-whole_block // blocks[d])
    _fit(blocks, shape, wanting.count)
    return in_blocks(shape, blocks, wanting.first)


def _fit(blocks: list[int], shape: Sizes, tiles: int) -> None:
    """Enlarge blocks, the first ones first, until there are no more than tiles."""
    for d, size in enumerate(shape):
        others = prod(
            -(-n // b) for e, (n, b) in enumerate(zip(shape, blocks, strict=True)) if e != d
        )
        room = max(1, tiles // max(1, others))
        blocks[d] = max(blocks[d], -(-size // room))


_FINER = 4
"""Each grid that is tried has so many times the tiles of the one before."""


class Spreading(NamedTuple):
    """A codelet whose work is to be spread over tiles."""

    machine: Machine
    codelet: Codelet
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    sizes: Sizes
    """Of the labels that may be split."""

    def cycles(self, placement: Placement) -> int:
        """Return the cycles of the tile with the largest parts."""
        indexing = self.codelet.indexing(self.operands, self.results)
        both = (self.operands, indexing.operands), (self.results, indexing.results)
        parts, results = (
            tuple(part_of(placement, i, x) for x, i in zip(tensors, indices, strict=True))
            for tensors, indices in both
        )
        return codelet_work(self.codelet, self.machine, parts, results).cycles


@lru_cache(1 << 12)
def finer(work: Spreading, default: Placement) -> tuple[Placement, ...]:
    """Return grids on more tiles on which the work takes less by more than one more exchange.

    For little data that much is computed on: it is spread over more tiles than its bytes are worth.
    Where a type of half a word would be split within words, as many tiles as there are words are
    enough.
    """
    machine, sizes = work.machine, work.sizes
    count = default.tiles.count
    most = min(machine.chip.tiles_per_ipu, prod(sizes))
    if 2 * count > most:
        return ()
    before = work.cycles(default)
    moving = exchange_price(machine, [arriving(machine, WORD_BYTES)]).cycles
    placements: list[Placement] = []
    ones = (1,) * len(sizes)
    while count < most and before > moving:
        count = min(most, _FINER * count)
        placement = split(sizes, ones, ones, count)
        if before - work.cycles(placement) > moving:
            placements.append(placement)
    return tuple(placements)


_MOST_BLOCKS = 24
"""Of a dimension, sizes of blocks that are tried: those into most parts, and large ones."""
_WORTH = 1
"""Times of the exchange of everything that more even parts are to save: results may go back."""


@lru_cache(1 << 12)
def more_even(work: Spreading, placement: Placement) -> Placement | None:
    """Return the grid of least work, where much is computed that a placement spreads unevenly.

    None unless it saves what it may cost to bring operands there and results back.
    """
    machine, tiles = work.machine, work.machine.chip.tiles_per_ipu
    before = work.cycles(placement)
    tensors = (*work.operands, *work.results)
    moved = sum(x.elements * ELEMENT_TYPES[x.element_type].bits for x in tensors)
    moving = exchange_price(machine, [arriving(machine, -(-moved // (8 * tiles)))]).cycles
    if before <= _WORTH * moving:
        return None
    even = min(even_grids(work.sizes, tiles), key=work.cycles, default=None)
    return even if even and before - work.cycles(even) > _WORTH * moving else None


_EVEN_GRIDS = 8


@lru_cache(1 << 10)
def even_grids(sizes: Sizes, tiles: int, grain: int = 1) -> tuple[Placement, ...]:
    """Return the grids whose largest parts are smallest, the first dimensions cut most.

    Blocks of the last dimension are multiples of `grain`.
    """
    labels = [n for n, size in enumerate(sizes) if size > 1]
    if not labels:
        return ()
    grains = [grain if n + 1 == len(sizes) else 1 for n in labels]
    some = (_some_blocks(sizes[n], tiles, each) for n, each in zip(labels, grains, strict=True))
    blocks = np.meshgrid(*some, indexing="ij")
    counts = [-(-sizes[n] // x) for n, x in zip(labels, blocks, strict=True)]
    load = np.prod(blocks, axis=0, dtype=np.float64)
    load[np.prod(counts, axis=0) > tiles] = np.inf
    order = np.argsort(load, axis=None, kind="stable")[:_EVEN_GRIDS]
    return tuple(
        grid(
            [(n, int(x.flat[at]), g) for n, x, g in zip(labels, counts, grains, strict=True)], sizes
        )
        for at in order
        if np.isfinite(load.flat[at])
    )


def _some_blocks(size: int, tiles: int, grain: int) -> NDArray[np.int64]:
    parts = range(1, min(size, tiles) + 1)
    blocks = sorted({-(-size // (n * grain)) * grain for n in parts})
    if len(blocks) > _MOST_BLOCKS:
        step = -(-len(blocks) // _MOST_BLOCKS)
        blocks = sorted({*blocks[: _MOST_BLOCKS // 2], *blocks[::step], blocks[-1]})
    return np.array(blocks, np.int64)
