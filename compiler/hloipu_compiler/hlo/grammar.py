"""The grammar in use: lark's parser over `hlo.lark`, built when first needed.

Two parsers are built from the one file: one for whole texts, one whose start rules are the values
of attributes. Never lark's `cache=True`: it keeps a pickle in a shared folder.
"""

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from lark import Lark
from lark.exceptions import UnexpectedToken

from hloipu_compiler.hlo.lexer import (
    BLANKS,
    Finder,
    HloLexer,
    LexerInput,
    LexFault,
    Piece,
    TooDeep,
    usable,
)
from hloipu_compiler.hlo.limits import Limits, check_limit
from hloipu_compiler.hlo.syntax import SyntaxActions, SyntaxText
from hloipu_compiler.hlo.terminal_words import in_words
from hloipu_compiler.hlo.text_fault import TextFault

VALUE_RULES = [
    "shape", "integers", "integer_lists", "booleans", "words", "slices", "window", "shapes",
    "program_shape", "aliases", "donors",
]  # fmt: skip

_STATES_PER_LEVEL = 12
"""Most parser states that one level of nesting keeps open (a computation in an attribute)."""


@lru_cache(maxsize=1)
def _grammar_text() -> str:
    return (files("hloipu_compiler.hlo") / "hlo.lark").read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _text_parser() -> Lark:
    return Lark(
        _grammar_text(), parser="lalr", lexer=HloLexer, start="text", transformer=SyntaxActions()
    )


@lru_cache(maxsize=1)
def _value_parser() -> Lark:
    return Lark(_grammar_text(), parser="lalr", lexer=HloLexer, start=VALUE_RULES)


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


def _run(parser: Lark, source: LexerInput, rule: str, limits: Limits) -> Any:
    try:
        return parser.parse(source, start=rule)
    except LexFault as fault:
        raise _syntax_fault(source.text, fault.offset, fault.accepted) from None
    except UnexpectedToken as fault:
        token: Any = fault.token
        offset = token.start if isinstance(token, Piece) else len(source.text.rstrip())
        raise _syntax_fault(source.text, offset, usable(fault.state)) from None
    except TooDeep as fault:
        check_limit(limits, "nesting", limits.nesting + 1, fault.offset)
        raise


def _syntax_fault(text: str, offset: int, accepted: frozenset[str]) -> TextFault:
    found, expected, hint = in_words(text, offset, accepted)
    return TextFault("E0101", found, offset, expected=expected, hint=hint)
