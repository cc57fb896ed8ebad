"""Cycles of poplin's products and convolutions by its cheapest plan, from its own formulas.

graphcore/poplibs 7eac0f26, under lib/: poplin/ConvPlan.cpp tries splits of groups, positions,
channels in and out, and adds up exchange of both operands, the vertex, and the exchange and
addition of partial sums; it knows no barriers. Vertices are priced by the runtime's transcription
of poplin/PerformanceEstimation.hpp, partial sums by its getReduceCycleEstimate.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.codelets.costs.amp import Products, products_cycles
from hloipu_runtime.codelets.costs.convolution import ConvolutionShape, convolutions_cycles
from hloipu_runtime.machine.load import load_machine
from tools.fidelity.vertex_formulas import PoplibsEstimate

_MACHINE = load_machine("bow")
_TILES = _MACHINE.chip.tiles_per_ipu
_WORKERS = _MACHINE.tile.worker_contexts
_SOURCE = "poplin/ConvPlan.cpp; poplin/PerformanceEstimation.hpp:25-1400"


class Sizes(NamedTuple):
    """A product or convolution; a product has rows of one position and one tap."""

    groups: int
    rows: int
    row: int
    """Positions of a row of results."""
    depth: int
    """Channels in, of a group."""
    columns: int
    """Channels out, of a group."""
    taps: tuple[int, ...] = (1,)
    stride: int = 1
    windows: int = 1
    """Of a weight gradient: the taps at which the same image elements are rows of the product."""


@lru_cache(128)
def product(sizes: Sizes, element_type: str) -> PoplibsEstimate:
    """Return the cheapest plan's estimate; partial sums of f16 are f16."""
    width = 2 if element_type == "f16" else 4
    groups, rows, depth, columns = _splits(sizes)
    taps = int(np.prod(sizes.taps))
    seen = rows * sizes.row * depth * (sizes.stride ** min(2, len(sizes.taps)))
    image = groups * np.maximum(seen // sizes.windows, rows if sizes.windows > 1 else 1)
    kernel = groups * depth * columns * taps
    parts = -(-sizes.depth // depth)
    results = groups * rows * sizes.row * columns
    types = (element_type, element_type)
    if taps > 1:
        shape = ConvolutionShape(
            groups, rows, np.full_like(rows, sizes.row), depth, columns,
            tuple(np.full_like(rows, x) for x in sizes.taps), sizes.stride,
        )  # fmt: skip
        vertex = convolutions_cycles(
            _MACHINE, shape, types, element_type, half_partials=element_type == "f16"
        )
    else:
        vertex = products_cycles(
            _MACHINE, Products(groups, rows * sizes.row, depth, columns), types,
            (element_type, element_type), np.ones(rows.shape, np.bool_),
        )  # fmt: skip
    shared = np.where(-(-sizes.columns // columns) % 2 == 0, 8, 4)
    exchange = -(-image * width // shared) + -(-kernel * width // 4)
    added = np.where(parts > 1, -(-results * width // 4) + _adding(results, parts, width), 0)
    return PoplibsEstimate(int((exchange + vertex + added).min()), _SOURCE)


def _adding(results: NDArray[np.int64], parts: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Return the cycles of adding partial sums of a tile's share of results."""
    lanes = 8 if width == 2 else 4
    share = -(-results // parts)
    turns = -(-share // (lanes * _WORKERS))
    cycles: NDArray[np.int64] = 33 + _WORKERS * (20 + (2 * parts + 8) * turns)
    return cycles


def _splits(sizes: Sizes) -> tuple[NDArray[np.int64], ...]:
    """Return the blocks of a tile for all splits into at most as many parts as tiles."""
    grain = 16
    choices = [
        _blocks(sizes.groups, 1),
        _blocks(sizes.rows, 1),
        _blocks(sizes.depth, grain),
        _blocks(sizes.columns, grain),
    ]
    blocks = [x.ravel() for x in np.meshgrid(*choices, indexing="ij")]
    whole = (sizes.groups, sizes.rows, sizes.depth, sizes.columns)
    parts = np.prod([-(-n // x) for n, x in zip(whole, blocks, strict=True)], axis=0)
    return tuple(x[parts <= _TILES] for x in blocks)


def _blocks(size: int, grain: int) -> NDArray[np.int64]:
    """Return sizes of blocks, in whole grains: of few parts all, of many some."""
    grains = -(-size // grain)
    parts = {p for p in range(1, grains + 1) if p <= 24 or p % max(1, grains // 24) == 0}
    parts |= {p for p in (32, 46, 64, 92, 184, 368, 736, 1472) if p <= grains}
    return np.array(sorted({min(size, -(-grains // p) * grain) for p in parts}), np.int64)
