"""Recognises counted loops over stacked arrays: counter, carried values, rows read and written.

An element of the state is the counter, a stack that the body reads a row of in each trip, a stack
that it writes a row of, something that it reads whole and never changes, or a plain value that each
trip makes anew. Rows are found by computing the index of each trip.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hloipu_compiler.analysis.linear_form import Frame, linear_form
from hloipu_compiler.analysis.trip_count import counted_loop
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape, sizes_of
from hloipu_compiler.partition.scans.trip_values import Values, number_type, table_of, trip_values
from hloipu_compiler.passes.framework.attribute_edits import CONTROL

COUNTER, PASSED, READ, WRITTEN, CARRIED = "counter", "passed", "read", "written", "carried"
MOST_TRIPS = 4096
_GTE = "get-tuple-element"


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a loop's state."""

    kind: str
    axis: int = -1
    """Of a stack: the axis along which it has rows."""
    accesses: tuple[int, ...] = ()
    """Positions in the body that read or write rows, in order."""


@dataclass(frozen=True)
class StackedLoop:
    """A loop that runs a known number of times, and its state."""

    position: int
    """In the entry."""
    name: str
    trips: int
    counter: int
    """Index of the element that tells when the loop ends."""
    counts: Mapping[int, tuple[int, int]]
    """Elements that count: where from, and by how much a trip."""
    elements: tuple[Element, ...]
    known: Mapping[int, Values]
    """Integers of the body, by position, for each trip."""
    rows: Mapping[int, Values]
    """Of each access, the row for each trip."""

    def count(self, element: int, trip: int) -> int:
        """Return what an element that counts is at the beginning of a trip."""
        start, step = self.counts[element]
        return start + trip * step

    def rows_of(self, element: int, begin: int, end: int) -> tuple[int, int]:
        """Return which rows [first, last) of a stack the trips [begin, end) use."""
        rows = [self.rows[i][begin:end] for i in self.elements[element].accesses]
        return int(min(x.min() for x in rows)), int(max(x.max() for x in rows)) + 1


def stacked_loop(module: Module, caller: Computation, position: int) -> StackedLoop | None:
    """Return the form of a `while` of the entry; None where it cannot be split by its trips."""
    op = caller.instructions[position]
    counted = counted_loop(module, caller, op)
    if counted is None or not 2 <= counted.trips <= MOST_TRIPS or len(counted.counter) != 1:
        return None
    body = module.computation[op.attributes.text("body")]
    if not _is_plain(caller, position, body):
        return None
    counts = _counts(module, caller, op, body)
    trips = np.arange(counted.trips)
    numbers = {index: start + step * trips for index, (start, step) in counts.items()}
    known = trip_values(body, numbers, _tables(caller, op, body), counted.trips)
    finding = _Finding(body, known, counts)
    shape = op.shape
    if not isinstance(shape, TupleShape):
        return None
    elements = tuple(finding.element(i) for i in range(len(shape.elements)))
    return StackedLoop(
        position, op.name, counted.trips, counted.counter[0], counts, elements, known, finding.rows
    )  # fmt: skip


def _is_plain(caller: Computation, position: int, body: Computation) -> bool:
    """Whether a loop's state is a tuple that is put together before and in the body."""
    op = caller.instructions[position]
    if CONTROL in op.attributes or caller.instructions[op.operands[0]].opcode != "tuple":
        return False
    if not isinstance(op.shape, TupleShape) or op.shape.has_buffer:
        return False
    root, parameter = body.instructions[body.root], body.parameters[0]
    given = all(body.instructions[user].opcode == _GTE for user in body.users[parameter])
    free = not any(CONTROL in y.attributes for y in body.instructions)
    return given and free and root.opcode == "tuple" and not body.users[body.root]


def _counts(
    module: Module, caller: Computation, op: Instruction, body: Computation
) -> dict[int, tuple[int, int]]:
    start_and_step = {}
    for index, shape in enumerate(op.shape.elements if isinstance(op.shape, TupleShape) else ()):
        if number_type(shape) is None:
            continue
        start = linear_form(module, Frame(caller), op.operands[0], (index,))
        change = linear_form(module, Frame(body), body.root, (index,))
        if start is None or start.carried is not None or change is None:
            continue
        if change.carried == (index,):
            start_and_step[index] = (start.constant, change.constant)
    return start_and_step


def _tables(caller: Computation, op: Instruction, body: Computation) -> dict[int, Values]:
    """Return the elements of the state that are a row of numbers and stay as they are."""
    given = caller.instructions[op.operands[0]].operands
    root = body.instructions[body.root]
    table_by_element = {}
    for user in body.users[body.parameters[0]]:
        index = body.instructions[user].attributes.integer("index")
        table = table_of(caller.instructions[given[index]])
        if table is not None and root.operands[index] == user:
            table_by_element[index] = table
    return table_by_element


class _Finding:
    """Goes through the elements of one loop's state."""

    def __init__(
        self, body: Computation, known: Mapping[int, Values], counts: Mapping[int, tuple[int, int]]
    ) -> None:
        self.body = body
        self.known = known
        self.counts = counts
        self.root = body.instructions[body.root]
        self.taken: dict[int, list[int]] = {}
        for user in body.users[body.parameters[0]]:
            index = body.instructions[user].attributes.integer("index")
            self.taken.setdefault(index, []).append(user)
        self.rows: dict[int, Values] = {}

    def element(self, index: int) -> Element:
        if self.counts.get(index, (0, 0))[1]:
            return Element(COUNTER)
        taken = self.taken.get(index, [])
        last = self.root.operands[index]
        if last in taken:
            return self._stack(READ, taken, index) or Element(PASSED)
        return self._stack(WRITTEN, taken, index) or Element(CARRIED)

    def _stack(self, kind: str, taken: list[int], index: int) -> Element | None:
        """Return an element of which each trip uses rows only; `taken`: where it is taken."""
        accesses = self._accesses(taken, index)
        if not accesses:
            return None
        axes = set(range(16)).intersection(*(self._axes(i) for i in accesses))
        if not axes:
            return None
        axis = min(axes)
        rows = {i: self.known[self._index(i, axis)].astype(np.int64) for i in accesses}
        writes = [i for i in accesses if self.body.instructions[i].opcode == _WRITE]
        if bool(writes) != (kind == WRITTEN):
            return None
        if writes and not _is_one_row_a_trip(list(rows.values())):
            return None
        self.rows |= rows
        return Element(kind, axis, tuple(accesses))

    def _accesses(self, taken: list[int], index: int) -> list[int] | None:
        """Return the ops that read or write parts of a stack, or None where it is used whole."""
        versions = list(taken)
        known = set(taken)
        accesses = []
        for version in versions:
            for user in self.body.users[version]:
                op = self.body.instructions[user]
                if user == self.body.root:
                    places = [n for n, i in enumerate(op.operands) if i == version]
                    if places != [index]:
                        return None
                    continue
                if op.opcode not in (_READ, _WRITE) or op.operands.count(version) != 1:
                    return None
                if op.operands[0] != version:
                    return None
                accesses.append(user)
                if op.opcode == _WRITE and user not in known:
                    known.add(user)
                    versions.append(user)
        return sorted(accesses) if self.root.operands[index] in known else None

    def _axes(self, access: int) -> list[int]:
        op = self.body.instructions[access]
        shape = self.body.instructions[op.operands[0]].shape
        sizes = _sizes(self.body, op)
        first = len(op.operands) - len(sizes)
        if not isinstance(shape, ArrayShape) or not shape.is_static:
            return []
        if first != (1 if op.opcode == _READ else 2):
            return []  # an older form, with all indices in one array
        axes = []
        for axis, size in enumerate(sizes):
            values = self.known.get(op.operands[first + axis])
            if size != 1 or values is None or values[0] == values[-1]:
                continue
            if values.min() >= 0 and values.max() < shape.dimensions[axis]:
                axes.append(axis)
        return axes

    def _index(self, access: int, axis: int) -> int:
        op = self.body.instructions[access]
        return op.operands[first_index(op) + axis]


_READ, _WRITE = "dynamic-slice", "dynamic-update-slice"


def first_index(op: Instruction) -> int:
    """Return which operand of a dynamic-slice or dynamic-update-slice is its first index."""
    return 1 if op.opcode == _READ else 2


def _sizes(body: Computation, op: Instruction) -> tuple[int, ...]:
    if op.opcode == _READ:
        return op.attributes.integers("dynamic_slice_sizes")
    return sizes_of(body.instructions[op.operands[1]].shape)


def _is_one_row_a_trip(rows: list[Values]) -> bool:
    first = rows[0]
    steps = np.diff(first)
    return bool(abs(steps[0]) == 1 and (steps == steps[0]).all()) and all(
        np.array_equal(first, other) for other in rows[1:]
    )
