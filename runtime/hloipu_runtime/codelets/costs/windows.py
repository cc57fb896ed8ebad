"""Cycles of pooling on one tile (graphcore/poplibs: lib/popnn/PerformanceEstimation.hpp)."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.tensors import Tensors
from hloipu_runtime.codelets.costs.amp import conversion_cycles
from hloipu_runtime.codelets.costs.combining import combining
from hloipu_runtime.codelets.costs.elementwise_rates import vector_elements
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork, shared_vertex_cycles
from hloipu_runtime.machine.model import Machine

_ROW_SLOTS = 20
"""Of a worker before each row (assumed: as for a row of windows in pooling)."""
_TOTAL_SLOTS = 12
"""Around the loop of a total, as of each output of a contiguous reduction (`reduce.py`)."""

LONG_WINDOW = 8
"""Windows longer than this along one dimension are reduced by doubling: 2 log2 steps."""


class Pooled(NamedTuple):
    """What windows reduce on a tile."""

    items: int
    """Positions of windows."""
    channels: int
    """Elements at each position: all dimensions without windows."""
    row: int
    """Positions next to each other along the last dimension with windows."""


def pooling_work(
    machine: Machine,
    tensors: Tensors,
    pooled: Pooled,
    window: Sequence[int],
    monoid: str,
    body: Expression | None,
    *,
    backward: bool = False,
) -> TileWork:
    """Return the work of pooling; `tensors` are all that is converted.

    Workers share the positions. For each row of a worker's positions, each element of the window
    and each vector of channels there is a loop over the positions, which loads and stores what it
    has so far; of short rows, all elements of the window at one position may be the loop, which is
    assumed. The source has the maximum and the sum of floats; other reducers go by the price of a
    step.
    """
    if pooled.items * pooled.channels <= 0:
        return TileWork(0)
    step = combining(machine, tensors[0].element_type, monoid, body)
    steps, is_long = _steps(window)
    fixed = 3 + (7 if backward else 4 if monoid == "maximum" else 5)
    each = 5 if backward else 2 + step.slots
    contexts = machine.tile.worker_contexts
    vectors = over(pooled.channels, step.lanes)
    positions = over(pooled.items, contexts)
    run = min(positions, max(1, pooled.row))
    rows = over(positions, run)
    by_rows = vectors * positions + rows * (18 + steps * (22 + vectors * (fixed + each * run)))
    by_positions = positions * 20
    by_positions += over(pooled.items * vectors, contexts) * (fixed + each * steps)
    worker = 46 + (10 if backward else 0) + min(by_rows, by_positions)
    cycles = 7 + contexts * worker + 6
    converted = sum(
        conversion_cycles(machine, tensor.element_type, tensor.elements)
        for tensor in tensors
        if tensor.element_type != "f16"
    )
    assumed = (
        step.assumed
        or is_long
        or by_positions < by_rows
        or monoid not in ("maximum", "minimum", "add")
    )
    return TileWork(cycles + converted, converted + (cycles if assumed else 0))


def running_work(
    machine: Machine,
    tensors: Tensors,
    rows: int,
    length: int,
    monoid: str,
    body: Expression | None,
    inner: int = 1,
) -> TileWork:
    """Return the work of running totals of `rows` rows; `tensors` are all operands and results.

    Assumed: a worker goes along its rows a vector at a time, which it loads and stores, and beside
    that adds each element to the total of those before, as no vector instruction does. Of fewer
    rows than workers each worker takes a piece: the pieces' totals are found first, as a reduction
    finds them, and each piece begins with the total of those before. `inner` elements of other rows
    lie between the neighbours of one; where they fill no vectors, each element is moved by itself.
    """
    if rows * length <= 0:
        return TileWork(0)
    kind = tensors[0].element_type
    step = combining(machine, kind, monoid, body)
    contexts = machine.tile.worker_contexts
    widths = [vector_elements(x.element_type) for x in tensors]
    widths = [1 if inner > 1 and inner % lanes else lanes for lanes in widths]

    def along(count: int) -> int:
        moved = sum(over(count, lanes) for lanes in widths)
        return moved + step.slots * count if step.assumed else max(moved, step.slots * count)

    alone = over(rows, contexts) * (_ROW_SLOTS + along(length))
    pieces = contexts // rows if rows < contexts else 1
    piece = over(length, pieces)
    vectors = over(piece, 1 if step.assumed else step.lanes)
    total = _TOTAL_SLOTS + vectors * (step.slots + step.assumed)
    team = 2 * _ROW_SLOTS + total + pieces * (1 + step.slots) + along(piece)
    slots = min(alone, team) if pieces > 1 else alone
    converted = sum(
        conversion_cycles(machine, tensor.element_type, tensor.elements)
        for tensor in tensors
        if tensor.element_type != "f16"
    )
    cycles = shared_vertex_cycles(machine, machine.tile.supervisor_vertex_cycles, slots) + converted
    return TileWork(cycles, cycles)


def _steps(window: Sequence[int]) -> tuple[int, bool]:
    """Return how many values a window takes in, and whether it is reduced by doubling."""
    if max(window, default=1) <= LONG_WINDOW:
        return prod(window), False
    return sum(min(size, 2 * size.bit_length()) for size in window if size > 1), True
