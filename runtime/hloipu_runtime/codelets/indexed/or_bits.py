"""Joins candidates by a bitwise or: one part has each element's bits."""

from typing import Any, ClassVar, cast

import numpy as np

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Indexing, codelet
from hloipu_runtime.codelets.core.placing import delivered
from hloipu_runtime.codelets.core.tensors import Array, Blocks, OnArrays, Tensors
from hloipu_runtime.codelets.costs.moving import NO_WORK, packed_bytes
from hloipu_runtime.codelets.ops.move import every_dimension
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork, shared_vertex_cycles
from hloipu_runtime.machine.model import Machine


@codelet
class OrBits(Codelet):
    """Combines the parts along the leading dimension by a bitwise or of their bits.

    Where at most one part differs from zero bits, that one is the result, exactly: NaN payloads
    and signed zeros too. Elements wider or narrower in a tile's memory than in an array here are
    the same under it, since zero bits are zero in both.
    """

    name: ClassVar[str] = "or-bits"

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Split the result; the parts come to each tile."""
        every = every_dimension(len(results[0].shape))
        return Indexing(results[0].shape, ((ALL, *every),), (every,))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Or the bits of the arrays."""
        source = operands[0]
        bits = _as_bits(source.data)
        axis = len(source.grid)
        out = np.bitwise_or.reduce(bits, axis=axis)
        shape = (*source.grid, *source.part[1:])
        return [delivered(np.asarray(out).view(source.data.dtype).reshape(shape), results[0])]

    def on_arrays(self, operands: Blocks, results: Blocks) -> OnArrays | None:
        """Return the reduction of the very bits."""
        arrays = [_as_bits(block.data) for block in (*operands, *results)]
        axis, reduce = len(operands[0].grid), cast(Any, np.bitwise_or.reduce)
        parts, joined = arrays
        if parts.itemsize != operands[0].data.itemsize or np.may_share_memory(parts, joined):
            return None
        return OnArrays(lambda: reduce(arrays[0], axis, None, arrays[1]), arrays, (0, 1))

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Charge a strided reduction of 64-bit words, which is assumed of an or.

        graphcore/poplibs: lib/popops/reduction/CycleEstimationFunctions.cpp, with one stride.
        """
        parts, result = operands[0].shape[0], results[0]
        if not result.elements:
            return NO_WORK
        words = over(packed_bytes(result.element_type, result.elements), 8)
        each = over(words, machine.tile.worker_contexts)
        slots = 16 + each * (3 + 4 + 3 + max(0, parts - 1))
        cycles = shared_vertex_cycles(machine, machine.tile.supervisor_vertex_cycles, slots)
        return TileWork(cycles, cycles)


def _as_bits(x: Array) -> Array:
    """View an array as unsigned integers; of what is wider than 64 bits, two at the end."""
    if x.dtype.kind == "b":
        return x.view(np.uint8)
    if x.dtype.itemsize > 8:
        pairs = np.ascontiguousarray(x)[..., np.newaxis]
        return pairs.view(np.uint64)
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))
