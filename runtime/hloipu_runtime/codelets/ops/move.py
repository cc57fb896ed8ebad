"""Data movement: copy, transpose, reverse, slice, bit cast."""

from operator import itemgetter, methodcaller
from typing import ClassVar

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.placing import after_grid, delivered, first_start
from hloipu_runtime.codelets.core.straight import Straight, one_call
from hloipu_runtime.codelets.core.tensors import Array, Blocks, Tensor, Tensors
from hloipu_runtime.codelets.costs.moving import copy_work, runs_work, transpose_work
from hloipu_runtime.kernels.core import movement
from hloipu_runtime.kernels.elementwise.convert import bitcast_convert
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine


def every_dimension(rank: int) -> tuple[Index, ...]:
    """Return the indices of a tensor whose dimension d follows label d."""
    return tuple(Index(d) for d in range(rank))


@codelet
class Copy(Codelet):
    """Copies a tensor within each tile."""

    name: ClassVar[str] = "copy"
    rearranges: ClassVar[bool] = True
    whole_parts: ClassVar[bool] = True

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Split every dimension."""
        every = every_dimension(len(results[0].shape))
        return Indexing(results[0].shape, (every,), (every,))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Return the operand, or a copy in the result's array."""
        return [delivered(operands[0].data, results[0])]

    def straight(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return the operand."""
        return Straight({}, (), (0,))

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Charge a contiguous copy."""
        return copy_work(machine, results[0])

    def may_overwrite(self, operand: int) -> bool:
        """Onto itself there is nothing to copy."""
        return operand == 0


@codelet
class Transpose(Codelet):
    """Reorders dimensions: result dimension i is operand dimension `permutation[i]`."""

    name: ClassVar[str] = "transpose"
    rearranges: ClassVar[bool] = True
    whole_parts: ClassVar[bool] = True
    permutation: tuple[int, ...]

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Split every dimension; labels are those of the result."""
        shape = results[0].shape
        source = tuple(Index(self.permutation.index(d)) for d in range(len(shape)))
        return Indexing(shape, (source,), (every_dimension(len(shape)),))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Permute the axes behind the grid's."""
        source = operands[0]
        view = movement.transpose(source.data, after_grid(source.grid, self.permutation))
        return [delivered(view, results[0])]

    def straight(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return the view of whole tensors."""
        return one_call(methodcaller("transpose", self.permutation), 1, results[0].part)

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Charge a copy, moved runs or transposed matrices, as the permutation needs."""
        source = operands[0]
        return transpose_work(machine, source.element_type, source.shape, self.permutation)


@codelet
class Reverse(Codelet):
    """Flips dimensions."""

    name: ClassVar[str] = "reverse"
    rearranges: ClassVar[bool] = True
    dimensions: tuple[int, ...]

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Split the dimensions that are not flipped."""
        shape = results[0].shape
        kept = [d for d in range(len(shape)) if d not in self.dimensions]
        index = tuple(Index(kept.index(d)) if d in kept else ALL for d in range(len(shape)))
        return Indexing(tuple(shape[d] for d in kept), (index,), (index,))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Flip the axes behind the grid's."""
        source = operands[0]
        axes = [len(source.grid) + d for d in self.dimensions]
        return [delivered(movement.reverse(source.data, axes), results[0])]

    def straight(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return the view of whole tensors."""
        steps = [slice(None, None, -1 if d in self.dimensions else 1)
                 for d in range(len(results[0].part))]  # fmt: skip
        return one_call(itemgetter(movement.index_of(steps)), 1, results[0].part)

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Charge runs of what lies behind the last flipped dimension."""
        result = results[0]
        flipped = [d for d in self.dimensions if result.shape[d] != 1]
        run = Tensor("", result.shape[max(flipped, default=-1) + 1 :]).elements
        return runs_work(machine, result.element_type, result.elements, run)


@codelet
class StridedSlice(Codelet):
    """Takes elements `starts[d] + i * strides[d]` of dimension d, as many as the result has."""

    name: ClassVar[str] = "slice"
    rearranges: ClassVar[bool] = True
    starts: tuple[int, ...]
    strides: tuple[int, ...]

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Split every dimension; labels are those of the result."""
        source = tuple(
            Index(d, stride, start)
            for d, (start, stride) in enumerate(zip(self.starts, self.strides, strict=True))
        )
        shape = results[0].shape
        return Indexing(shape, (source,), (every_dimension(len(shape)),))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Slice the axes behind the grid's; parts begin at or before the first element taken."""
        source, result = operands[0], results[0]
        slices = [slice(None)] * len(source.grid)
        for d, (start, stride) in enumerate(zip(self.starts, self.strides, strict=True)):
            at = start + first_start(result, d) * stride - first_start(source, d)
            slices.append(slice(at, at + result.part[d] * stride, stride))
        return [delivered(source.data[movement.index_of(slices)], result)]

    def straight(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return the view of whole tensors."""
        shape = results[0].part
        slices = [
            slice(start, start + n * stride, stride)
            for start, n, stride in zip(self.starts, shape, self.strides, strict=True)
        ]
        return one_call(itemgetter(movement.index_of(slices)), 1, shape)

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Charge runs: elements of the last dimensions that are neighbours in the operand too."""
        result = results[0]
        run = 1
        for d in range(len(result.shape) - 1, -1, -1):
            if self.strides[d] != 1 and result.shape[d] != 1:
                break
            run *= result.shape[d]
            if result.shape[d] != operands[0].shape[d]:
                break
        return runs_work(machine, result.element_type, result.elements, run)


@codelet
class BitcastConvert(Codelet):
    """Reads bits as another type; of another width, it takes up or appends a last dimension."""

    name: ClassVar[str] = "bitcast-convert"
    source_type: str
    target_type: str

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Split the dimensions that both shapes have."""
        rank = min(len(operands[0].shape), len(results[0].shape))
        shape = results[0].shape[:rank]
        source, target = (
            every_dimension(rank) + (ALL,) * (len(tensor.shape) - rank)
            for tensor in (operands[0], results[0])
        )
        return Indexing(shape, (source,), (target,))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Convert all parts at once: the last dimension is whole in each."""
        converted = bitcast_convert(operands[0].data, self.source_type, self.target_type)
        return [delivered(converted, results[0])]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Charge a contiguous copy: in a tile's memory the bits are the same."""
        return copy_work(machine, results[0])
