"""Slots of loops that compute a whole expression, from counts of instructions.

A worker issues a bundle a slot: one instruction that loads, stores or computes with integers, and
beside it one that computes with floats. Loops are written as poplibs writes its own, in which
those of one vector go along with those of the next (graphcore/poplibs: lib/popnn/codelets/asm/
NonLinearityGrad1D.S: three bundles a vector for two loads, a store and three float ops;
NonLinearityLoop_gelu.S: eight for a load, a store and eight). So a loop takes what its fuller
pipeline takes.

Float ops of one instruction a vector are those of the codelets in lib/*/codelets/asm; the others
take what popops's own loops of one op take, which the op alone fills
(lib/popops/popopsCycleEstimators.hpp), tanh and logistic what popnn has for them
(lib/popnn/PerformanceEstimation.hpp, getNonLinearityOpCycles).
"""

from collections.abc import Iterable
from typing import NamedTuple

from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.costs.elementwise_rates import (
    PACKING,
    column_of,
    rate_inside,
    vector_elements,
)
from hloipu_runtime.codelets.costs.emulation import Slots, widened
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine


class Issue(NamedTuple):
    """Instructions of a worker, by the pipeline that issues them."""

    main: int = 0
    """Loads, stores, integers."""
    floats: int = 0
    assumed: int = 0
    """How many of both rest on no source."""

    def plus(self, other: "Issue") -> "Issue":
        """Return the sum."""
        return Issue(
            self.main + other.main, self.floats + other.floats, self.assumed + other.assumed
        )

    @property
    def slots(self) -> Slots:
        """The slots in which both pipelines have issued all."""
        slots = max(self.main, self.floats)
        return Slots(slots, min(slots, self.assumed))


_FLOAT_ROWS = """
abs          1   1
add          1   1
subtract     1   1
multiply     1   1
negate       1   1
maximum      1   1
minimum      1   1
compare      1   1
exponential  6   4
log          12  4
tanh         10  2
logistic     10  4
sqrt         10  23
rsqrt        8   19
divide       6   17
"""
"""Slots of a vector of f32, of f16. Division is one instruction of three slots for each element,
in f32: f16 comes from casts of both operands, two a vector, and one back."""
_FLOATS = {
    (op, column): int(slots)
    for op, *cells in (row.split() for row in _FLOAT_ROWS.split("\n") if row)
    for column, slots in zip(("f32", "f16"), cells, strict=True)
}
_CAST_LANES = 4
"""Of f32v4tof16, the one instruction that a cast to f16 takes where it loads nothing."""
_CAST_OPERAND = 2
"""Of a division of f16, for an operand that is not one number."""
_CHOOSING = 3
"""Between two values by a mask: and, and-not, or; the first alone where one value is zero."""
ZERO = (("value", "0x0.0p+0"),)
_UNPACKING = 2
"""Of a mask from truth values in memory, a vector; assumed."""
_SCALAR_CONVERT_SLOTS = 2
"""Of an integer to a float or back, one element: poplibs's own guess at code of its compiler."""


def load_issue(element_type: str, elements: int) -> Issue:
    """Return what it takes to load or to store elements, 64 bits at once."""
    return Issue(main=over(elements, vector_elements(element_type)))


def op_issue(
    machine: Machine,
    expression: Expression,
    node: Node,
    share: int,
    numbers: frozenset[int] = frozenset(),
) -> Issue:
    """Return the instructions of an op between others, on `share` elements.

    `numbers` are values of the expression that are one number for all elements of a vector.
    """
    argument_type = expression.type_of(node.arguments[0]) if node.arguments else node.element_type
    slots = _float_slots(expression, node, argument_type, share, numbers)
    if slots is None:
        full = [number for number in node.arguments if number not in numbers]
        scalar = len(full) < len(node.arguments) == 2
        rate = rate_inside(table_name(node), argument_type, len(full), scalar=scalar)
        turns = over(share, rate.elements or vector_elements(column_of(argument_type)))
        taken = turns * rate.cycles
        slots = Slots(taken, taken if rate.assumed else 0)
    slots = widened(machine, slots, {argument_type, node.element_type})
    if column_of(argument_type) in ("s32", "s64") and node.op != "convert":
        return Issue(slots.slots, 0, slots.assumed)
    return Issue(0, slots.slots, slots.assumed)


def _float_slots(
    expression: Expression, node: Node, argument_type: str, share: int, numbers: frozenset[int]
) -> Slots | None:
    """Return the slots of ops that have a price of their own between others; None: the others."""
    column = column_of(node.element_type)
    if node.op == "convert":
        if (column_of(argument_type), column) == ("f32", "f16"):
            return Slots(over(share, _CAST_LANES))
        return cast_slots(argument_type, node.element_type, share)
    if node.op in ("select", "clamp"):
        turns = over(share, vector_elements(column))
        if column not in ("f32", "f16"):
            return Slots(2 * turns, 2 * turns)
        if node.op == "select":
            return _choosing(expression, node).times(turns, assumed=False)
        fixed = node.arguments[0] in numbers and node.arguments[2] in numbers
        return Slots(turns if fixed else 2 * turns)
    before = column_of(argument_type)
    slots = _FLOATS.get((node.op, before))
    if slots is None:
        return None
    if node.op == "divide" and before == "f16" and not numbers.isdisjoint(node.arguments):
        slots -= _CAST_OPERAND
    return Slots(slots * over(share, vector_elements(before)))


def _choosing(expression: Expression, node: Node) -> Slots:
    """Return the slots of a choice between two vectors by a mask."""
    count = len(expression.operand_types)
    predicate, *values = node.arguments
    slots = _CHOOSING
    for value in values:
        constant = _node(expression, value, "constant")
        if constant is not None and constant.parameters == ZERO:
            slots = 1
    loaded = predicate < count
    return Slots(slots + (_UNPACKING if loaded else 0), _UNPACKING if loaded else 0)


def accumulated(
    expression: Expression, sums: frozenset[int], needed: frozenset[int]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the ops that sums' accumulators do by themselves, and the sums that they do of f16.

    Accumulators are of f32 also where they take f16 in (f16v8acc), and can square it on the way
    (f16v8sqacc, f32v4sqacc; lib/popops/codelets/asm). `sums`: values that are summed; `needed`:
    those that are read otherwise, too.
    """
    count = len(expression.operand_types)
    users: dict[int, set[int]] = {}
    for number, node in enumerate(expression.nodes, count):
        for x in node.arguments:
            users.setdefault(x, set()).add(number)
    hidden: set[int] = set()
    source: dict[int, int] = {}
    for number in sums:
        source[number] = number
        square = _node(expression, number, "multiply")
        if square is not None and number not in needed and number not in users:
            left, right = square.arguments
            if left == right and square.element_type in ("f32", "f16"):
                hidden.add(number)
                source[number] = left
    narrow = set()
    for number, taken in source.items():
        convert = _node(expression, taken, "convert")
        if convert is None or convert.element_type != "f32":
            continue
        if expression.type_of(convert.arguments[0]) == "f16":
            narrow.add(number)
            if taken not in needed and users.get(taken, set()) <= hidden:
                hidden.add(taken)
    return frozenset(hidden), frozenset(narrow)


def _node(expression: Expression, number: int, op: str) -> Node | None:
    count = len(expression.operand_types)
    node = expression.nodes[number - count] if number >= count else None
    return node if node is not None and node.op == op else None


def packing_issue(expression: Expression, stored: Iterable[int], share: int) -> Issue:
    """Return what turns masks of comparisons into truth values, for the values that are stored."""
    kinds = _mask_kinds(expression)
    slots = [PACKING[kinds[x]] for x in {*stored} if x in kinds]
    return Issue(floats=over(share, 4) * sum(slots))


def _mask_kinds(expression: Expression) -> dict[int, str]:
    kinds: dict[int, str] = {}
    for number, node in enumerate(expression.nodes, len(expression.operand_types)):
        if node.op == "compare":
            column = column_of(expression.type_of(node.arguments[0]))
            if column in PACKING:
                kinds[number] = column
        elif node.element_type == "pred" and node.op != "convert":
            masks = [kinds[number] for number in node.arguments if number in kinds]
            if masks:
                kinds[number] = masks[0]
    return kinds


def cast_slots(before: str, after: str, elements: int) -> Slots:
    """Return the slots of a cast's loop (`castWorkerCycles`), remainders as whole vectors."""
    columns = column_of(before), column_of(after)
    if {*columns} <= {"f32", "f16"}:
        # Two loads and one store of 64 bits each; loads do not overlap each other.
        load, store = vector_elements(columns[0]), vector_elements(columns[1])
        vector = min(2 * load, store)
        return Slots(over(elements, vector) * max(vector // load, 1))
    if columns[1] == "s64":
        return Slots(elements * 5)
    return Slots(elements * _SCALAR_CONVERT_SLOTS)


def table_name(node: Node) -> str:
    """Return an op's name in the tables of rates."""
    if node.op == "compare":
        return f"compare-{dict(node.parameters)['direction']}"
    return node.op
