"""Splits a loop over stacked arrays into loops over ranges of trips.

What a loop reads rows of goes into each part as those rows alone (`slice`), what it writes rows of
comes out as those rows, and what the whole loop gave is their `concatenate`. A part of one trip is
written out, with its counter a constant. Values are the same to the bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hloipu_compiler.analysis.order import has_side_effect
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.ops import OPS
from hloipu_compiler.partition.scans.loop_form import (
    CARRIED,
    COUNTER,
    READ,
    WRITTEN,
    StackedLoop,
    first_index,
)
from hloipu_compiler.partition.scans.loop_part import EntryDraft, part, with_rows
from hloipu_compiler.passes.framework.rewriting import with_operands
from hloipu_compiler.passes.inline_calls import inlined

Boundaries = Sequence[int]
"""Trips at which parts begin, and where the last one ends: from 0 to all trips."""


@dataclass(frozen=True, slots=True)
class Split:
    """A module whose loops are in parts, and where each part stands."""

    module: Module
    parts: Mapping[str, tuple[str, int, int]]
    """Name of an op of the entry that computes for trips of a loop -> the loop's name, the first
    trip, and the one after the last."""
    cuts: frozenset[str]
    """Names of the ops of the entry that take rows of arrays, or join them."""


def split_loops(
    module: Module, loops: Sequence[StackedLoop], boundaries: Mapping[str, Boundaries]
) -> Split:
    """Return the module with its loops in parts; those without boundaries stay as they are."""
    chosen = {loop.position: loop for loop in loops if len(boundaries.get(loop.name, ())) > 2}
    if not chosen:
        return Split(module, {}, frozenset())
    splitting = _Splitting(module, chosen, boundaries)
    return splitting.split()


class _Splitting:
    """The entry being written anew."""

    def __init__(
        self,
        module: Module,
        chosen: Mapping[int, StackedLoop],
        boundaries: Mapping[str, Boundaries],
    ) -> None:
        self.module = module
        self.entry = module.entry
        self.chosen = chosen
        self.boundaries = boundaries
        self.draft = EntryDraft(module)
        self.parts: dict[str, tuple[str, int, int]] = {}
        self.place = self.draft.place

    def split(self) -> Split:
        left_out = self._spare_tuples()
        outs: dict[int, _Outcome] = {}
        for position, op in enumerate(self.entry.instructions):
            if position in self.chosen:
                outs[position] = self._loop(self.chosen[position])
                is_whole = self._is_taken_whole(position)
                self.place.append(self._whole(op, outs[position]) if is_whole else -1)
            elif position in left_out:
                self.place.append(-1)
            elif op.opcode == "get-tuple-element" and op.operands[0] in outs:
                index = op.attributes.integer("index")
                self.place.append(outs[op.operands[0]].value(index))
            else:
                self.draft.keep(op)
        entry = replace(
            self.entry, instructions=tuple(self.draft.made), root=self.place[self.entry.root]
        )
        others = [c for c in self.module.computations if c.name != self.entry.name]
        whole = (*others, *self.draft.computations, entry)
        module = replace(self.module, computations=whole, entry_position=len(whole) - 1)
        return Split(inlined(module), self.parts, frozenset(self.draft.cuts))

    def _is_taken_whole(self, position: int) -> bool:
        """Whether somebody reads more of a loop's result than single elements."""
        instructions = self.entry.instructions
        users = (instructions[user].opcode for user in self.entry.users[position])
        return position == self.entry.root or any(x != "get-tuple-element" for x in users)

    def _whole(self, op: Instruction, outcome: "_Outcome") -> int:
        """Return where all that a loop gave stands as one tuple."""
        elements = tuple(outcome.value(n) for n in range(len(outcome.begun)))
        return self.draft.add(f"{op.name}.whole", "tuple", op.shape, elements)

    def _spare_tuples(self) -> set[int]:
        """Return the tuples that nothing reads but loops that come in parts."""
        spare = set()
        for position in self.chosen:
            given = self.entry.instructions[position].operands[0]
            users = self.entry.users[given]
            if all(user in self.chosen for user in users) and given != self.entry.root:
                spare.add(given)
        return spare

    def _loop(self, loop: StackedLoop) -> "_Outcome":
        op = self.entry.instructions[loop.position]
        given = self.entry.instructions[op.operands[0]].operands
        state = [self.place[i] for i in given]
        self.draft.metadata = op.metadata
        outcome = _Outcome(self.draft, loop, op, list(state))
        one_trip = OneTrip(self.draft, self.module, loop, op)
        for begin, end in pairwise(self.boundaries[loop.name]):
            before = len(self.draft.made)
            if end - begin == 1:
                state, written = one_trip.written_out(begin, state)
            else:
                state, written = part(self.draft, self.module, loop, op, begin, end, state)
            for instruction in self.draft.made[before:]:
                self.parts[instruction.name] = (loop.name, begin, end)
            for index, piece in written.items():
                outcome.add(index, begin, end, piece)
        outcome.state = state
        return outcome


class _Outcome:
    """What a loop in parts gave."""

    def __init__(
        self, draft: EntryDraft, loop: StackedLoop, op: Instruction, state: list[int]
    ) -> None:
        self.draft = draft
        self.loop = loop
        self.metadata = op.metadata
        self.begun = state
        self.state = state
        self.pieces: dict[int, list[tuple[int, int, int]]] = {}
        self.values: dict[int, int] = {}

    def add(self, index: int, begin: int, end: int, piece: int) -> None:
        """Take note of the rows of a stack that some trips wrote."""
        first, last = self.loop.rows_of(index, begin, end)
        self.pieces.setdefault(index, []).append((first, last, piece))

    def value(self, index: int) -> int:
        """Return where an element of the loop's result stands."""
        if index not in self.values:
            self.draft.metadata = self.metadata
            self.values[index] = self._value(index)
        return self.values[index]

    def _value(self, index: int) -> int:
        loop, element = self.loop, self.loop.elements[index]
        if element.kind == COUNTER:
            shape = self.draft.made[self.begun[index]].shape
            return self.draft.number(loop.count(index, loop.trips), shape)
        if element.kind == CARRIED:
            return self.state[index]
        if element.kind != WRITTEN:
            return self.begun[index]
        pieces = sorted(self.pieces[index])
        whole, axis = self.begun[index], element.axis
        count = self.draft.array(whole).dimensions[axis]
        joined = [piece for _, _, piece in pieces]
        if pieces[0][0] > 0:
            joined.insert(0, self.draft.rows(whole, axis, 0, pieces[0][0]))
        if pieces[-1][1] < count:
            joined.append(self.draft.rows(whole, axis, pieces[-1][1], count))
        return self.draft.joined(joined, axis, self.draft.array(whole))


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
                place[position] = self._state_element(op.attributes.integer("index"), trip, state)
            elif position in self.owner:
                place[position] = self._access(position, trip, place)
            elif self.alike[position] and position in self.shared:
                place[position] = self.shared[position]
            else:
                operands = tuple([self._value(i, trip, place) for i in op.operands])
                stem = f"{self.x.name}.trip_{trip}.{op.name}"
                moved = with_operands(op, operands)._replace(name=self.draft.fresh_name(stem))
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

    def _state_element(self, index: int, trip: int, state: list[int]) -> int:
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
        name = self.draft.fresh_name(f"{self.x.name}.trip_{trip}.{op.name}")
        moved = with_operands(op, tuple(operands))
        return self.draft.append(moved._replace(name=name, shape=result))
