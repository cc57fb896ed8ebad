"""Parsers for `hlo.lark`, each built from its tables when first needed.

There are two: one for whole texts, one whose start rules are the values of attributes.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from hloipu_compiler.hlo.syntax.lexer import (
    BLANKS,
    Finder,
    Lexer,
    LexerInput,
    LexFault,
    Piece,
    TooDeep,
)
from hloipu_compiler.hlo.syntax.limits import Limits, check_limit
from hloipu_compiler.hlo.syntax.parse_tables import ParseTable, parse_table
from hloipu_compiler.hlo.syntax.records import SyntaxActions, SyntaxText
from hloipu_compiler.hlo.syntax.text_fault import TextFault

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


_STATES_PER_LEVEL = 12
"""Most parser states that one level of nesting keeps open (a computation in an attribute)."""


@lru_cache(maxsize=1)
def _text_parser() -> Parser:
    return Parser(parse_table("text"), SyntaxActions())


@lru_cache(maxsize=1)
def _value_parser() -> Parser:
    return Parser(parse_table("values"), None)


def parse_text(text: str, finders: Mapping[str, Finder], limits: Limits) -> SyntaxText:
    """Parse a whole text into records of stretches; TextFault where it is not HLO."""
    most = 40 + _STATES_PER_LEVEL * limits.nesting
    parsed: SyntaxText = _run(_text_parser(), LexerInput(text, finders, most), "text", limits)
    return parsed


def printed_form(text: str, rule: str, limits: Limits) -> str:
    """Return a value that follows `rule` without blanks and comments; TextFault where it does not.

    Only before a key is one blank left.
    """
    source = LexerInput(text, {}, 40 + _STATES_PER_LEVEL * limits.nesting)
    source.seen = []
    _run(_value_parser(), source, rule, limits)
    words = ((" " if p.type == "KEY" else "") + BLANKS.sub("", p.text) for p in source.seen)
    return "".join(words)


def _run(parser: Parser, source: LexerInput, rule: str, limits: Limits) -> Any:
    try:
        return parser.parse(source, rule)
    except LexFault as fault:
        raise _syntax_fault(source.text, fault.offset, fault.accepted, rule) from None
    except UnexpectedPiece as fault:
        piece = fault.piece
        offset = len(source.text.rstrip()) if piece is None else piece.start
        raise _syntax_fault(source.text, offset, fault.usable, rule) from None
    except TooDeep as fault:
        check_limit(limits, "nesting", limits.nesting + 1, fault.offset)
        raise


def _syntax_fault(text: str, offset: int, accepted: frozenset[str], rule: str) -> TextFault:
    from hloipu_compiler.hlo.syntax.terminal_words import in_words

    message, expected, hint = in_words(text, offset, accepted)
    if rule == "text" and not hint and _is_cut_off(text, offset):
        hint = "the text seems to be cut off; print the whole module"
    return TextFault("E0101", message, offset, expected=expected, hint=hint)


def _is_cut_off(text: str, offset: int) -> bool:
    """Tell whether a text with a fault at `offset` ends on the fault's line, and not with a }."""
    rest = text[offset:].rstrip()
    return "\n" in text[:offset].strip() and "\n" not in rest and not text.rstrip().endswith("}")
