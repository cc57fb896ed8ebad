"""Parsers of the tables of `hlo.lark`, each made when first needed.

There are two: one for whole texts, one whose start rules are the values of attributes.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from hloipu_compiler.hlo.syntax.lalr import Parser, UnexpectedPiece
from hloipu_compiler.hlo.syntax.lexer import BLANKS, Finder, LexerInput, LexFault, TooDeep
from hloipu_compiler.hlo.syntax.limits import Limits, check_limit
from hloipu_compiler.hlo.syntax.parse_tables import parse_table
from hloipu_compiler.hlo.syntax.records import SyntaxActions, SyntaxText
from hloipu_compiler.hlo.syntax.text_fault import TextFault

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
        raise _syntax_fault(source.text, fault.offset, fault.accepted) from None
    except UnexpectedPiece as fault:
        piece = fault.piece
        offset = len(source.text.rstrip()) if piece is None else piece.start
        raise _syntax_fault(source.text, offset, fault.usable) from None
    except TooDeep as fault:
        check_limit(limits, "nesting", limits.nesting + 1, fault.offset)
        raise


def _syntax_fault(text: str, offset: int, accepted: frozenset[str]) -> TextFault:
    from hloipu_compiler.hlo.syntax.terminal_words import in_words

    found, expected, hint = in_words(text, offset, accepted)
    return TextFault("E0101", found, offset, expected=expected, hint=hint)
