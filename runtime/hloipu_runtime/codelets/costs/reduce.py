"""Cycles of reductions on one tile.

Formulas: graphcore/poplibs: lib/popops/reduction/CycleEstimationFunctions.cpp (strided and
contiguous vertices). Integers, emulated types and regions of several ops rest on no source.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.codelets.core.codelet import Tensor
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.costs.amp import conversion_cycles
from hloipu_runtime.codelets.costs.combining import Combining, combining
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork, shared_vertex_cycles
from hloipu_runtime.machine.model import Machine


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


def reduce_work(
    machine: Machine,
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    dimensions: Sequence[int],
    *,
    monoid: str,
    body: Expression | None,
) -> TileWork:
    """Return the work of reducing operands over dimensions, all workers sharing the outputs.

    `body` is the region where there is no monoid; it takes all operands at once. Fewer outputs
    than workers are cut along the reduced extent, and their parts added by a second vertex, where
    that pays.
    """
    shape = operands[0].shape
    inputs = prod(shape)
    outputs = prod(size for d, size in enumerate(shape) if d not in dimensions)
    pieces = results[0].elements // outputs if outputs else 1
    outputs *= max(1, pieces)
    if outputs <= 0:
        return TileWork(0)
    partials = over(inputs, outputs)
    inner = not dimensions or max(dimensions) == len(shape) - 1
    runs = _runs(shape, dimensions)
    loop = _strided(monoid, combining(machine, operands[0].element_type, monoid, body))
    cycles = _cycles(machine, loop, outputs, partials, runs, contiguous=inner)
    if not inner and prod(shape[max(dimensions) + 1 :]) == 1:
        # What is kept behind takes no room: both vertices can do it.
        other = _cycles(machine, loop, outputs, partials, runs, contiguous=True)
        cycles = min(cycles, other)
    converted = sum(
        conversion_cycles(machine, tensor.element_type, tensor.elements)
        for tensor in (*operands, *results)
        if tensor.element_type != "f16"
    )
    return TileWork(cycles + converted, converted + (cycles if loop.assumed else 0))


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
    found: NDArray[np.int64] = (
        machine.tile.supervisor_vertex_cycles + machine.tile.worker_contexts * slots
    )
    return found


def _cycles(
    machine: Machine, loop: _Loop, outputs: int, partials: int, runs: int, *, contiguous: bool
) -> int:
    """Return the cycles of the cheaper of two ways to share the work among the workers."""
    contexts, supervisor = machine.tile.worker_contexts, machine.tile.supervisor_vertex_cycles

    def slots(outs: int, count: int) -> int:
        if contiguous:
            return loop.step_slots * outs * over(count, loop.lanes) + 12 * outs + 17
        separate = min(runs, max(1, count))
        each = 3 + loop.step_slots * max(0, over(count, separate) - 1)
        return 16 + over(outs, loop.lanes) * (3 + loop.store_slots + separate * each)

    by_outputs = shared_vertex_cycles(machine, supervisor, slots(over(outputs, contexts), partials))
    workers = contexts // outputs
    if workers < 2:
        return by_outputs
    first = shared_vertex_cycles(machine, supervisor, slots(1, over(partials, workers)))
    second = 16 + over(outputs, loop.lanes) * (
        6 + loop.store_slots + loop.step_slots * (workers - 1)
    )
    return min(by_outputs, first + shared_vertex_cycles(machine, supervisor, second))


def _runs(shape: Sequence[int], dimensions: Sequence[int]) -> int:
    """Return how many stretches of evenly spaced partials each output has."""
    wanted = set(dimensions)
    first = max(wanted, default=0)
    while first - 1 in wanted:
        first -= 1
    return max(1, prod(shape[d] for d in wanted if d < first))
