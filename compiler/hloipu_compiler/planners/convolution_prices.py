"""Prices of all candidate splits of a convolution at once."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.planners.convolution_candidates import (
    FEATURE_GRAIN,
    Amounts,
    Cut,
    blocks_of_labels,
    cuts_of,
    part_sizes,
)
from hloipu_runtime.codelets.core.codelet import Indexing
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.costs.convolution import (
    ConvolutionShape,
    convolution_table_bytes,
    convolutions_cycles,
)
from hloipu_runtime.codelets.costs.reduce import convolution_summing_cycles
from hloipu_runtime.codelets.dense.convolution import Convolution
from hloipu_runtime.costs.exchange_price import side_by_side_cycles
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import Amount, over
from hloipu_runtime.machine.costs import TileTraffic, exchange_cycles, sync
from hloipu_runtime.machine.model import Machine

_MOST_LOAD = 4
"""Candidates that give a tile more than so many times the fewest products are left out."""


class Spread(NamedTuple):
    """A convolution whose sum is cut in one way, and how it splits otherwise."""

    cut: Cut
    codelet: Convolution
    made: Tensor
    """The result, or pieces of it, counted by a leading dimension."""
    indexing: Indexing


class Candidates(NamedTuple):
    """Many candidates, each an entry of the arrays."""

    spreads: tuple[Spread, ...]
    spread: Amounts
    """Which of the spreads a candidate belongs to."""
    blocks: Amounts
    """A row for each candidate, a block for each label; 0 where there is no such label."""
    cycles: Amounts
    bytes_per_tile: Amounts
    features_last: NDArray[np.bool_]
    """Whether tiles side by side differ in features, not in positions."""


class _Parts(NamedTuple):
    """The largest parts of candidates that have the types of operands and results in common."""

    numbers: Amounts
    blocks: Amounts
    shape: ConvolutionShape
    image: Amounts
    kernel: Amounts
    made: Amounts
    """Elements, of one piece where the sum is cut."""
    pieces: Amounts
    feature_parts: Amounts
    """Into how many parts features are cut."""
    position_parts: Amounts
    """Into how many the last dimension of batch and positions that is cut."""


class ConvolutionWork(NamedTuple):
    """A convolution to be planned."""

    machine: Machine
    codelet: Convolution
    operands: tuple[Tensor, Tensor]
    result: Tensor
    partial_type: str


def spread_of(work: ConvolutionWork, cut: Cut) -> Spread:
    """Return a convolution with its sum cut."""
    _, codelet, operands, made, partial_type = work
    if cut.parts:
        codelet = replace(codelet, cuts=cut.parts, element_type=partial_type)
        made = Tensor(partial_type, (*cut.counts, *made.shape))
    return Spread(cut, codelet, made, codelet.indexing(operands, [made]))


@lru_cache(1 << 7)
def priced(work: ConvolutionWork) -> Candidates:
    """Return all candidates worth a look, with their prices; no operand or result is empty."""
    machine, codelet, operands, result, partial_type = work
    tiles = machine.chip.tiles_per_ipu
    spreads = tuple(spread_of(work, cut) for cut in cuts_of(tiles, codelet, *operands))
    blocks = [blocks_of_labels(tiles, x.codelet, x.indexing.sizes, x.cut.pieces) for x in spreads]
    loads = [
        # Of results on a tile: what a cut leaves whole on each is no label.
        prod(part_sizes(x.indexing.results[0], x.made.shape, each)) / x.cut.pieces
        for x, each in zip(spreads, blocks, strict=True)
    ]
    most = _MOST_LOAD * min(float(np.min(x)) for x in loads)
    # Pieces are of another type than whole results.
    groups: tuple[list[_Parts], list[_Parts]] = ([], [])
    labels = max(len(x.indexing.sizes) for x in spreads)
    for number, (spread, each, load) in enumerate(zip(spreads, blocks, loads, strict=True)):
        keep = np.nonzero(np.asarray(load <= most))[0]
        if len(keep):
            parts = _parts(spread, operands, [x[keep] for x in each], number, labels)
            groups[1 if spread.cut.parts else 0].append(parts)
    columns = [
        _priced(machine, operands, kind, _joined(group), cut=cut)
        for group, kind, cut in zip(
            groups, (result.element_type, partial_type), (False, True), strict=True
        )
        if group
    ]
    return Candidates(spreads, *(np.concatenate(arrays) for arrays in zip(*columns, strict=True)))


def _parts(
    spread: Spread,
    operands: tuple[Tensor, Tensor],
    blocks: Sequence[Amounts],
    number: int,
    labels: int,
) -> _Parts:
    indexing, codelet = spread.indexing, spread.codelet
    image, kernel = (
        part_sizes(indices, tensor.shape, blocks)
        for indices, tensor in zip(indexing.operands, operands, strict=True)
    )
    made = part_sizes(indexing.results[0], spread.made.shape, blocks)
    ones = np.ones_like(blocks[0])
    shape = codelet.tile_shape(image, kernel, made)
    first = len(codelet.cuts)
    counts = [-(-size // block) for size, block in zip(indexing.sizes, blocks, strict=True)]
    inner = ones
    for count in counts[first + 1 :]:
        inner = np.where(count > 1, count, inner)
    table = np.zeros((len(ones), labels), np.int64)
    for label, block in enumerate(blocks):
        table[:, label] = block
    return _Parts(
        ones * number,
        table,
        ConvolutionShape(
            ones * shape.groups,
            ones * shape.rows,
            ones * shape.row,
            ones * shape.in_features,
            ones * shape.out_features,
            tuple(ones * x for x in shape.taps),
            shape.stride,
            ones * shape.batch,
            shape.spread,
        ),
        ones * prod(image),
        ones * prod(kernel),
        ones * prod(made),
        ones * spread.cut.pieces,
        counts[first],
        inner,
    )


def _joined(parts: list[_Parts]) -> _Parts:
    if len(parts) == 1:
        return parts[0]
    shapes = [x.shape for x in parts]
    shape = ConvolutionShape(
        _chained([x.groups for x in shapes]),
        _chained([x.rows for x in shapes]),
        _chained([x.row for x in shapes]),
        _chained([x.in_features for x in shapes]),
        _chained([x.out_features for x in shapes]),
        tuple(_chained(x) for x in zip(*(shape.taps for shape in shapes), strict=True)),
        shapes[0].stride,
        _chained([x.batch for x in shapes]),
        shapes[0].spread,
    )
    return _Parts(
        _chained([x.numbers for x in parts]),
        _chained([x.blocks for x in parts]),
        shape,
        _chained([x.image for x in parts]),
        _chained([x.kernel for x in parts]),
        _chained([x.made for x in parts]),
        _chained([x.pieces for x in parts]),
        _chained([x.feature_parts for x in parts]),
        _chained([x.position_parts for x in parts]),
    )


def _chained(arrays: Sequence[Amount]) -> Amounts:
    return np.concatenate([np.asarray(x, np.int64) for x in arrays])


def _priced(
    machine: Machine, operands: tuple[Tensor, Tensor], kind: str, parts: _Parts, *, cut: bool
) -> tuple[NDArray[np.generic], ...]:
    """Return the arrays of `Candidates` for ways whose sums are all cut, or all whole."""
    bits = [ELEMENT_TYPES[x.element_type].bits for x in operands]
    made_bits = ELEMENT_TYPES[kind].bits
    image, kernel = over(parts.image * bits[0], 8), over(parts.kernel * bits[1], 8)
    # Tiles of one bus that need the same data receive it together.
    by_position, by_feature = (
        side_by_side_cycles(machine, shared, other, alike, 0)
        for shared, other, alike in (
            (kernel, image, parts.position_parts),
            (image, kernel, parts.feature_parts),
        )
    )
    barrier = sync(machine).cycles
    cycles = barrier + np.minimum(by_position, by_feature)
    types = operands[0].element_type, operands[1].element_type
    half = cut and kind == "f16"
    cycles = cycles + convolutions_cycles(machine, parts.shape, types, kind, half_partials=half)
    needed, results = image + kernel, over(parts.made * made_bits, 8)
    if cut:
        share = -(-parts.made // parts.pieces)
        gathered = over(share * parts.pieces * made_bits, 8)
        traffic = TileTraffic(received_bytes=gathered, received_fragments=parts.pieces)
        cycles = cycles + barrier + exchange_cycles(machine, traffic)
        # Shares are made of whole vectors where a dimension of the result is.
        vectors = np.asarray(over(share, FEATURE_GRAIN) * FEATURE_GRAIN)
        cycles = cycles + convolution_summing_cycles(machine, (kind, kind), vectors, parts.pieces)
        needed = np.maximum(needed, gathered)
    tables = convolution_table_bytes(machine, parts.shape, types)
    return (
        parts.numbers,
        parts.blocks,
        np.asarray(cycles, np.int64),
        np.asarray(needed + results + tables, np.int64),
        np.asarray(by_feature < by_position),
    )
