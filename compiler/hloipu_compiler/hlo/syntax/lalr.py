"""LALR parser on tables of states and rules."""

from typing import Any

from hloipu_compiler.hlo.syntax.lexer import Lexer, LexerInput, Piece
from hloipu_compiler.hlo.syntax.parse_tables import ParseTable

END = "$END"
"""The terminal at the end of a text."""


class UnexpectedPiece(Exception):
    """A terminal stands where the parser cannot use it; None: the text ends there."""

    def __init__(self, piece: Piece | None, usable: frozenset[str]) -> None:
        super().__init__(piece, usable)
        self.piece = piece
        self.usable = usable


class Parser:
    """An LALR(1) parser that runs an action for each rule, bottom up; no tree is built."""

    def __init__(self, table: ParseTable, actions: object) -> None:
        """Take a table and an object with methods named as rules, or None to run no actions."""
        self.table = table
        self.lexer = Lexer(table)
        self._actions = [getattr(actions, rule.action, _as_they_are) for rule in table.rules]

    def parse(self, source: LexerInput, start: str) -> Any:
        """Return the value of a text that follows the rule `start`.

        Raises UnexpectedPiece and what the lexer raises.
        """
        states = self.table.states
        stack = [self.table.starts[start]]
        values: list[Any] = []
        for piece in self.lexer.pieces(source, stack):
            kind = piece.type
            target = states[stack[-1]].get(kind)
            while target is not None and target < 0:
                self._reduce(-1 - target, stack, values)
                target = states[stack[-1]].get(kind)
            if target is None:
                raise UnexpectedPiece(piece, self.lexer.usable(stack))
            stack.append(target)
            values.append(piece)
        end = self.table.ends[start]
        while stack[-1] != end:
            target = states[stack[-1]].get(END)
            if target is None or target >= 0:
                raise UnexpectedPiece(None, self.lexer.usable(stack))
            self._reduce(-1 - target, stack, values)
        return values[-1]

    def _reduce(self, number: int, stack: list[int], values: list[Any]) -> None:
        rule = self.table.rules[number]
        first = len(values) - rule.length
        children: list[Any] = []
        for position, is_list, nones in rule.kept:
            if nones:
                children += [None] * nones
            value = values[first + position]
            if not is_list:
                children.append(value)
            elif children:
                children += value
            else:  # the list of a repetition grows in place
                children = value
        if rule.nones:
            children += [None] * rule.nones
        del stack[len(stack) - rule.length :]
        del values[first:]
        stack.append(self.table.states[stack[-1]][rule.origin])
        values.append(self._actions[number](children))


def _as_they_are(children: list[Any]) -> list[Any]:
    return children
