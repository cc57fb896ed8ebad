"""Grids of convolutions: features, images, positions and depth in parts, the cheapest of many."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloipu_compiler.codegen.placing import Placement, grid
from hloipu_runtime.codelets.codelet import Index, Tensor
from hloipu_runtime.codelets.convolution import Convolution
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import sync
from hloipu_runtime.machine.model import Machine

_FEATURE_GRAIN = 16
"""Features that the AMP makes at once (graphcore/poplibs: lib/poplin/PerformanceEstimation.hpp)."""

_LEAST_PIECE = 16
"""Fewest products of a piece for each result: one group of input channels of the AMP in f16."""


class ConvolutionGrid(NamedTuple):
    """How a convolution is spread."""

    part: int
    """Input features of a piece; 0: all of them on each tile."""
    placement: Placement
    cycles: int
    """Estimate: operands in, convolutions, and pieces brought together."""
    bytes_per_tile: int
    """Of the parts of operands and result."""


@lru_cache(1 << 12)
def convolution_grid(
    machine: Machine,
    codelet: Convolution,
    image: Tensor,
    kernel: Tensor,
    result: Tensor,
    partial_type: str,
) -> ConvolutionGrid:
    """Return the cheapest grid that a tile has room for, or the one that needs least room."""
    found = [
        _priced(machine, codelet, (image, kernel), result, partial_type, depth, features)
        for depth, features in _ways(machine.chip.tiles_per_ipu, codelet, image, kernel, result)
    ]
    room = machine.usable_bytes // 2
    fitting = [x for x in found if x.bytes_per_tile <= room]
    if fitting:
        return min(fitting, key=lambda x: x.cycles)
    return min(found, key=lambda x: x.bytes_per_tile)


def _ways(
    tiles: int, codelet: Convolution, image: Tensor, kernel: Tensor, result: Tensor
) -> Iterator[tuple[int, int]]:
    """Yield parts of the depth and of the output features (or groups), powers of two."""
    groups = codelet.feature_groups * codelet.batch_groups
    depth_size = image.shape[codelet.lhs[1]] if groups == 1 else 1
    taps = prod(kernel.shape[d] for d in codelet.rhs[2:])
    features_size = groups if groups > 1 else result.shape[codelet.out[1]]
    depth = 1
    while depth == 1 or (
        depth <= min(tiles, depth_size) and _LEAST_PIECE * depth <= depth_size * taps
    ):
        features = 1
        while features == 1 or (features <= tiles // depth and features < 2 * features_size):
            yield depth, min(features, max(1, features_size))
            features *= 2
        depth *= 2


def _priced(
    machine: Machine,
    codelet: Convolution,
    operands: tuple[Tensor, Tensor],
    result: Tensor,
    partial_type: str,
    depth: int,
    features: int,
) -> ConvolutionGrid:
    """Price a split of depth and features; images and positions share the tiles that are left."""
    part = over(operands[0].shape[codelet.lhs[1]], depth) if depth > 1 else 0
    made = result
    if part:
        pieces = over(operands[0].shape[codelet.lhs[1]], part)
        codelet = replace(codelet, part=part, element_type=partial_type)
        made = Tensor(partial_type, (pieces, *result.shape))
    indexing = codelet.indexing(operands, [made])
    first = 1 if part else 0
    counts = [(0, made.shape[0], 1)] if part else []
    several = codelet.feature_groups * codelet.batch_groups > 1
    whole_units = not several and indexing.sizes[first] >= _FEATURE_GRAIN * features
    counts.append((first, features, _FEATURE_GRAIN if whole_units else 1))
    left = machine.chip.tiles_per_ipu // max(1, (made.shape[0] if part else 1) * features)
    for label in range(first + 1, len(indexing.sizes)):
        here = min(left, max(1, indexing.sizes[label]))
        counts.append((label, here, 1))
        left //= here
    placement = grid([x for x in counts if indexing.sizes[x[0]]], indexing.sizes)
    parts = [_part(placement, x, at) for x, at in zip(operands, indexing.operands, strict=True)]
    mine = _part(placement, made, indexing.results[0])
    received = sum(map(_bytes, parts))
    cycles = over(received, machine.exchange.receive_bytes_per_cycle) + sync(machine).cycles
    cycles += codelet.work(machine, parts, [mine]).cycles
    if part:
        # Each of the tiles that hold pieces of the same elements adds its share of them.
        count = made.shape[0]
        share = over(mine.elements, count) * count
        cycles += sync(machine).cycles + share * 4 // machine.exchange.receive_bytes_per_cycle
        cycles += machine.tile.worker_contexts * share // 2
    return ConvolutionGrid(part, placement, cycles, received + _bytes(mine))


def _part(placement: Placement, tensor: Tensor, indices: Sequence[Index]) -> Tensor:
    """Return the largest part that a tile has of a tensor."""
    spans = placement.spans(indices, tensor.shape)
    sizes = (min(span.size, size) for span, size in zip(spans, tensor.shape, strict=True))
    return Tensor(tensor.element_type, tuple(sizes))


def _bytes(tensor: Tensor) -> int:
    return over(tensor.elements * ELEMENT_TYPES[tensor.element_type].bits, 8)
