"""Tokens of a literal, cut exactly where XLA's lexer cuts them.

Source: openxla/xla `xla/hlo/parser/hlo_lexer.cc`. Two surprises: `1-2` is two numbers, and an
integer beyond 64 bits is no token at all, not a float.
"""

import re
import struct
from enum import Enum

from hloipu_compiler.hlo.syntax.lexer import COMMENT
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_runtime.frozen import dataclass

BLANKS = rf"(?>(?:[ \t\r\n]+|{COMMENT}|//[^\r\n]*)*)"
"""Blanks and comments, which may stand between any two tokens."""

_TOKEN = re.compile(
    BLANKS
    + r"""(?:
      (?P<float> (?:-?\d+(?:\.\d*)? | -\.\d+)[eE][+-]?\d+ | -?\d+\.\d* | -\.\d+ )
    | (?P<pattern> [0-9bf?]{2,}_[0-9io?]{2,}->[0-9bf?]{2,} | \d+(?:x\d+)+ | -?\d+_-?\d+ )
    | (?P<integer> -?\d+ )
    | (?P<punctuation> [{}(),] )
    | (?P<dots> \.\.\. )
    | (?P<infinity> -inf | inf(?![\w.\-:=]) )
    | (?P<nan> (?:-nan|nan(?![\w.\-:=]))(?:\([^)\n]{0,32}\))? )
    | (?P<word> (?:true|false)(?![\w.\-:=]) )
    | (?P<end> \Z )
    )""",
    re.VERBOSE | re.ASCII,
)
_PAYLOAD = re.compile(r"0x[0-9a-fA-F]+")
_LARGEST_PAYLOAD = 2**52 - 1
_QUIET = 2**51


class Token(Enum):
    """Kinds of token that a literal may hold."""

    PUNCTUATION = "punctuation"
    DOTS = "`...`"
    INTEGER = "an integer"
    FLOAT = "a number"
    INFINITY = "an infinity"
    NAN = "a nan"
    WORD = "true or false"
    END = "the end of the literal"


_KINDS = {
    "float": Token.FLOAT, "integer": Token.INTEGER, "punctuation": Token.PUNCTUATION,
    "dots": Token.DOTS, "infinity": Token.INFINITY, "nan": Token.NAN, "word": Token.WORD,
    "end": Token.END,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Nan:
    """A nan as written: its sign, and its payload in double precision's 52 bits."""

    negative: bool
    payload: int = _QUIET

    @property
    def is_plain(self) -> bool:
        """Whether no payload was said."""
        return self.payload == _QUIET

    def __float__(self) -> float:
        bits = (int(self.negative) << 63) | (0x7FF << 52) | self.payload
        value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
        return value


class LiteralTokens:
    """The tokens of a text, one at a time: `kind`, `text` and `start` of the one at hand."""

    __slots__ = ("_end", "kind", "source", "start", "text")

    def __init__(self, source: str, at: int = 0) -> None:
        self.source = source
        self._end = at
        self.kind = Token.END
        self.text = ""
        self.start = at
        self.advance()

    def advance(self) -> None:
        """Step to the next token; TextFault where the text holds none."""
        match = _TOKEN.match(self.source, self._end)
        kind = match and _KINDS.get(match.lastgroup or "")
        if match is None or kind is None:
            raise self._no_token(match)
        group = match.lastgroup or ""
        self.kind = kind
        self.text = match[group]
        self.start = match.start(group)
        self._end = match.end()

    def _no_token(self, match: re.Match[str] | None) -> TextFault:
        if match is not None:
            at, token = match.start(match.lastgroup or 0), match[match.lastgroup or 0]
        else:
            blank = re.compile(BLANKS).match(self.source, self._end)
            at = blank.end() if blank else self._end
            token = self.source[at : at + 12]
        return TextFault(
            "E0140", f"`{token}` is not an element of a literal", at, expected="a number"
        )

    def is_mark(self, mark: str) -> bool:
        """Whether the token at hand is this punctuation mark."""
        return self.kind is Token.PUNCTUATION and self.text == mark

    def expect(self, mark: str, where: str) -> None:
        """Step over a punctuation mark; TextFault where another token stands."""
        if not self.is_mark(mark):
            raise TextFault(
                "E0140", f"found {self.shown()} {where}", self.start, expected=f"`{mark}`"
            )
        self.advance()

    def shown(self) -> str:
        """Return the token at hand as a message shows it."""
        return f"`{self.text}`" if self.text else Token.END.value

    def nan(self) -> Nan:
        """Return the nan at hand; TextFault for a payload that no double can carry."""
        sign, _, payload = self.text.partition("(")
        if not payload:
            return Nan(sign[0] == "-")
        digits = payload[:-1]
        bits = int(digits, 16) if _PAYLOAD.fullmatch(digits) else 0
        if not 0 < bits <= _LARGEST_PAYLOAD:
            raise TextFault(
                "E0142",
                f"nan payload `{digits}` is out of range",
                self.start,
                expected=f"0x1 to {_LARGEST_PAYLOAD:#x}",
            )
        return Nan(sign[0] == "-", bits)

    def integer(self) -> int:
        """Return the integer at hand as XLA holds it: in 64 bits, 2**63 and more wrapped."""
        value = int(self.text) if len(self.text) < 40 else 2**70
        if not -(2**63) <= value < 2**64:
            raise TextFault(
                "E0142",
                f"integer `{self.text[:24]}` does not fit 64 bits",
                self.start,
                hint="write a decimal point if a float is meant",
            )
        return value if value < 2**63 else value - 2**64
