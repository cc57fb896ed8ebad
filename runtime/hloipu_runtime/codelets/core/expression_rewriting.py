"""Writes expressions in the ops that numpy is quick at, with the same values bit by bit.

Programs write floored division and its remainder, Python's `//` and `%`, as truncated ones that a
select corrects where the signs differ; numpy has floored ones, in vector registers for one divisor.
Chains of ops on one value of 16 bits are looked up in a table (`expression_walk.LookedUp`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from hloipu_runtime.codelets.core.constants import value_of
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.reached import reached

FLOORED = ("floored-divide", "floored-remainder")
"""Of signed integers by a positive constant."""
LOOKED_UP = "looked-up"
"""A chain; its parameter `chain` says which."""
_WORTH_LOOKING_UP = 2
"""Roundings and transcendental functions, of which each takes some 0.8 ns; looking up takes 0.9."""
_MOST_ENDS = 4
"""Of the chains from one value; *assumed*."""
MASKED = ("mask", "choose-by-mask", "masked")
"""Bits that are all set where a predicate holds (`inverted`: where it does not), the choice by them
between two values, and values where they are set, else zero."""


def with_floored_divisions(expression: Expression) -> Expression:
    """Return an expression with floored divisions as one node each, without nodes left unread."""
    if not any(node.op == "remainder" for node in expression.nodes):
        return expression
    view = _View(expression)
    nodes = [view.floored(node) or node for node in expression.nodes]
    return expression if nodes == list(expression.nodes) else read_nodes(expression, nodes)


def with_clamps(expression: Expression) -> Expression:
    """Return an expression with extrema by two constants, one after the other, as one clamp."""
    view = _View(expression)
    nodes = [view.clamped(node) or node for node in expression.nodes]
    return expression if nodes == list(expression.nodes) else read_nodes(expression, nodes)


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
            choice = Node("choose-by-mask", (by, yes, no), node.element_type)
        else:
            choice = Node("masked", (by, no if inverted else yes), node.element_type)
        new[number] = add(choice)
    return Expression(
        expression.operand_types, tuple(nodes), tuple(new[x] for x in expression.results)
    )


def read_nodes(expression: Expression, nodes: Sequence[Node]) -> Expression:
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


# --- tables ---------------------------------------------------------------------------------------
def with_tables(
    expression: Expression, work: Sequence[int]
) -> tuple[list[Node], tuple[Expression, ...]]:
    """Return nodes of which some are chains, and the chains.

    `work`: of each node, the roundings and transcendental functions. What chains leave unread is
    still there.
    """
    count, nodes, chains = len(expression.operand_types), [*expression.nodes], list[Expression]()
    origins = _origins(expression)
    ends: dict[int, list[int]] = {}
    for number in _read_elsewhere(expression, origins):
        ends.setdefault(origins[number], []).append(number)
    for origin, some in ends.items():
        for end in some if len(some) <= _MOST_ENDS else ():
            members = sorted(reached([end], lambda n: _arguments(expression, n, origin)))  # noqa: B023
            if sum(work[n - count] for n in members if n >= count and n != origin) < (
                _WORTH_LOOKING_UP
            ):
                continue
            kind = expression.type_of(end)
            nodes[end - count] = Node(LOOKED_UP, (origin,), kind, (("chain", len(chains)),))
            chains.append(_alone(expression, origin, members))
    return nodes, tuple(chains)


def _arguments(expression: Expression, number: int, origin: int) -> tuple[int, ...]:
    count = len(expression.operand_types)
    return () if number == origin or number < count else expression.nodes[number - count].arguments


def _origins(expression: Expression) -> list[int]:
    """Return, for each value, the one of 16 bits that it depends on alone, or itself.

    -1: it depends on constants only.
    """
    origins = [*range(len(expression.operand_types))]
    for number, node in enumerate(expression.nodes, len(origins)):
        behind = {origins[x] for x in node.arguments} - {-1}
        if not behind:
            origins.append(-1)
            continue
        (first, *others) = behind
        is_chain = not others and expression.type_of(first) in ("f16", "bf16")
        origins.append(first if is_chain else number)
    return origins


def _read_elsewhere(expression: Expression, origins: Sequence[int]) -> list[int]:
    """Return the nodes of chains that are results, or that nodes outside of their chain read."""
    count = len(expression.operand_types)
    read = {*expression.results}
    for number, node in enumerate(expression.nodes, count):
        read.update(x for x in node.arguments if origins[x] != origins[number])
    return sorted(x for x in read if x >= count and origins[x] not in (-1, x))


def _alone(expression: Expression, origin: int, members: Sequence[int]) -> Expression:
    """Return a chain as an expression of its origin; the last member is its result."""
    count = len(expression.operand_types)
    inside = [n for n in members if n != origin]
    new = {origin: 0, **{n: 1 + k for k, n in enumerate(inside)}}
    nodes = (expression.nodes[n - count] for n in inside)
    return Expression(
        (expression.type_of(origin),),
        tuple(x._replace(arguments=tuple(new[a] for a in x.arguments)) for x in nodes),
        (len(inside),),
    )
