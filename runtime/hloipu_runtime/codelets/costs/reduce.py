"""Cycles of reductions on one tile.

Formulas: graphcore/poplibs: lib/popops/reduction/CycleEstimationFunctions.cpp (strided and
contiguous vertices); of convolutions' partial sums lib/poplin/PerformanceEstimation.hpp
(getReduceCycleEstimate). Integers, emulated types and regions of several ops rest on no source.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.tensors import Tensor, Tensors
from hloipu_runtime.codelets.costs.amp import conversion_cycles
from hloipu_runtime.codelets.costs.combining import Combining, combining
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork, shared_vertex_cycles
from hloipu_runtime.machine.model import Machine

_SUM_TYPES = ("f16", "f32")
"""Of the vertex that adds partial sums of convolutions."""


_MOST_CUT = 8
"""Outputs of each worker, or vectors of them, beyond which dealing them evenly is as good."""


_ACCUMULATOR_BYTES = 4
"""At least."""


class _Loop(NamedTuple):
    """How a worker goes through partials."""

    lanes: int
    """Elements that one step takes in."""
    step_slots: int
    store_slots: int
    """After the last partial of each vector of outputs."""
    assumed: bool


def _strided(monoid: str, step: Combining) -> _Loop:
    """Return the loop of a step; sums of floats have accumulators of two vectors."""
    if step.assumed:
        return _Loop(step.lanes, step.slots, 4, True)
    if monoid == "add":
        return _Loop(2 * step.lanes, step.slots, 8 if step.half else 5, False)
    return _Loop(step.lanes, step.slots, 8 if step.half else 4, False)


class Reducing(NamedTuple):
    """A reduction of operands over dimensions."""

    machine: Machine
    operands: Tensors
    results: Tensors
    dimensions: Sequence[int]
    monoid: str
    """It reduces each operand by itself, and those of one type are one vertex's."""
    body: Expression | None = None
    """The region where there is no monoid; it takes all operands at once."""


def reduce_work(reducing: Reducing) -> TileWork:
    """Return the work of reducing operands over dimensions, all workers sharing the outputs.

    Outputs that do not come out even are
    cut along the reduced extent, and a second vertex puts their pieces together, where that pays.
    """
    machine, operands, results, dimensions, _, _ = reducing
    work = TileWork(0)
    if not results[0].elements:
        return work
    for loop, operand, result, arrays in _alike(reducing):
        cycles, _ = _shared(machine, loop, operand.shape, result.elements, dimensions, arrays)
        work = TileWork(work.cycles + cycles, work.assumed_cycles + (cycles if loop.assumed else 0))
    converted = sum(
        conversion_cycles(machine, tensor.element_type, tensor.elements)
        for tensor in (*operands, *results)
        if tensor.element_type != "f16"
    )
    return TileWork(work.cycles + converted, work.assumed_cycles + converted)


def reduce_room_bytes(reducing: Reducing) -> int:
    """Return the room for what workers leave of an output's pieces, where its partials are cut."""
    machine, _, results, dimensions, monoid, _ = reducing
    total = 0
    if not results[0].elements:
        return total
    for loop, operand, result, arrays in _alike(reducing):
        _, pieces = _shared(machine, loop, operand.shape, result.elements, dimensions, arrays)
        count = arrays if monoid else len(results)
        width = max(_ACCUMULATOR_BYTES, ELEMENT_TYPES[result.element_type].byte_width)
        total += width * result.elements * pieces * count if pieces > 1 else 0
    return total


def _alike(reducing: Reducing) -> Iterator[tuple[_Loop, Tensor, Tensor, int]]:
    """Yield the loop of each vertex, an operand and a result, and how many of both it has."""
    machine, operands, results, _, monoid, body = reducing
    firsts: dict[str, tuple[Tensor, Tensor]] = {}
    counts: dict[str, int] = {}
    for operand, result in zip(operands, results, strict=False):
        kind = operand.element_type if monoid else ""
        firsts.setdefault(kind, (operand, result))
        counts[kind] = counts.get(kind, 0) + 1
    for kind, (operand, result) in firsts.items():
        loop = _strided(monoid, combining(machine, operand.element_type, monoid, body))
        yield loop, operand, result, counts[kind] if monoid else 1


def _shared(
    machine: Machine,
    loop: _Loop,
    shape: Sequence[int],
    results: int,
    dimensions: Sequence[int],
    arrays: int,
) -> tuple[int, int]:
    """Return the cycles of the cheapest way to share the work, and the pieces of each output.

    `results`: the outputs of one array, those of each part where dimensions are reduced in parts.
    """
    outputs = prod(size for d, size in enumerate(shape) if d not in dimensions)
    outputs *= max(1, results // outputs)
    partials = over(prod(shape), outputs)
    outputs *= arrays
    inner = not dimensions or max(dimensions) == len(shape) - 1
    runs = _runs(shape, dimensions)
    cheapest = _cut(machine, loop, outputs, partials, runs, contiguous=inner)
    if not inner and prod(shape[max(dimensions) + 1 :]) == 1:
        # What is kept behind takes no room: both vertices can do it.
        cheapest = min(cheapest, _cut(machine, loop, outputs, partials, runs, contiguous=True))
    return cheapest


def summing_cycles(
    machine: Machine, element_type: str, outputs: NDArray[np.int64], partials: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the cycles of adding partials along a leading dimension, for each of many sizes.

    All workers share the outputs.
    """
    loop = _strided("add", combining(machine, element_type, "add", None))
    each = 3 + loop.step_slots * np.maximum(0, partials - 1)
    vectors = over(over(outputs, machine.tile.worker_contexts), loop.lanes)
    slots = 16 + vectors * (3 + loop.store_slots + each)
    cycles: NDArray[np.int64] = (
        machine.tile.supervisor_vertex_cycles + machine.tile.worker_contexts * slots
    )
    return cycles


def convolution_summing_work(machine: Machine, partials: Tensor, result: Tensor) -> TileWork:
    """Return the work of adding a convolution's partial sums along their leading dimensions."""
    kind, outputs = partials.element_type, result.elements
    if not outputs or kind not in _SUM_TYPES:
        # Of pieces in groups, these are counted where the pieces were.
        leading = range(max(1, len(partials.shape) - len(result.shape)))
        return reduce_work(Reducing(machine, [partials], [result], tuple(leading), "add"))
    pieces = np.array(partials.elements // outputs)
    kinds = kind, result.element_type
    cycles = int(convolution_summing_cycles(machine, kinds, np.array(outputs), pieces))
    # The vertex writes f16 and f32.
    is_written = result.element_type in _SUM_TYPES
    converted = 0 if is_written else conversion_cycles(machine, result.element_type, outputs)
    return TileWork(cycles + converted, converted)


def convolution_summing_cycles(
    machine: Machine,
    element_types: tuple[str, str],
    outputs: NDArray[np.int64],
    partials: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the cycles of adding a convolution's partial sums, for each of many sizes.

    `element_types`: of the partial sums and of the result. All workers share the outputs. Source:
    graphcore/poplibs: lib/poplin/PerformanceEstimation.hpp, lines 1560 to 1639. Partial sums are
    one variable here whatever their size, where poplin leaves large ones apart
    (lib/poplin/ConvReducePlan.hpp, line 16). Other types than f16 and f32 are those of any sum.
    """
    if element_types[0] not in _SUM_TYPES:
        return summing_cycles(machine, element_types[0], outputs, partials)
    half, half_out = (kind == "f16" for kind in element_types)
    contexts, width = machine.tile.worker_contexts, 8 if half else 4
    loads = over(width * (2 if half else 4), machine.tile.load_bytes_per_cycle)
    # Whole vectors lie side by side, those of the tile itself apart.
    store = (9 if half_out else 10) if half else (7 if half_out else 8)
    loops = over(outputs // width, contexts)
    single = contexts * (20 + (loads * np.maximum(0, partials - 1) + store) * loops) + 33
    # Else a pointer for each partial sum; the last few outputs take loops of their own.
    whole, rest = outputs // width, outputs % width
    tails = sum((rest >> bit) & 1 for bit in range(width.bit_length() - 1))
    turns, left = (whole + tails) // contexts, (whole + tails) % contexts
    tail = np.where((left > 0) & (rest > 0), 2 * partials + (11 if half else 13), 0)
    turns = turns + ((left > 0) & (rest == 0))
    store = (8 if half_out else 9) if half else (6 if half_out else 7)
    many = contexts * (32 + tail + ((loads + 1) * partials + store) * turns)
    return np.asarray(np.where(rest == 0, single, many), np.int64)


def _cut(
    machine: Machine, loop: _Loop, outputs: int, partials: int, runs: int, *, contiguous: bool
) -> tuple[int, int]:
    """Return the cycles of the cheapest way to share the work, and the pieces of each output.

    Outputs are dealt to them, or pieces of the outputs' partials, whose results a second vertex
    puts together: seven rows are two each at most, or each row's quarter and less.
    """
    contexts, supervisor = machine.tile.worker_contexts, machine.tile.supervisor_vertex_cycles

    def slots(outs: int, count: int) -> int:
        if contiguous:
            return loop.step_slots * outs * over(count, loop.lanes) + 12 * outs + 17
        separate = min(runs, max(1, count))
        each = 3 + loop.step_slots * max(0, over(count, separate) - 1)
        return 16 + over(outs, loop.lanes) * (3 + loop.store_slots + separate * each)

    dealt = slots(over(outputs, contexts), partials)
    best = shared_vertex_cycles(machine, supervisor, dealt), 1
    dealt_evenly = contexts * (1 if contiguous else loop.lanes)
    if outputs % dealt_evenly == 0 or outputs > _MOST_CUT * dealt_evenly:
        return best
    vectors = over(over(outputs, contexts), loop.lanes)
    for pieces in range(2, contexts + 1):
        share = over(outputs * pieces, contexts)
        first = shared_vertex_cycles(machine, supervisor, slots(share, over(partials, pieces)))
        second = 16 + vectors * (6 + loop.store_slots + loop.step_slots * (pieces - 1))
        both = first + shared_vertex_cycles(machine, supervisor, second)
        best = min(best, (both, pieces))
    return best


def _runs(shape: Sequence[int], dimensions: Sequence[int]) -> int:
    """Return how many stretches of evenly spaced partials each output has."""
    wanted = set(dimensions)
    first = max(wanted, default=0)
    while first - 1 in wanted:
        first -= 1
    return max(1, prod(shape[d] for d in wanted if d < first))
