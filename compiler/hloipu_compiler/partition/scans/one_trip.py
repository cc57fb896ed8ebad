"""One trip of a loop written out, with its counter as a constant."""

from hloipu_compiler.analysis.order import has_side_effect
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.ops import OPS
from hloipu_compiler.partition.scans.draft import EntryDraft, with_rows
from hloipu_compiler.partition.scans.loop_form import (
    CARRIED,
    READ,
    WRITTEN,
    StackedLoop,
    first_index,
)
from hloipu_compiler.passes.framework.rewriting import with_operands

_GTE = "get-tuple-element"
_SLICE = "dynamic-slice"
_RANDOM = frozenset(("rng", "rng-get-and-update-state", "rng-bit-generator"))


class OneTrip:
    """Writes trips of one loop out, one at a time."""

    def __init__(
        self, draft: EntryDraft, module: Module, loop: StackedLoop, op: Instruction
    ) -> None:
        self.draft = draft
        self.loop = loop
        self.x = op
        self.body = module.computation[op.attributes.text("body")]
        self.owner = {
            access: index
            for index, element in enumerate(loop.elements)
            for access in element.accesses
        }
        self.alike = self._alike()
        self.shared: dict[int, int] = {}
        """Where ops stand that are the same in all trips, once they have been written."""

    def written_out(self, trip: int, state: list[int]) -> tuple[list[int], dict[int, int]]:
        """Append a trip's ops; return what goes into the next one, and the rows written."""
        place: dict[int, int] = {}
        root = self.body.instructions[self.body.root]
        for position, op in enumerate(self.body.instructions):
            if (
                position in self.loop.known
                or op.parameter_number >= 0
                or position == self.body.root
            ):
                continue
            if op.opcode == _GTE and op.operands[0] == self.body.parameters[0]:
                place[position] = self._taken(op.attributes.integer("index"), trip, state)
            elif position in self.owner:
                place[position] = self._access(position, trip, place)
            elif self.alike[position] and position in self.shared:
                place[position] = self.shared[position]
            else:
                operands = tuple([self._value(i, trip, place) for i in op.operands])
                stem = f"{self.x.name}.trip_{trip}.{op.name}"
                moved = with_operands(op, operands)._replace(name=self.draft.names.fresh(stem))
                place[position] = self.draft.append(moved)
                if self.alike[position]:
                    self.shared[position] = place[position]
        after, written = list(state), {}
        for index, element in enumerate(self.loop.elements):
            if element.kind == CARRIED:
                after[index] = self._value(root.operands[index], trip, place)
            elif element.kind == WRITTEN:
                written[index] = place[root.operands[index]]
        return after, written

    def _alike(self) -> bytearray:
        """Return the ops that depend on constants alone, and so are the same in each trip."""
        is_alike = bytearray(len(self.body.instructions))
        for position, op in enumerate(self.body.instructions):
            if op.parameter_number >= 0 or op.attributes.called or op.opcode in _RANDOM:
                continue
            if has_side_effect(op) or op.opcode not in OPS or position == self.body.root:
                continue
            is_alike[position] = all(is_alike[i] for i in op.operands)
        return is_alike

    def _value(self, position: int, trip: int, place: dict[int, int]) -> int:
        """Return where a value of the body stands in the entry."""
        known = self.loop.known.get(position)
        if known is None:
            return place[position]
        return self.draft.number(int(known[trip]), self.body.instructions[position].shape)

    def _taken(self, index: int, trip: int, state: list[int]) -> int:
        """Return where an element stands: of a stack, the rows that this trip uses."""
        element = self.loop.elements[index]
        if element.kind not in (READ, WRITTEN):
            return state[index]
        first, last = self.loop.rows_of(index, trip, trip + 1)
        return self.draft.rows(state[index], element.axis, first, last)

    def _access(self, position: int, trip: int, place: dict[int, int]) -> int:
        """Append what reads or writes a row of the rows at hand; return where its value stands."""
        op = self.body.instructions[position]
        index = self.owner[position]
        axis = self.loop.elements[index].axis
        row = int(self.loop.rows[position][trip]) - self.loop.rows_of(index, trip, trip + 1)[0]
        stack = place[op.operands[0]]
        shape = self.draft.array(stack)
        whole = with_rows(shape, axis, 1).dimensions
        operands, result = [stack], op.shape
        if op.opcode == _SLICE:
            if op.attributes.integers("dynamic_slice_sizes") == whole:
                return self.draft.rows(stack, axis, row, row + 1)
        else:
            update = self._value(op.operands[1], trip, place)
            if self.draft.array(update).dimensions == whole == shape.dimensions:
                return update
            operands, result = [stack, update], shape
        for number, i in enumerate(op.operands[first_index(op) :]):
            if number == axis:
                operands.append(self.draft.number(row, self.body.instructions[i].shape))
            else:
                operands.append(self._value(i, trip, place))
        name = self.draft.names.fresh(f"{self.x.name}.trip_{trip}.{op.name}")
        moved = with_operands(op, tuple(operands))
        return self.draft.append(moved._replace(name=name, shape=result))
