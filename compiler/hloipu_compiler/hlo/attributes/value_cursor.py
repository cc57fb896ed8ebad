"""A cursor over the tokens of one attribute's value, for the readers that run on demand.

Tokens are those of openxla/xla `xla/hlo/parser/hlo_lexer.cc`: an identifier glued to `=` is a key,
one glued to `:` a name, and blanks and comments may stand between any two tokens.
"""

import re
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from hloipu_compiler.hlo.literals.tokens import BLANKS
from hloipu_compiler.hlo.syntax.strings import unquote
from hloipu_compiler.hlo.syntax.text_fault import TextFault

_TOKEN = re.compile(
    BLANKS
    + r"""(?:
      (?P<key> [A-Za-z_][\w.\-]*= )
    | (?P<name> %[A-Za-z_][\w.\-]* | [A-Za-z_][\w.\-]*: )
    | (?P<word> [A-Za-z_][\w.\-]* )
    | (?P<decimal> (?:-?\d+(?:\.\d*)? | -\.\d+)[eE][+-]?\d+ | -?\d+\.\d* | -\.\d+ )
    | (?P<pattern> [0-9bf?]{2,}_[0-9io?]{2,}->[0-9bf?]{2,} | \d+(?:x\d+)+
                 | -?\d+_-?\d+(?:_\d+)?(?:x-?\d+_-?\d+(?:_\d+)?)* )
    | (?P<integer> -?\d+ )
    | (?P<string> "(?>(?:[^"\\]|\\[^\n])*)" | '(?>(?:[^'\\]|\\[^\n])*)' )
    | (?P<mark> -> | <= | [=,:*\#+~?\[\]{}()] )
    | (?P<end> \Z )
    )""",
    re.VERBOSE | re.ASCII,
)
_RAW_STEP = re.compile(r'[{}]|"(?>(?:[^"\\]|\\[^\n])*)"|"')

Item = TypeVar("Item")


class Kind(Enum):
    """Kinds of tokens."""

    KEY = "key"
    NAME = "name"
    WORD = "word"
    DECIMAL = "decimal"
    PATTERN = "pattern"
    INTEGER = "integer"
    STRING = "string"
    MARK = "mark"
    END = "end"


class Cursor:
    """The token at hand of a text; faults carry the code of the value that is being read."""

    __slots__ = ("_end", "code", "kind", "source", "start", "text")

    def __init__(self, source: str, code: str, at: int = 0) -> None:
        self.source = source
        self.code = code
        self._end = at
        self.kind = Kind.END
        self.text = ""
        self.start = at
        self.advance()

    def advance(self) -> None:
        """Step to the next token; TextFault where the text holds none."""
        match = _TOKEN.match(self.source, self._end)
        if match is None or match.lastgroup is None:
            raise TextFault(self.code, "unexpected character or unclosed string", self._end)
        self.kind = Kind(match.lastgroup)
        self.text = match[match.lastgroup]
        self.start = match.start(match.lastgroup)
        self._end = match.end()

    def fault(self, message: str = "", *, expected: str = "") -> TextFault:
        """Return a fault at the token at hand; without a message it says what was found."""
        default = f"found `{self.text}`" if self.text else "the value ends too early"
        return TextFault(self.code, message or default, self.start, expected=expected)

    def at(self, mark: str) -> bool:
        """Whether the token at hand is this mark."""
        return self.text == mark and self.kind is Kind.MARK

    def take(self, mark: str) -> bool:
        """Step over this mark where it stands; whether it did."""
        if not self.at(mark):
            return False
        self.advance()
        return True

    def expect(self, mark: str) -> None:
        """Step over this mark; TextFault where it does not stand."""
        if not self.take(mark):
            raise self.fault(expected=f"`{mark}`")

    def finish(self) -> None:
        """Check that the value ends here."""
        if self.kind is not Kind.END:
            raise self.fault(expected="the end of the value")

    def integer(self) -> int:
        """Read an integer of 64 bits; from 2**63 on it wraps, as in XLA."""
        if self.kind is not Kind.INTEGER:
            raise self.fault(expected="an integer")
        value = int(self.text) if len(self.text) < 40 else 2**70
        if not -(2**63) <= value < 2**64:
            raise self.fault("an integer beyond 64 bits")
        self.advance()
        return value if value < 2**63 else value - 2**64

    def int32(self) -> int:
        """Read an integer of 32 bits."""
        start = self.start
        value = self.integer()
        if not -(2**31) <= value < 2**31:
            raise TextFault(self.code, f"{value} does not fit 32 bits", start)
        return value

    def string(self) -> str:
        """Read a quoted string, undoing its escapes."""
        if self.kind is not Kind.STRING:
            raise self.fault(expected="a quoted string")
        try:
            value = unquote(self.text)
        except TextFault as fault:
            fault.offset += self.start
            raise
        self.advance()
        return value

    def key(self) -> str:
        """Read `key=`; return the key."""
        if self.kind is not Kind.KEY:
            raise self.fault(expected="`key=`")
        key = self.text[:-1]
        self.advance()
        return key

    def items(self, opening: str, closing: str, read: Callable[[], Item]) -> tuple[Item, ...]:
        """Read items between two marks, separated by commas; there may be none."""
        self.expect(opening)
        items: list[Item] = []
        while not self.at(closing):
            if items:
                self.expect(",")
            items.append(read())
        self.expect(closing)
        return tuple(items)

    def integers(self, opening: str, closing: str) -> tuple[int, ...]:
        """Read integers between two marks, separated by commas; there may be none."""
        self.expect(opening)
        values = []
        if not self.at(closing):
            values.append(self.integer())
            while self.take(","):
                values.append(self.integer())
        self.expect(closing)
        return tuple(values)

    def raw_braces(self) -> str:
        """Read a balanced `{…}` verbatim; only braces and double-quoted strings are understood."""
        if not self.at("{"):
            raise self.fault(expected="`{`")
        depth = 0
        for step in _RAW_STEP.finditer(self.source, self.start):
            if step[0] == "{":
                depth += 1
            elif step[0] == "}":
                depth -= 1
                if depth == 0:
                    raw = self.source[self.start : step.end()]
                    self._end = step.end()
                    self.advance()
                    return raw
            elif step[0] == '"':
                raise TextFault(self.code, "this string is never closed", step.start())
        raise self.fault("this `{` is never closed", expected="`}`")
