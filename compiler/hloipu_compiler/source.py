"""Source text with positions: offsets become line, column and caret line on demand."""

from bisect import bisect_right
from functools import cached_property

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.plain_text import printable

SHOWN_COLUMNS = 160
"""Widest excerpt of a source line in a message; generated lines reach megabytes."""


@dataclass(frozen=True)
class Source:
    """A whole input text with the name to show for it (a path, or `<text>`)."""

    text: str
    name: str = "<text>"

    @cached_property
    def _line_starts(self) -> list[int]:
        starts = [0]
        find = self.text.find
        at = find("\n")
        while at >= 0:
            starts.append(at + 1)
            at = find("\n", at + 1)
        return starts

    def line_and_column(self, offset: int) -> tuple[int, int]:
        """Return the 1-based line and column of a character offset."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def line_text(self, line: int) -> str:
        """Return the text of a 1-based line, without its line end."""
        start = self._line_starts[line - 1]
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else len(self.text)].rstrip("\r")

    def span(self, start: int, end: int) -> "Span":
        """Return the span of the characters from `start` to before `end`."""
        return Span(self, start, end)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a source text, from character offset `start` to before `end`."""

    source: Source
    start: int
    end: int

    @property
    def line(self) -> int:
        """Line number of the first character, from 1."""
        return self.source.line_and_column(self.start)[0]

    @property
    def column(self) -> int:
        """Column number of the first character, from 1."""
        return self.source.line_and_column(self.start)[1]

    @property
    def text(self) -> str:
        """The characters of the span."""
        return self.source.text[self.start : self.end]

    def __str__(self) -> str:
        line, column = self.source.line_and_column(self.start)
        return f"{self.source.name}:{line}:{column}"

    def caret_lines(self) -> str:
        """Return the source line and, under it, carets below the span; long lines are cut.

        Nothing for a blank line: there is nothing to point at.
        """
        line, column = self.source.line_and_column(self.start)
        shown = self.source.line_text(line)
        if not shown.strip():
            return ""
        first = max(0, column - 1 - SHOWN_COLUMNS // 2) if len(shown) > SHOWN_COLUMNS else 0
        last = first + SHOWN_COLUMNS
        before = "…" if first else ""
        after = "…" if last < len(shown) else ""
        excerpt = before + printable(shown[first:last]) + after
        carets = max(1, min(self.end - self.start, len(shown) - column + 1, last - column + 1))
        indent = " " * (len(before) + column - 1 - first)
        return f"  {excerpt}\n  {indent}{'^' * carets}"
