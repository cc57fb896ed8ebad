"""Scan: an elementwise body called along one dimension, carrying values on."""

from math import prod
from typing import ClassVar

from hloipu_runtime.codelets.core.codelet import Codelet, Indexing, codelet
from hloipu_runtime.codelets.core.expression import region
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.labels import batch_labels, require
from hloipu_runtime.codelets.core.tensors import Array, Blocks, Tensors
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.scan import scan
from hloipu_runtime.machine.costs import TileWork, shared_vertex_cycles
from hloipu_runtime.machine.model import Machine

_NODE_SLOTS = 5
_STEP_SLOTS = 10
_VERTEX_CYCLES = 11
_VERTEX_SLOTS = 20


@codelet
class Scan(Codelet):
    """Computes (inputs.., carries..) to (outputs stacked.., last carries..).

    Inputs and stacked outputs are of one shape; carries lack the scanned dimension.
    """

    name: ClassVar[str] = "scan"

    dimension: int
    body: Expression
    """Of (slices.., carries..), giving (outputs.., carries..)."""
    inputs: int
    outputs: int
    length: int
    is_reverse: bool = False

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Every other dimension may be split."""
        carried = operands[self.inputs :]
        if self.inputs or self.outputs:
            shape = operands[0].shape if self.inputs else results[0].shape
        else:
            first = carried[0].shape
            shape = (*first[: self.dimension], self.length, *first[self.dimension :])
        require(shape[self.dimension] == self.length >= 0, "another length")
        sizes, each = batch_labels(shape, (self.dimension,))
        rest = each[: self.dimension] + each[self.dimension + 1 :]
        return Indexing(
            sizes,
            (each,) * self.inputs + (rest,) * len(carried),
            (each,) * self.outputs + (rest,) * (len(results) - self.outputs),
        )

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Call the body at each place, for all tiles at once."""
        types = self.body.result_types
        kinds = [
            ((*r.grid, *r.part), storage_dtype(t))
            for r, t in zip(results[: self.outputs], types, strict=False)
        ]
        arrays = [block.data for block in operands]
        with quietly():
            stacked, last = scan(
                arrays[: self.inputs],
                arrays[self.inputs :],
                len(results[0].grid) + self.dimension,
                region(self.body),
                kinds,
                length=self.length,
                is_reverse=self.is_reverse,
            )
        return [*stacked, *last]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of columns shared by all workers, one step after the other."""
        shape = list((operands if self.inputs else results)[0].shape)
        if self.inputs or self.outputs:
            del shape[self.dimension]
        columns = prod(shape)
        if not columns or not self.length:
            return TileWork(0)
        each = -(-columns // machine.tile.worker_contexts)
        step = _STEP_SLOTS + each * _NODE_SLOTS * max(1, len(self.body.nodes))
        cycles = shared_vertex_cycles(machine, _VERTEX_CYCLES, _VERTEX_SLOTS + self.length * step)
        return TileWork(cycles, cycles)
