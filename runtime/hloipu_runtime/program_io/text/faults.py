"""Errors in a program's text, with the line and a caret under the place."""

from dataclasses import dataclass

from hloipu_runtime.errors import ArtefactError

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
