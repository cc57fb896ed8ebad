"""Cycles and code of a vertex generated for a whole expression: its loop over a tile's elements.

A worker takes its share either in the order of the elements, or column by column: then what
repeats down a column stays in registers, as an operand of popops's BroadcastVectorInner1D does.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hloipu_runtime.codelets.core.code_sizes import SHARED_FRAME_BYTES
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.costs.elementwise_rates import rate_of, vector_elements
from hloipu_runtime.codelets.costs.emulation import Slots, conversion_slots
from hloipu_runtime.codelets.costs.issuing import Issue, load_issue, op_issue, packing_issue
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork, shared_vertex_cycles
from hloipu_runtime.machine.model import Machine

_SUPERVISOR = 11
_PROLOGUE = 30
"""Assumed."""
_ROW = 7
"""Around the loop over a row that has a number of its own, as of popops's
BroadcastVectorOuterByRow1D on whole vectors."""
_COLUMNS, _COLUMN = 17, 8
"""Of going column by column: before the first one, and for each, as popops's
BroadcastVectorInner1D (lib/popops/PerformanceEstimation.cpp)."""
COLUMN_REGISTERS = 6
"""Vectors of a column that stay in registers, of the eight that there are (a0:1 to a14:15); the
others are for what is loaded and computed. Assumed."""


class Repeats(NamedTuple):
    """How an operand repeats within the result, as three factors of the result's elements.

    It runs through `inner` trailing elements, again for each of `rows`, for each of `slices`; an
    operand that goes on only every `rows` elements has an `inner` of 1.
    """

    slices: int
    rows: int
    inner: int

    @property
    def is_scalar(self) -> bool:
        """Whether the operand is one number."""
        return self.slices == 1 and self.inner == 1

    @property
    def is_full(self) -> bool:
        """Whether the operand has an element for each of the result."""
        return self.rows == 1


def repeats_of(labels: Sequence[int], shape: Sequence[int]) -> Repeats:
    """Return how an operand that follows some of the result's dimensions repeats."""
    slices, rows, inner = 1, 1, 1
    for d in range(len(shape) - 1, -1, -1):
        if shape[d] == 1:
            continue
        if rows > 1 and (d in labels or slices > 1):
            slices *= shape[d]
        elif d in labels:
            inner *= shape[d]
        else:
            rows *= shape[d]
    return Repeats(slices, rows, inner)


def loop_work(
    machine: Machine, expression: Expression, repeats: Sequence[Repeats | None], elements: int
) -> TileWork:
    """Return the cycles of a whole expression on a tile that has `elements` of its results.

    All of them count as assumed, as no library has such a vertex.
    `repeats`: how each operand repeats; None: it has an element for each of the result.
    """
    contexts = machine.tile.worker_contexts
    loop = _Loop(machine, expression, tuple(repeats), elements)
    slots = min([loop.in_order(), *loop.down_columns()])
    types = {*expression.result_types, *expression.operand_types}
    slots = slots.plus(conversion_slots(machine, tuple(sorted(types)), over(elements, contexts)))
    slots = slots.plus(Slots(_PROLOGUE, _PROLOGUE))
    cycles = shared_vertex_cycles(machine, _SUPERVISOR, slots.slots)
    return TileWork(cycles, cycles)


class _Loop(NamedTuple):
    machine: Machine
    expression: Expression
    repeats: tuple[Repeats | None, ...]
    elements: int

    def in_order(self) -> Slots:
        """Return a worker's slots from element to element; what a row has one of is made once."""
        contexts = self.machine.tile.worker_contexts
        share = over(self.elements, contexts)
        repeating = [n for n, x in enumerate(self.repeats) if x is not None and x.inner == 1]
        slices = max((x.slices for x in self.repeats if x is not None and x.inner == 1), default=1)
        numbers = numbers_in(self.expression, repeating)
        each = self._moved(share, {*repeating}).plus(self._ops(share, numbers, numbers, False))
        if slices == 1:
            return each.slots
        rows = over(slices, contexts)
        once = Issue(rows * (_ROW + len(repeating))).plus(
            self._ops(rows * self._lanes, numbers, numbers, True)
        )
        return each.slots.plus(once.slots)

    def down_columns(self) -> list[Slots]:
        """Return a worker's slots column by column, where the operands that repeat do so alike."""
        partly = {x for x in self.repeats if x is not None and not x.is_scalar and not x.is_full}
        if len(partly) != 1:
            return []
        slices, rows, inner = partly.pop()
        if inner == 1:
            return []
        lanes = self._lanes
        columns = [n for n, x in enumerate(self.repeats) if x == (slices, rows, inner)]
        room = COLUMN_REGISTERS
        resident = set()
        for number in columns:
            room -= over(lanes, vector_elements(self.expression.operand_types[number]))
            if room >= 0:
                resident.add(number)
        scalars = [n for n, x in enumerate(self.repeats) if x is not None and x.is_scalar]
        numbers = numbers_in(self.expression, scalars)
        same = numbers_in(self.expression, [*scalars, *resident])
        each = self._moved(lanes, {*scalars, *resident})
        each = each.plus(self._ops(lanes, same, numbers, False))
        once = Issue(main=_COLUMN).plus(self._ops(lanes, same - numbers, numbers, True))
        for number in resident:
            once = once.plus(load_issue(self.expression.operand_types[number], lanes))
        contexts = self.machine.tile.worker_contexts
        count = slices * over(inner, lanes)
        found = []
        for taken, down in ((count, over(rows, contexts)), (over(count, contexts), rows)):
            column = once.slots.plus(each.slots.times(down, assumed=False))
            found.append(column.times(taken, assumed=False).plus(Slots(_COLUMNS)))
        return found

    @property
    def _lanes(self) -> int:
        types = (*self.expression.operand_types, *self.expression.result_types)
        return max(map(vector_elements, types))

    def _moved(self, elements: int, resident: set[int]) -> Issue:
        """Return the loads of operands that are not in registers, and the stores."""
        issue = Issue()
        for number, element_type in enumerate(self.expression.operand_types):
            if number not in resident:
                issue = issue.plus(load_issue(element_type, elements))
        for element_type in self.expression.result_types:
            issue = issue.plus(load_issue(element_type, elements))
        return issue.plus(packing_issue(self.expression, self.expression.results, elements))

    def _ops(
        self, elements: int, values: frozenset[int], numbers: frozenset[int], inside: bool
    ) -> Issue:
        issue = Issue()
        count = len(self.expression.operand_types)
        for number, node in enumerate(self.expression.nodes, count):
            if (number in values) is inside and node.op not in ("constant", "copy"):
                issue = issue.plus(op_issue(self.machine, self.expression, node, elements, numbers))
        return issue


def numbers_in(expression: Expression, operands: Sequence[int] = ()) -> frozenset[int]:
    """Return the values that are one number for a whole vector, as some operands are."""
    found = set(operands)
    for number, node in enumerate(expression.nodes, len(expression.operand_types)):
        if all(x in found for x in node.arguments):
            found.add(number)
    return frozenset(found)


_INSTRUCTION_BYTES = 4
_COPIES = 2
_LONGEST = 32
_IN_FRAME = 3
"""Operands and results that the frame moves."""
_LOOP_BYTES = 64
"""Of a loop over rows within the frame: its beginning, end and what it moves."""
_REDUCTION_BYTES = 128
"""Of a reduction of rows: accumulators, how workers' parts meet, what it ends with."""


def single_op(expression: Expression) -> str:
    """Return the op of an expression of one, else nothing."""
    ops = [node.op for node in expression.nodes if node.op != "constant"]
    return ops[0] if len(ops) == 1 and len(expression.results) == 1 else ""


def expression_bytes(
    expressions: Iterable[Expression], moved: int, *, loops: int = 0, reductions: int = 0
) -> int:
    """Return the code of expressions in one vertex, of so many operands and results."""
    slots = 2 * max(0, moved - _IN_FRAME) + sum(
        _slots(expression, n) for expression in expressions for n in range(len(expression.nodes))
    )
    code_bytes = SHARED_FRAME_BYTES + _COPIES * _INSTRUCTION_BYTES * slots
    return code_bytes + loops * _LOOP_BYTES + reductions * _REDUCTION_BYTES


def _slots(expression: Expression, number: int) -> int:
    """Return the instructions of a node, without loads and stores; a constant is loaded once."""
    node = expression.nodes[number]
    if node.op in ("constant", "copy") or not node.arguments:
        return 1
    op = f"compare-{dict(node.parameters)['direction']}" if node.op == "compare" else node.op
    rate = rate_of(op, expression.type_of(node.arguments[0]))
    slots = rate.cycles - (len(node.arguments) + 1 if rate.complete else 0)
    return min(max(1, slots), _LONGEST)
