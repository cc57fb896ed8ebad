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

_LEAST_TAPS = 8
"""Shortest kernel dimension that is cut: those of weight gradients are images."""

_FRAGMENT_CYCLES = 64
"""Price of the code of one contiguous piece that a tile receives, which stays in its memory.

Assumed: all exchanges of a program share a tile's memory.
"""


class ConvolutionGrid(NamedTuple):
    """How a convolution is spread."""

    part: int
    """Elements of a piece of what is summed over; 0: all of it on each tile."""
    along: int
    """What is cut, as in `Convolution.along`."""
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
        _priced(machine, codelet, (image, kernel), result, partial_type, way)
        for way in _ways(machine.chip.tiles_per_ipu, codelet, image, kernel, result)
    ]
    # The rest is for code and for what else lives at the same time.
    room = machine.usable_bytes * 3 // 4
    fitting = [x for x in found if x.bytes_per_tile <= room]
    if fitting:
        return min(fitting, key=lambda x: x.cycles)
    return min(found, key=lambda x: x.bytes_per_tile)


class _Way(NamedTuple):
    """How often the depth is cut and along what, and the output features (or groups)."""

    along: int
    length: int
    """Of what is cut."""
    depth: int
    features: int


def _ways(
    tiles: int, codelet: Convolution, image: Tensor, kernel: Tensor, result: Tensor
) -> Iterator[_Way]:
    """Yield ways to cut depth and features into powers of two."""
    groups = codelet.feature_groups * codelet.batch_groups
    taps = prod(kernel.shape[d] for d in codelet.rhs[2:])
    depth_size = kernel.shape[codelet.rhs[0]] * taps
    features_size = groups if groups > 1 else result.shape[codelet.out[1]]
    cuts = [(0, image.shape[codelet.lhs[1]])] if groups == 1 else []
    cuts += [
        (1 + number, kernel.shape[codelet.rhs[2 + number]])
        for number, (window, back) in enumerate(zip(codelet.window, codelet.reversal, strict=True))
        if window[4] == 1 and not back and kernel.shape[codelet.rhs[2 + number]] >= _LEAST_TAPS
    ]
    for features in _halvings(min(tiles, features_size)):
        yield _Way(0, 0, 1, features)
        for along, length in cuts:
            most = min(tiles // features, length, depth_size // _LEAST_PIECE)
            for depth in _halvings(most)[1:]:
                yield _Way(along, length, depth, features)


def _halvings(most: int) -> list[int]:
    """Return the powers of two up to a number, and the number; at least 1."""
    found = [1 << n for n in range(max(1, most).bit_length())]
    return found if found[-1] >= most else [*found, most]


def _priced(
    machine: Machine,
    codelet: Convolution,
    operands: tuple[Tensor, Tensor],
    result: Tensor,
    partial_type: str,
    way: _Way,
) -> ConvolutionGrid:
    """Price a split of depth and features; images and positions share the tiles that are left."""
    features = way.features
    part = over(way.length, way.depth) if way.depth > 1 else 0
    made = result
    if part:
        codelet = replace(codelet, part=part, along=way.along, element_type=partial_type)
        made = Tensor(partial_type, (over(way.length, part), *result.shape))
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
    fragments = sum(
        _fragments(machine, part, whole) for part, whole in zip(parts, operands, strict=True)
    )
    cycles = over(received, machine.exchange.receive_bytes_per_cycle) + sync(machine).cycles
    cycles += fragments * (machine.exchange.control_cycles_per_fragment + _FRAGMENT_CYCLES)
    cycles += codelet.work(machine, parts, [mine]).cycles
    if part:
        # Each of the tiles that hold pieces of the same elements adds its share of them.
        count = made.shape[0]
        share = over(mine.elements, count) * count
        cycles += sync(machine).cycles + share * 4 // machine.exchange.receive_bytes_per_cycle
        cycles += machine.tile.worker_contexts * share // 2
    code = fragments * machine.memory.exchange_fragment_code_bytes
    return ConvolutionGrid(part, way.along, placement, cycles, received + code + _bytes(mine))


def _fragments(machine: Machine, part: Tensor, whole: Tensor) -> int:
    """Estimate from how many contiguous pieces a tile's part is put together.

    The whole lies in row-major blocks on all tiles.
    """
    cut = [d for d, (n, size) in enumerate(zip(part.shape, whole.shape, strict=True)) if n < size]
    last = cut[-1] if cut else 0
    runs, run = prod(part.shape[:last]), prod(part.shape[last:])
    block = max(1, whole.elements // machine.chip.tiles_per_ipu)
    return runs * over(run, block)


def _part(placement: Placement, tensor: Tensor, indices: Sequence[Index]) -> Tensor:
    """Return the largest part that a tile has of a tensor."""
    spans = placement.spans(indices, tensor.shape)
    sizes = (min(span.size, size) for span, size in zip(spans, tensor.shape, strict=True))
    return Tensor(tensor.element_type, tuple(sizes))


def _bytes(tensor: Tensor) -> int:
    return over(tensor.elements * ELEMENT_TYPES[tensor.element_type].bits, 8)
