"""Expressions as data: elementwise ops on operands that broadcast together.

Numbers name values: operands come first, nodes follow in order. What a node means is its HLO opcode
with the types of its arguments.
"""

from typing import NamedTuple

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.reached import reached

MONOIDS = frozenset({"add", "multiply", "minimum", "maximum", "and", "or", "xor"})


class Node(NamedTuple):
    """One op of an expression."""

    op: str
    """HLO opcode; `constant` has the parameter `value`, an exact text (`constants.py`)."""
    arguments: tuple[int, ...]
    element_type: str
    """Of the result."""
    parameters: tuple[tuple[str, str | int], ...] = ()


class Expression(NamedTuple):
    """Elementwise ops from operands to results."""

    operand_types: tuple[str, ...]
    nodes: tuple[Node, ...]
    results: tuple[int, ...]

    @property
    def result_types(self) -> tuple[str, ...]:
        """Element type of each result."""
        return tuple(self.type_of(number) for number in self.results)

    def type_of(self, number: int) -> str:
        """Return the element type of an operand or a node."""
        count = len(self.operand_types)
        if number < count:
            return self.operand_types[number]
        return self.nodes[number - count].element_type


def is_added_to(expression: Expression, operand: int) -> bool:
    """Whether the one result is an operand and something added that does not depend on it."""
    count = len(expression.operand_types)
    if len(expression.results) != 1 or expression.results[0] < count:
        return False
    last = expression.nodes[expression.results[0] - count]
    if last.op != "add" or last.arguments.count(operand) != 1:
        return False
    added = [n for n in last.arguments if n != operand]
    nodes = expression.nodes
    return operand not in reached(added, lambda n: () if n < count else nodes[n - count].arguments)


def monoid_of(expression: Expression) -> str | None:
    """Return the monoid that an expression of two operands is, or None.

    Seen through the converts between floats that hold every operand exactly, which backends put
    around half-precision arithmetic: accumulating wider than asked is what they all do.
    """
    if len(expression.operand_types) != 2 or len(expression.results) != 1:
        return None
    number = _behind_converts(expression, expression.results[0])
    if number < 2:
        return None
    node = expression.nodes[number - 2]
    reached = sorted(_behind_converts(expression, number) for number in node.arguments)
    return node.op if node.op in MONOIDS and reached == [0, 1] else None


def _behind_converts(expression: Expression, number: int) -> int:
    count = len(expression.operand_types)
    while number >= count:
        node = expression.nodes[number - count]
        if node.op != "copy" and not _keeps_operands(expression, node):
            break
        number = node.arguments[0]
    return number


def _keeps_operands(expression: Expression, node: Node) -> bool:
    if node.op != "convert":
        return False
    both = (node.element_type, expression.type_of(node.arguments[0]))
    return all(_holds(wide, narrow) for wide in both for narrow in expression.operand_types)


def _holds(wide: str, narrow: str) -> bool:
    a, b = ELEMENT_TYPES[wide], ELEMENT_TYPES[narrow]
    return (
        a.is_float
        and b.is_float
        and a.mantissa_bits >= b.mantissa_bits
        and a.exponent_bits >= b.exponent_bits
    )
