"""Grids of dot products: rows, columns and depth in parts, the cheapest of a few dozen ways."""

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloipu_compiler.codegen.placing import Placement, grid
from hloipu_runtime.codelets.codelet import Tensor
from hloipu_runtime.codelets.dot import Dot
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.costs import sync
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Sizes

_COLUMN_GRAIN = 16
"""Columns that the AMP makes at once (graphcore/poplibs: lib/poplin/PerformanceEstimation.hpp)."""


class DotGrid(NamedTuple):
    """How a dot product is spread."""

    part: int
    """Elements of a piece of the depth; 0: the depth is whole on each tile."""
    placement: Placement
    cycles: int
    """Estimate: operands in, products, and pieces brought together."""


class _Sides(NamedTuple):
    """The labels of a result: batch, rows, columns; and the depth."""

    batch: Sizes
    rows: Sizes
    columns: Sizes
    first_depth: int
    other_depth: int


@lru_cache(1 << 12)
def dot_grid(machine: Machine, codelet: Dot, lhs: Tensor, rhs: Tensor, result: Tensor) -> DotGrid:
    """Return the cheapest grid among halvings of rows, columns and depth, for one machine."""
    sides = _sides(codelet, lhs, result)
    found = [
        _priced(machine, codelet, sides, lhs, rhs, result, *ways)
        for ways in _ways(machine.chip.tiles_per_ipu, sides)
    ]
    return min(found, key=lambda x: x.cycles)


def _sides(codelet: Dot, lhs: Tensor, result: Tensor) -> _Sides:
    batch = len(codelet.lhs_batch)
    rows = len(lhs.shape) - batch - len(codelet.lhs_contracting)
    depth = [lhs.shape[d] for d in codelet.lhs_contracting]
    return _Sides(
        result.shape[:batch],
        result.shape[batch : batch + rows],
        result.shape[batch + rows :],
        depth[0] if depth else 1,
        prod(depth[1:]),
    )


def _ways(tiles: int, sides: _Sides) -> Iterator[tuple[int, int, int, int]]:
    """Yield parts of batch, rows, columns and depth."""
    batch = min(prod(sides.batch), tiles)
    rows, columns = prod(sides.rows), prod(sides.columns)
    left = tiles // max(1, batch)
    depth = 1
    while depth == 1 or (depth <= left and 16 * depth <= sides.first_depth):
        down = 1
        while down <= left // depth:
            across = max(1, left // depth // down)
            yield batch, min(down, rows), min(across, columns), depth
            if down >= rows:
                break
            down *= 2
        depth *= 2


def _parts(sizes: Sizes, first: int, parts: int, grain: int) -> list[tuple[int, int, int]]:
    """Spread parts over several dimensions, the first ones first."""
    found = []
    for number, size in enumerate(sizes):
        here = min(parts, size)
        found.append((first + number, here, grain if number == len(sizes) - 1 else 1))
        parts = max(1, parts // max(1, here))
    return found


def _priced(
    machine: Machine,
    codelet: Dot,
    sides: _Sides,
    lhs: Tensor,
    rhs: Tensor,
    result: Tensor,
    batch: int,
    down: int,
    across: int,
    depth: int,
) -> DotGrid:
    pieces = 1 if depth > 1 else 0
    step = -(-sides.first_depth // depth)
    step = -(-step // 8) * 8 if pieces else 0
    count = -(-sides.first_depth // step) if pieces else 1
    sizes = ((count,) if pieces else ()) + result.shape
    before = pieces + len(sides.batch)
    counts = [(0, count, 1)] if pieces else []
    counts += _parts(sides.batch, pieces, batch, 1)
    counts += _parts(sides.rows, before, down, 1)
    column_grain = _COLUMN_GRAIN if prod(sides.columns) >= _COLUMN_GRAIN * across else 1
    counts += _parts(sides.columns, before + len(sides.rows), across, column_grain)
    placement = grid(counts, sizes)
    blocks = dict(placement.labels)
    block = [blocks[n].size if n in blocks else size for n, size in enumerate(sizes)]
    b = prod(block[pieces : pieces + len(sides.batch)])
    m = prod(block[before : before + len(sides.rows)])
    n = prod(block[before + len(sides.rows) :])
    k = (step or sides.first_depth) * sides.other_depth
    exchange = machine.exchange.receive_bytes_per_cycle
    bits = ELEMENT_TYPES[lhs.element_type].bits, ELEMENT_TYPES[rhs.element_type].bits
    moved = b * (m * k * bits[0] + k * n * bits[1]) // 8 // exchange
    one = Dot((0,), (0,), (2,), (1,), "f32" if pieces else codelet.element_type)
    work = one.work(
        machine,
        [Tensor(lhs.element_type, (b, m, k)), Tensor(rhs.element_type, (b, k, n))],
        [Tensor(one.element_type, (b, m, n))],
    ).cycles
    cycles = moved + work + sync(machine).cycles
    if pieces:
        # Partials go to as many tiles as hold the result's blocks, each adding its share.
        share = -(-b * m * n // count)
        cycles += sync(machine).cycles + share * count * 4 // exchange + 6 * share * count // 2
    return DotGrid(step, placement, cycles)
