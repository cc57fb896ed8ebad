"""Fusing elementwise codelets: several on one shape become one, whose middle values are nowhere.

One vertex then loads each operand once and stores what is asked for, and a large tensor is walked
once, in blocks that stay in cache.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hloipu_runtime.codelets.elementwise import Elementwise
from hloipu_runtime.codelets.expression import Expression, Node


class Use(NamedTuple):
    """A codelet with names, any numbers, of the values that it reads and writes."""

    codelet: Elementwise
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class Fused(NamedTuple):
    """One codelet in the place of several, and the values that it reads."""

    codelet: Elementwise
    reads: tuple[int, ...]


def fused(uses: Sequence[Use], results: Sequence[int]) -> Fused | None:
    """Return the codelet that computes the values `results` as these do one after the other.

    All have results of one shape, which is the caller's to see to. None where one of them reads
    what another writes with dimensions repeated or in another order: that is not elementwise.
    Each op is rounded as before, so values are the same; equal ops are computed once.
    """
    rank = uses[0].codelet.rank
    every = tuple(range(rank))
    written = {value for use in uses for value in use.writes}
    operands: dict[tuple[int, tuple[int, ...]], int] = {}
    types: list[str] = []
    for use in uses:
        if use.codelet.rank != rank:
            return None
        for k, (value, labels) in enumerate(zip(use.reads, use.codelet.labels, strict=True)):
            if value in written:
                if labels != every:
                    return None
            elif (value, labels) not in operands:
                operands[value, labels] = len(types)
                types.append(use.codelet.expression.operand_types[k])
    writer = _Writer(len(types))
    known: dict[int, int] = {}
    for use in uses:
        arguments = [
            known[value] if value in written else operands[value, labels]
            for value, labels in zip(use.reads, use.codelet.labels, strict=True)
        ]
        made = writer.inline(use.codelet.expression, arguments)
        known.update(zip(use.writes, made, strict=True))
    expression = Expression(
        tuple(types), tuple(writer.nodes), tuple(known[value] for value in results)
    )
    codelet = Elementwise(expression, tuple(labels for _, labels in operands), rank)
    return Fused(codelet, tuple(value for value, _ in operands))


class _Writer:
    """Collects nodes; an equal one is not written twice."""

    def __init__(self, operands: int) -> None:
        self.operands = operands
        self.nodes: list[Node] = []
        self._numbers: dict[Node, int] = {}

    def inline(self, expression: Expression, arguments: Sequence[int]) -> list[int]:
        """Write an expression's nodes for these arguments; return the numbers of its results."""
        numbers = list(arguments)
        for node in expression.nodes:
            renamed = node._replace(arguments=tuple(numbers[x] for x in node.arguments))
            if renamed not in self._numbers:
                self._numbers[renamed] = self.operands + len(self.nodes)
                self.nodes.append(renamed)
            numbers.append(self._numbers[renamed])
        return [numbers[x] for x in expression.results]
