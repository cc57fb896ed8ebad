"""The new entry under construction: its ops, and the computations of its loops."""

from dataclasses import replace

import numpy as np

from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes, SliceRange
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, Shape, array_shape
from hloipu_compiler.partition.scans.trip_values import number_type
from hloipu_compiler.passes.framework.names import Names


class EntryDraft:
    """What has been written so far."""

    def __init__(self, module: Module) -> None:
        self.made: list[Instruction] = []
        self.computations: list[Computation] = []
        self.names = Names(op.name for op in module.entry.instructions)
        self.computation_names = Names(module.computation)
        self.metadata = ""
        """Of what helps to run the loop at hand."""
        self.cuts: set[str] = set()
        """Names of the ops that take rows of arrays, or join them."""
        self._known: dict[object, int] = {}

    def append(self, op: Instruction) -> int:
        """Append an instruction as it stands."""
        self.made.append(op)
        return len(self.made) - 1

    def add(
        self,
        stem: str,
        opcode: str,
        shape: Shape,
        operands: tuple[int, ...] = (),
        attributes: Attributes = NO_ATTRIBUTES,
    ) -> int:
        """Append a new instruction."""
        name = self.names.fresh(stem)
        return self.append(Instruction(name, opcode, shape, operands, attributes, self.metadata))

    def array(self, position: int) -> ArrayShape:
        """Return the shape of an array; raises TypeError for anything else."""
        return array_shape(self.made[position].shape)

    def number(self, value: int, shape: Shape) -> int:
        """Return where an integer or truth value stands as a constant."""
        key = ("number", value, shape)
        if key not in self._known:
            constant = number(self.names.fresh(f"number.{value}"), value, shape)
            self._known[key] = self.append(constant)
        return self._known[key]

    def rows(self, position: int, axis: int, first: int, last: int) -> int:
        """Return where rows [first, last) of an array along an axis stand."""
        shape = self.array(position)
        if (first, last) == (0, shape.dimensions[axis]):
            return position
        key = ("rows", position, axis, first, last)
        if key not in self._known:
            self._known[key] = self._rows(position, axis, first, last)
        return self._known[key]

    def _rows(self, position: int, axis: int, first: int, last: int) -> int:
        op, shape = self.made[position], self.array(position)
        part = with_rows(shape, axis, last - first)
        stem = f"{op.name}.rows_{first}_{last}"
        if op.opcode == "broadcast" and axis not in op.attributes.integers("dimensions"):
            return self.add(stem, "broadcast", part, op.operands, op.attributes)
        ranges = [SliceRange(0, size) for size in shape.dimensions]
        ranges[axis] = SliceRange(first, last)
        at = self.add(stem, "slice", part, (position,), Attributes({"slice": tuple(ranges)}))
        self.cuts.add(self.made[at].name)
        return at

    def joined(self, pieces: list[int], axis: int, shape: ArrayShape) -> int:
        """Return where pieces stand joined along an axis."""
        if len(pieces) == 1:
            return pieces[0]
        stem = f"{self.made[pieces[0]].name}.joined"
        joining = Attributes({"dimensions": (axis,)})
        at = self.add(stem, "concatenate", shape, tuple(pieces), joining)
        self.cuts.add(self.made[at].name)
        return at


def with_rows(shape: ArrayShape, axis: int, count: int) -> ArrayShape:
    """Return an array's shape with another number of rows along an axis."""
    sizes = (*shape.dimensions[:axis], count, *shape.dimensions[axis + 1 :])
    return replace(shape, dimensions=sizes)


def number(name: str, value: int, shape: Shape) -> Instruction:
    """Return a constant of one integer or truth value; raises TypeError for another shape."""
    kind = number_type(shape)
    if kind is None or not isinstance(shape, ArrayShape):
        raise TypeError(f"{name} is not a number")
    array = np.full(shape.dimensions, value, kind)
    array.flags.writeable = False
    return Instruction(name, "constant", shape, literal=Literal(array=array))
