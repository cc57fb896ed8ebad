"""Lexer of program text, a cursor over its tokens, errors with a caret under the place."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeVar

from hloipu_runtime.errors import ArtefactError

T = TypeVar("T")

MOST_BLOCKS = 64
"""Braces and brackets within each other: the readers recurse."""
_LONGEST_NUMBER = 20
_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\n]*)+")
_TOKEN = re.compile(
    r"""
    (?P<text> "(?:[^"\\\n]|\\.)*" )
  | (?P<number> -?[0-9]+ (?![\w]) )
  | (?P<value> %[0-9]+ )
  | (?P<word> [A-Za-z_][A-Za-z0-9_]* (?:-[A-Za-z_][A-Za-z0-9_]*)* )
  | (?P<mark> -> | <- | \.\. | [][(){}=,:;*+@] )
    """,
    re.VERBOSE,
)


_SHOWN_COLUMNS = 160


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A stretch of one line of a text."""

    name: str
    line: int
    column: int
    length: int
    text: str
    """Of the whole line."""

    def __str__(self) -> str:
        return f"{self.name}:{self.line}:{self.column}"

    def caret_lines(self) -> str:
        """Return the line, cut to what can be shown, and carets below the place."""
        first = max(0, self.column - 1 - _SHOWN_COLUMNS // 2)
        shown = self.text[first : first + _SHOWN_COLUMNS]
        shown = "".join(c if c.isprintable() else " " for c in shown)
        at = self.column - 1 - first
        return f"  {shown}\n  {' ' * at}{'^' * max(1, min(self.length, len(shown) - at))}"


def span_at(text: str, start: int, end: int, name: str) -> TextSpan:
    """Return the span of some characters of a text."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    line = text[line_start : len(text) if line_end < 0 else line_end]
    number = text.count("\n", 0, start) + 1
    return TextSpan(name, number, start - line_start + 1, end - start, line)


class ProgramTextError(ArtefactError):
    """A program's text that says what no program is; `span` is the place."""

    def __init__(self, code: str, message: str, span: TextSpan, *, hint: str = "") -> None:
        super().__init__(code, message, hint=hint)
        self.span = span

    def __str__(self) -> str:
        text = f"error[{self.code}]: {self.span}: {self.message}\n{self.span.caret_lines()}"
        return f"{text}\n  hint: {self.hint}" if self.hint else text


class Token(NamedTuple):
    """A word, a mark, a number, or the end."""

    kind: str
    """One of text, number, value, word, mark, end."""
    text: str
    start: int
    """Offset of its first character."""


class Cursor:
    """Reads words one after the other; raises ProgramTextError E4020 for one that is not due."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self._at = 0
        self._levels = 0
        self.token = Token("end", "", 0)
        self.advance()

    def advance(self) -> Token:
        """Step to the next word and return the one before."""
        before = self.token
        space = _SPACE.match(self.text, self._at)
        start = space.end() if space else self._at
        word = _TOKEN.match(self.text, start)
        if word is not None:
            self._at = word.end()
            self.token = Token(word.lastgroup or "", word[0], start)
        elif start < len(self.text):
            self._fail("no word of a program's text starts here", start, start + 1)
        else:
            self._at = start
            self.token = Token("end", "", start)
        return before

    def _fail(self, message: str, start: int, end: int) -> NoReturn:
        span = span_at(self.text, start, end, self.name)
        raise ProgramTextError("E4020", message, span, hint="`hloipu emit` prints such texts")

    def span(self, token: Token) -> TextSpan:
        """Return where a word stands."""
        return span_at(self.text, token.start, token.start + len(token.text), self.name)

    def fail(self, message: str, token: Token | None = None) -> NoReturn:
        """Raise the error that a word, the next one by default, is not right."""
        at = self.token if token is None else token
        self._fail(message, at.start, at.start + max(1, len(at.text)))

    def wrong(self, expected: str) -> NoReturn:
        """Raise the error that something else is due."""
        word = repr(self.token.text[:40]) if self.token.text else "the end"
        self.fail(f"expected is {expected}, found is {word}")

    def sees(self, text: str) -> bool:
        """Whether a mark or a word is next."""
        return self.token.text == text and self.token.kind != "text"

    def take(self, text: str) -> bool:
        """Pass a mark or a word if it is next."""
        if self.token.text == text and self.token.kind != "text":
            self.advance()
            return True
        return False

    def expect(self, text: str) -> None:
        """Pass a mark or a word."""
        if not self.take(text):
            self.wrong(repr(text))

    def word(self, expected: str) -> str:
        """Pass any word."""
        if self.token.kind != "word":
            self.wrong(expected)
        return self.advance().text

    def integer(self) -> int:
        """Pass an integer."""
        if self.token.kind != "number":
            self.wrong("an integer")
        if len(self.token.text) > _LONGEST_NUMBER:
            self.fail("an integer of more than 64 bits")
        return int(self.advance().text)

    def string(self) -> str:
        """Pass a text in quotes, written as JSON's."""
        if self.token.kind != "text":
            self.wrong("a text in quotes")
        try:
            value: str = json.loads(self.token.text)
        except ValueError:
            self.fail("not a text as JSON has it")
        self.advance()
        return value

    def optional_string(self) -> str:
        """Pass a text in quotes if there is one; else it is empty."""
        return self.string() if self.token.kind == "text" else ""

    def items(self, first: str, last: str, item: Callable[[], T]) -> tuple[T, ...]:
        """Pass items with commas between them, and the marks around them."""
        self.enter(first)
        items: list[T] = []
        while not self.take(last):
            if items:
                self.expect(",")
            items.append(item())
        self.leave()
        return tuple(items)

    def enter(self, mark: str) -> None:
        """Pass an opening mark."""
        self._levels += 1
        if self._levels > MOST_BLOCKS * 3:
            self.fail(f"marks within each other, more than {MOST_BLOCKS * 3} deep")
        self.expect(mark)

    def leave(self) -> None:
        """Note that a closing mark was passed."""
        self._levels -= 1
