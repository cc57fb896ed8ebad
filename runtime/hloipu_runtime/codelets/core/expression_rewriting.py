"""Writes expressions in the ops that numpy is quick at, with the same values bit by bit.

Programs write floored division and its remainder, Python's `//` and `%`, as truncated ones that a
select corrects where the signs differ; numpy has floored ones, in vector registers for one divisor.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hloipu_runtime.codelets.core.constants import value_of
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.kernels.core.storage import storage_dtype

FLOORED = ("floored-divide", "floored-remainder")
"""Of signed integers by a positive constant."""
MASKED = ("mask", "choose-by-mask", "masked")
"""Bits that are all set where a predicate holds (`inverted`: where it does not), the choice by them
between two values, and values where they are set, else zero."""


def with_floored_divisions(expression: Expression) -> Expression:
    """Return an expression with floored divisions as one node each, without nodes left unread."""
    if not any(node.op == "remainder" for node in expression.nodes):
        return expression
    view = _View(expression)
    nodes = [view.floored(node) or node for node in expression.nodes]
    return expression if nodes == list(expression.nodes) else _read(expression, nodes)


def with_clamps(expression: Expression) -> Expression:
    """Return an expression with extrema by two constants, one after the other, as one clamp."""
    view = _View(expression)
    nodes = [view.clamped(node) or node for node in expression.nodes]
    return expression if nodes == list(expression.nodes) else _read(expression, nodes)


def with_masks(expression: Expression) -> Expression:
    """Return an expression that chooses by masks, of which choices by one predicate share one."""
    if not any(node.op == "select" for node in expression.nodes):
        return expression
    view, count = _View(expression), len(expression.operand_types)
    nodes: list[Node] = []
    new = {number: number for number in range(count)}
    masks: dict[tuple[int, str, int], int] = {}

    def add(node: Node) -> int:
        nodes.append(node)
        return count + len(nodes) - 1

    def mask(holds: int, bits: str, inverted: int) -> int:
        key = holds, bits, inverted
        if key not in masks:
            masks[key] = add(Node("mask", (holds,), bits, (("inverted", inverted),)))
        return masks[key]

    for number, node in enumerate(expression.nodes, count):
        given = tuple(new[x] for x in node.arguments)
        size = storage_dtype(node.element_type).itemsize
        if node.op != "select" or size > 8:
            new[number] = add(node._replace(arguments=given))
            continue
        holds, yes, no = given
        is_zero = [view.is_zero(x) for x in node.arguments]
        inverted = int(is_zero[1] and not is_zero[2])
        by = mask(holds, f"s{8 * size}", inverted)
        if is_zero[1] == is_zero[2]:
            made = Node("choose-by-mask", (by, yes, no), node.element_type)
        else:
            made = Node("masked", (by, no if inverted else yes), node.element_type)
        new[number] = add(made)
    return Expression(
        expression.operand_types, tuple(nodes), tuple(new[x] for x in expression.results)
    )


def _read(expression: Expression, nodes: Sequence[Node]) -> Expression:
    """Return an expression of other nodes, without those that are left unread."""
    count = len(expression.operand_types)
    wanted = set(expression.results)
    for number in range(count + len(nodes) - 1, count - 1, -1):
        if number in wanted:
            wanted.update(nodes[number - count].arguments)
    kept = [n for n in range(len(nodes)) if count + n in wanted]
    new = {x: x for x in range(count)} | {count + n: count + k for k, n in enumerate(kept)}
    return Expression(
        expression.operand_types,
        tuple(nodes[n]._replace(arguments=tuple(new[x] for x in nodes[n].arguments)) for n in kept),
        tuple(new[x] for x in expression.results),
    )


class _View(NamedTuple):
    expression: Expression

    def node(self, number: int) -> Node:
        """Return what computes a value; of an operand a node without an op."""
        count = len(self.expression.operand_types)
        nowhere = Node("", (), self.expression.type_of(number))
        return nowhere if number < count else self.expression.nodes[number - count]

    def floored(self, node: Node) -> Node | None:
        """Return a select as the floored division, or its remainder, that it corrects to."""
        if node.op != "select" or ELEMENT_TYPES[node.element_type].kind is not Kind.SIGNED:
            return None
        holds, corrected, cut = node.arguments
        truncated, step, both = self.node(cut), self.node(corrected), self.node(holds)
        if truncated.op not in ("divide", "remainder") or both.op != "and":
            return None
        dividend, divisor = truncated.arguments
        if not self.text(divisor).isdecimal() or self.text(divisor) == "0":
            return None
        is_quotient = truncated.op == "divide"
        adds = step.op == "add" and set(step.arguments) == {cut, divisor}
        takes_one = step.op == "subtract" and step.arguments[0] == cut
        takes_one = takes_one and self.text(step.arguments[1]) == "1"
        tests = [self.tested(x) for x in both.arguments]
        inexact = ("NE", Node("remainder", (dividend, divisor), node.element_type), "0")
        if is_quotient:
            other = ("NE", Node("sign", (dividend,), node.element_type), "1")
        else:
            other = ("LT", inexact[1], "0")
        if (takes_one if is_quotient else adds) and tests in ([inexact, other], [other, inexact]):
            return Node(f"floored-{truncated.op}", truncated.arguments, node.element_type)
        return None

    def clamped(self, node: Node) -> Node | None:
        """Return the smaller of a constant and what is no less than another one, as one node."""
        if node.op != "minimum":
            return None
        for inner, high in (node.arguments, node.arguments[::-1]):
            larger = self.node(inner)
            if larger.op != "maximum" or not self.text(high):
                continue
            for low, value in (larger.arguments, larger.arguments[::-1]):
                if self.text(low):
                    return Node("clamp", (low, value, high), node.element_type)
        return None

    def is_zero(self, number: int) -> bool:
        """Whether a value is a constant of no bit."""
        text = self.text(number)
        return bool(text) and not any(value_of(text, self.node(number).element_type).tobytes())

    def text(self, number: int) -> str:
        """Return the text of a constant, else nothing."""
        return str(dict(self.node(number).parameters).get("value", ""))

    def tested(self, number: int) -> tuple[str, Node, str]:
        """Return how a value compares what a node computes with a constant."""
        node = self.node(number)
        if node.op != "compare":
            return "", node, ""
        direction, (first, second) = str(dict(node.parameters)["direction"]), node.arguments
        if (direction, self.text(second)) == ("NE", "false"):
            return self.tested(first)
        return direction, self.node(first), self.text(second)
