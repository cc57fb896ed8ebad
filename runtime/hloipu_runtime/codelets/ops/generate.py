"""Codelets that make values out of nothing but where they are: counts, constants, unknown work."""

from typing import ClassVar

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.constants import value_of
from hloipu_runtime.codelets.core.labels import require
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, Tensor, Tensors
from hloipu_runtime.codelets.costs.elementwise_rates import vector_elements
from hloipu_runtime.codelets.costs.emulation import Slots, emulated
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.monoids import wrap_integer
from hloipu_runtime.kernels.core.movement import iota
from hloipu_runtime.kernels.core.rounding import round_to
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.machine.costs import TileWork, single_vertices_cycles
from hloipu_runtime.machine.model import Machine


@codelet
class Iota(Codelet):
    """Counts along one dimension; the counts of a part start where the part does."""

    name: ClassVar[str] = "iota"
    whole_parts: ClassVar[bool] = True
    dimension: int
    element_type: str

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return one label for each dimension."""
        return every_dimension(results[0])

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Count: a view that repeats, or the array of the block, written."""
        block = results[0]
        if block.grid or any(isinstance(x, np.ndarray) or x for x in block.starts):
            counts = _stored(indices_of(block, self.dimension), self.element_type)
            values = np.broadcast_to(counts, block.grid + block.part)
        else:
            values = iota(block.part, self.dimension, self.element_type)
        return [_placed(values, block.array)]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return 10 + 4 + 3 slots a vector for each worker (poplibs: popopsCycleEstimators.cpp)."""
        elements, contexts = results[0].elements, machine.tile.worker_contexts
        if not elements:
            return TileWork(0)
        share = -(-elements // contexts)
        plain = Slots(14 + 3 * -(-share // vector_elements(self.element_type)))
        slots, assumed = emulated(machine, plain, (self.element_type,), share)
        cycles = single_vertices_cycles(machine, [(min(elements, contexts), slots)])
        return TileWork(cycles, min(cycles, contexts * assumed))


@codelet
class Fill(Codelet):
    """Writes one value, given as exact text (`constants.py`), to every element."""

    name: ClassVar[str] = "fill"
    whole_parts: ClassVar[bool] = True
    value: str
    element_type: str

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return one label for each dimension."""
        return every_dimension(results[0])

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Return the value: a view that repeats it, or the array of the block, written."""
        block = results[0]
        value = value_of(self.value, self.element_type)
        return [_placed(np.broadcast_to(value, block.grid + block.part), block.array)]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the cycles of popops' fill (poplibs: lib/popops/PerformanceEstimation.cpp)."""
        elements, contexts = results[0].elements, machine.tile.worker_contexts
        if not elements:
            return TileWork(0)
        share = -(-elements // contexts)
        slots = _fill_slots(share, ELEMENT_TYPES[self.element_type].bits)
        return TileWork(single_vertices_cycles(machine, [(min(elements, contexts), slots)]))


def _fill_slots(elements: int, bits: int) -> int:
    """Return one worker's slots: words of 64 bits, or of 32 for a few bytes."""
    if bits >= 64:
        return 5 + elements * (bits // 64)
    if bits < 16:
        return 28 + elements // 4 if elements < 64 else 39 + elements // 8
    return 23 + elements // 2 if bits == 32 else 26 + elements // 4


def every_dimension(result: Tensor) -> Indexing:
    """Return the indexing of a codelet without operands: each dimension may be split."""
    return Indexing(result.shape, (), (tuple(Index(d) for d in range(len(result.shape))),))


def indices_of(block: Block, dimension: int) -> Array:
    """Return each element's index in the whole along one dimension, as s64.

    The array broadcasts against `grid + part`.
    """
    start = np.asarray(block.starts[dimension], np.int64)
    grid = (1,) * (len(block.grid) - start.ndim) + start.shape
    inner = [1] * len(block.part)
    inner[dimension] = block.part[dimension]
    counts = np.arange(block.part[dimension], dtype=np.int64)
    return start.reshape(*grid, *(1,) * len(inner)) + counts.reshape(inner)


def _stored(counts: Array, element_type: str) -> Array:
    """Return counts in storage form: integers wrap, floats are rounded once."""
    values = counts.astype(storage_dtype(element_type))
    if values.dtype == np.float32:
        return round_to(values, element_type)
    return wrap_integer(values, element_type)


def _placed(values: Array, out: Array | None) -> Array:
    if out is None:
        return values
    np.copyto(out, values)
    return out


@codelet
class OpaqueWork(Codelet):
    """Work that nobody describes, of a number of cycles that the user states.

    Takes one number of each operand, so that it follows them, and makes no number: NaN.
    """

    name: ClassVar[str] = "opaque"

    cycles: int
    """Of a call; none is known, and none is counted, of how many tiles share it."""

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return no labels: numbers in, a number out."""
        alone = all(tensor == Tensor("f32", ()) for tensor in (*operands, *results))
        require(alone and len(results) == 1 and self.cycles >= 0, "no cycles of one number")
        return Indexing((), ((),) * len(operands), ((),))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Return NaN: what it computes nobody knows."""
        return [np.full(results[0].grid + results[0].part, np.nan, np.float32)]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the cycles that the user states, which rest on nothing else."""
        return TileWork(self.cycles, self.cycles)
