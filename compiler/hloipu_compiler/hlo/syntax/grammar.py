"""Parsers for `hlo.lark`, each built from its tables when first needed; names of its terminals.

There are two: one for whole texts, one whose start rules are the values of attributes.
"""

import re
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
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.nearest import Suggestions
from hloipu_runtime.plain_text import printable

_WORDS = {
    "HLO_MODULE": "HloModule", "ENTRY": "a computation", "ROOT": "an instruction",
    "STACK_TABLES": "FileNames", "COMPUTATION_TEXT": "a computation",
    "STATEMENTS": "an instruction", "SHAPE_KEY": "an attribute", "LITERAL_KEY": "an attribute",
    "RAW_KEY": "an attribute", "COMPUTATION_KEY": "an attribute",
    "COMPUTATIONS_KEY": "an attribute", "KEY": "an attribute like dimensions={0}",
    "BUFFER": "a shape", "TYPE": "a shape like f32[2,3]", "ARRAY": "a shape like f32[2,3]",
    "ARRAYS": "a shape like f32[2,3]", "LPAR": "(", "RPAR": ")",
    "SIZES_BEGUN": "sizes like [2,3]", "LAYOUT": "a layout like {1,0}",
    "PARAMETER": "an opcode", "CONSTANT": "an opcode",
    "OPCODE": "an opcode and ( like add(",
    "GROUPS_IOTA": "a value", "GROUPS_MESH": "a value", "LABELS": "a value", "FLOAT": "a number",
    "SIZES": "sizes like 3x3", "PADS": "paddings like 1_1x0_0", "INT": "an integer",
    "STRING": "a quoted string", "BOOLEAN": "true or false", "NAME": "a name", "NAMES": "a name",
    "INTEGERS": "integers like {0,1}", "INTEGERS_BEGUN": "integers like {0,1}",
    "LBRACE": "{", "RBRACE": "}", "RBRACKET": "]", "LSQB": "[",
    "COMMA": ",", "EQUAL": "=", "QMARK": "?", "BRACES": "{", "RAW_BRACES": "{",
    "LITERAL": "a literal", "TYPED_LITERAL": "a shape and a literal", "HASH": "#", "COLON": ":",
    "$END": "the end of the text",
}  # fmt: skip
_SYMBOLS = {"__ANON_0": "->", "__ANON_1": "<="}
_COVERED = (
    ("a shape like f32[2,3]", ("a shape", "(")),
    ("an attribute like dimensions={0}", ("an attribute",)),
    ("an opcode and ( like add(", ("an opcode",)),
    ("an instruction", ("a name",)),
    ("a computation", ("a name", "an instruction")),
    ("a value", ("an integer", "a number", "{", "sizes like 3x3", "paddings like 1_1x0_0")),
)
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.){0,40}"?|%?[\w.\-]+[=:]?|\S', re.ASCII)
_CLOSED_STRING = re.compile(r"\"(?>(?:[^\"\\]|\\.)*)\"|'(?>(?:[^'\\]|\\.)*)'", re.DOTALL)
_TYPE_AND_SIZES = re.compile(r"([A-Za-z]\w{0,30})[ \t]*\[", re.ASCII)
_NEGATIVE_SIZE = re.compile(r"[\[,][ \t]*-\d+[ \t]*\Z")
_MOST_SHOWN = 48


def in_words(text: str, offset: int, accepted: frozenset[str]) -> tuple[str, str, str]:
    """Return what was found at `offset`, what was expected there, and a hint or ''."""
    if offset >= len(text) or (text[offset].isspace() and not text[offset:].strip()):
        return "the text ends here", _expected(accepted), ""
    if text.startswith("/*", offset):
        return "this comment is never closed", "*/", ""
    if text[offset] in "\"'":
        if not _CLOSED_STRING.match(text, offset):
            return "this string is never closed", f"{text[offset]} at its end", ""
        if "STRING" in accepted:
            known = "\\ only before n, t, quotes, \\, xHH or octal digits"
            return "this string has an unknown escape", known, ""
    if text[offset] == "\ufeff":
        return "a byte order mark", _expected(accepted), "save the file as UTF-8 without one"
    typed = _TYPE_AND_SIZES.match(text, offset)
    if typed and "TYPE" in accepted:
        hint = Suggestions().hint(typed[1], ELEMENT_TYPES)
        return f"unknown element type {typed[1]}", "a type like f32, bf16, s32 or pred", hint
    if not text[offset].isprintable():
        return f"unexpected character U+{ord(text[offset]):04X}", _expected(accepted), ""
    match = _TOKEN.match(text, offset)
    token = printable((match[0] if match else text[offset])[:_MOST_SHOWN])
    if accepted == {"RBRACKET"} and _NEGATIVE_SIZE.search(text[max(0, offset - 40) : offset]):
        return "a negative size", "sizes of 0 and more", ""
    return f"unexpected {token}", _expected(accepted), _hint(token, accepted)


def _expected(accepted: frozenset[str]) -> str:
    words = {_WORDS.get(name) or _symbol(name) for name in accepted}
    for general, special in _COVERED:
        if general in words:
            words -= set(special)
    if len(words) > 1:
        words.discard("#")  # `name#1` is for tuples alone, and hardly ever written
    if words == {"]"}:
        words.add(",")
    ordered = [w if len(w) > 2 else f"`{w}`" for w in sorted(words, key=lambda w: (len(w) < 3, w))]
    return (
        " or ".join(ordered) if len(ordered) < 3 else f"{', '.join(ordered[:-1])} or {ordered[-1]}"
    )


def _symbol(name: str) -> str:
    return _SYMBOLS.get(name, name.lower().replace("_", " "))


def _hint(token: str, accepted: frozenset[str]) -> str:
    if token.endswith("=") and "ROOT" in accepted:
        return f"write a blank before the = sign: {token[:-1]} ="
    if token.endswith("=") and "OPCODE" in accepted:
        return "close the operands with ) before the attributes"
    if token == ":" and "TYPE" in accepted:
        return "a colon stands at once after its name: p: f32[4]"
    if token == ";":
        return "HLO has no statement separator; end the line without one"
    return ""


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
    message, expected, hint = in_words(text, offset, accepted)
    if rule == "text" and not hint and _is_cut_off(text, offset):
        hint = "the text seems to be cut off; print the whole module"
    return TextFault("E0101", message, offset, expected=expected, hint=hint)


def _is_cut_off(text: str, offset: int) -> bool:
    """Tell whether a text with a fault at `offset` ends on the fault's line, and not with a }."""
    rest = text[offset:].rstrip()
    return "\n" in text[:offset].strip() and "\n" not in rest and not text.rstrip().endswith("}")
