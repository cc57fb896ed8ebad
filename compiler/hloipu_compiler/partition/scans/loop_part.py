"""A loop over a range of trips, on the rows of these trips alone, and the new entry around it."""

from dataclasses import replace

import numpy as np

from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes, SliceRange
from hloipu_compiler.ir.graph import Computation, Instruction, Module, element_of
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, array_shape
from hloipu_compiler.partition.scans.loop_form import (
    CARRIED,
    COUNTER,
    READ,
    WRITTEN,
    StackedLoop,
    first_index,
)
from hloipu_compiler.partition.scans.trip_values import number_type
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import Rewriting, with_operands
from hloipu_runtime.element_types import PRED


class EntryDraft(Rewriting):
    """The entry being written anew, with loops in parts."""

    def __init__(self, module: Module) -> None:
        super().__init__(module.entry)
        self.computations: list[Computation] = []
        self.computation_names = Names(module.computation)
        self.metadata = ""
        """Of what helps to run the loop at hand."""
        self.cuts: set[str] = set()
        """Names of the ops that take rows of arrays, or join them."""
        self._known: dict[object, int] = {}

    def add(
        self,
        stem: str,
        opcode: str,
        shape: Shape,
        operands: tuple[int, ...] = (),
        attributes: Attributes = NO_ATTRIBUTES,
    ) -> int:
        """Append a new instruction."""
        name = self.fresh_name(stem)
        return self.append(Instruction(name, opcode, shape, operands, attributes, self.metadata))

    def array(self, position: int) -> ArrayShape:
        """Return the shape of an array; raises TypeError for anything else."""
        return array_shape(self.made[position].shape)

    def number(self, value: int, shape: Shape) -> int:
        """Return where an integer or truth value stands as a constant."""
        key = ("number", value, shape)
        if key not in self._known:
            constant = number(self.fresh_name(f"number.{value}"), value, shape)
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


_GTE = "get-tuple-element"


def part(
    draft: EntryDraft,
    module: Module,
    loop: StackedLoop,
    op: Instruction,
    begin: int,
    end: int,
    state: list[int],
) -> tuple[list[int], dict[int, int]]:
    """Append the loop over trips [begin, end); `op`: the whole loop, `state`: what goes into it.

    Return what goes into the next part, and the rows that were written, by element.
    """
    given, firsts = list(state), {}
    for index, element in enumerate(loop.elements):
        if element.kind == COUNTER:
            kind = draft.array(state[index])
            given[index] = draft.number(loop.count(index, begin), kind)
        elif element.kind in (READ, WRITTEN):
            first, last = loop.rows_of(index, begin, end)
            firsts[index] = first
            given[index] = draft.rows(state[index], element.axis, first, last)
    shapes = TupleShape(tuple(draft.made[i].shape for i in given))
    stem = f"{op.name}.trips_{begin}_{end}"
    body = _body(draft, module.computation[op.attributes.text("body")], loop, shapes, firsts, stem)
    condition = _condition(draft, loop, shapes, end, stem)
    draft.computations += [condition, body]
    before = draft.add(f"{stem}.start", "tuple", shapes, tuple(given))
    names = (condition.name, body.name)
    called = Attributes({"condition": names[0], "body": names[1]}, names)
    at = draft.add(stem, "while", shapes, (before,), called)
    after, written = list(state), {}
    for index, element in enumerate(loop.elements):
        if element.kind not in (CARRIED, WRITTEN):
            continue
        taken = draft.add(
            f"{stem}.{index}", _GTE, shapes.elements[index], (at,), Attributes({"index": index})
        )
        if element.kind == CARRIED:
            after[index] = taken
        else:
            written[index] = taken
    return after, written


def _condition(
    draft: EntryDraft, loop: StackedLoop, shapes: TupleShape, end: int, stem: str
) -> Computation:
    """Return what tells that the counter has not yet come to its end."""
    kind = shapes.elements[loop.counter]
    state = Instruction("state", "parameter", shapes, parameter_number=0)
    counter = element_of("counter", 0, loop.counter, kind)
    stop = number("stop", loop.count(loop.counter, end), kind)
    direction = Attributes({"direction": "LT" if loop.counts[loop.counter][1] > 0 else "GT"})
    compare = Instruction("goes_on", "compare", ArrayShape(PRED), (1, 2), direction)
    name = draft.computation_names.fresh(f"{stem}.condition")
    return Computation(name, (state, counter, stop, compare), 3)


def _body(
    draft: EntryDraft,
    old: Computation,
    loop: StackedLoop,
    shapes: TupleShape,
    firsts: dict[int, int],
    stem: str,
) -> Computation:
    owner = {
        access: index for index, element in enumerate(loop.elements) for access in element.accesses
    }
    written = Rewriting(old)
    shifted: dict[tuple[int, int], int] = {}
    for position, op in enumerate(old.instructions):
        operands = [written.place[i] for i in op.operands]
        shape = op.shape
        if op.parameter_number >= 0 or position == old.root:
            shape = shapes
        elif op.opcode == _GTE and op.operands[0] == old.parameters[0]:
            shape = shapes.elements[op.attributes.integer("index")]
        elif position in owner:
            element = owner[position]
            number_at = first_index(op) + loop.elements[element].axis
            key = (operands[number_at], firsts[element])
            if key not in shifted:
                shifted[key] = _shifted(written, *key)
            operands[number_at] = shifted[key]
            if op.opcode == "dynamic-update-slice" and isinstance(shape, ArrayShape):
                stack = written.shape(operands[0])
                axis = loop.elements[element].axis
                if isinstance(stack, ArrayShape):
                    shape = with_rows(shape, axis, stack.dimensions[axis])
        moved = with_operands(op, tuple(operands))
        moved = moved if shape is op.shape else moved._replace(shape=shape)
        written.place.append(written.append(moved))
    return replace(written.finish(), name=draft.computation_names.fresh(f"{stem}.body"))


def _shifted(body: Rewriting, index: int, first: int) -> int:
    """Return where an index stands that counts from the first row at hand."""
    if first == 0:
        return index
    shape = body.shape(index)
    row = body.append(number(body.fresh_name(f"first_row.{first}"), first, shape))
    return body.append(Instruction(body.fresh_name("row"), "subtract", shape, (index, row)))
