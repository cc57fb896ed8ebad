"""The FileNames, FunctionNames, FileLocations and StackFrames tables between header and body.

Ids count from 1 in table order. XLA reads the entries in order and ignores the ids written before
them; so does this reader. A parent is written one too high, so that 1 says "no parent".
Source: openxla/xla `xla/hlo/parser/hlo_parser.cc` (ParseStackFrameIndex).
"""

import re
from functools import cache
from typing import NamedTuple

from hloipu_compiler.hlo.attributes.value_cursor import Cursor, Kind
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_runtime.frozen import dataclass

_CODE = "E0156"
_NAMED = r'[0-9]++ "(?>(?:[^"\\\n]++|\\[nt\'"\\])*)"\n'
_LOCATION = "".join(
    rf"{key}=[0-9]{{1,9}}+{end}"
    for key, end in (
        ("file_name_id", " "), ("function_name_id", " "), ("line", " "), ("end_line", " "),
        ("column", " "), ("end_column", ""),
    )
)  # fmt: skip
_FRAME = "file_location_id=[0-9]{1,9}+ parent_frame_id=[0-9]{1,9}+"

DEEPEST_STACK = 1000
"""Frames followed at most: a damaged table may hold a cycle."""


class FileLocation(NamedTuple):
    """A place in the user's program; file and function are ids from 1."""

    file_name_id: int
    function_name_id: int
    line: int
    end_line: int
    column: int
    end_column: int


class StackFrame(NamedTuple):
    """A frame: a location, and the frame that called it (0: none)."""

    file_location_id: int
    parent_frame_id: int


class SourceLine(NamedTuple):
    """One resolved frame of a stack."""

    file: str
    line: int
    function: str
    column: int = 0


@dataclass(frozen=True, slots=True)
class StackTables:
    """The four tables."""

    file_names: tuple[str, ...] = ()
    function_names: tuple[str, ...] = ()
    file_locations: tuple[FileLocation, ...] = ()
    stack_frames: tuple[StackFrame, ...] = ()

    def frames(self, stack_frame_id: int, most: int = DEEPEST_STACK) -> list[SourceLine]:
        """Return the stack of a frame, innermost first; empty for 0 or an id out of the table.

        Ends quietly where the table points nowhere or in a circle.
        """
        lines: list[SourceLine] = []
        visited: set[int] = set()
        at = stack_frame_id
        while 0 < at <= len(self.stack_frames) and at not in visited and len(lines) < most:
            visited.add(at)
            frame = self.stack_frames[at - 1]
            if 0 < frame.file_location_id <= len(self.file_locations):
                lines.append(self._line(self.file_locations[frame.file_location_id - 1]))
            at = frame.parent_frame_id
        return lines

    def _line(self, location: FileLocation) -> SourceLine:
        return SourceLine(
            _at(self.file_names, location.file_name_id),
            location.line,
            _at(self.function_names, location.function_name_id),
            location.column,
        )


def _at(names: tuple[str, ...], number: int) -> str:
    return names[number - 1] if 0 < number <= len(names) else ""


NO_TABLES = StackTables()


def read_stack_tables(text: str) -> StackTables:
    """Read the text of the tables, from `FileNames` on; the empty text is empty tables.

    Raises TextFault where XLA's parser would refuse it.
    """
    if not text.strip():
        return NO_TABLES
    cursor = Cursor(text, _CODE)
    _keyword(cursor, "FileNames")
    file_names = _names(cursor)
    _keyword(cursor, "FunctionNames")
    function_names = _names(cursor)
    _keyword(cursor, "FileLocations")
    locations = tuple(FileLocation(*row) for row in _rows(cursor, FileLocation._fields))
    _keyword(cursor, "StackFrames")
    rows = _rows(cursor, StackFrame._fields)
    frames = tuple(StackFrame(location, written - 1) for location, written in rows)
    cursor.finish()
    return StackTables(file_names, function_names, locations, frames)


def _keyword(cursor: Cursor, word: str) -> None:
    if cursor.kind is not Kind.WORD or cursor.text != word:
        raise cursor.fault(expected=word)
    cursor.advance()


def _names(cursor: Cursor) -> tuple[str, ...]:
    names = []
    while cursor.kind is Kind.INTEGER:
        cursor.integer()
        names.append(cursor.string())
    return tuple(names)


def _rows(cursor: Cursor, columns: tuple[str, ...]) -> list[list[int]]:
    rows = []
    while cursor.kind is Kind.INTEGER:
        cursor.integer()
        rows.append(_row(cursor, columns))
    return rows


def _row(cursor: Cursor, columns: tuple[str, ...]) -> list[int]:
    start = cursor.start
    values: dict[str, int] = {}
    cursor.expect("{")
    while not cursor.at("}"):
        cursor.take(",")
        at = cursor.start
        key = cursor.key()
        if key not in columns or key in values:
            raise TextFault(
                _CODE, f"unexpected or repeated `{key}`", at, expected=", ".join(columns)
            )
        values[key] = cursor.int32()
    cursor.expect("}")
    missing = [c for c in columns if c not in values]
    if missing:
        raise TextFault(_CODE, f"the entry lacks `{missing[0]}`", start)
    return [values[c] for c in columns]


def are_printed(text: str) -> bool:
    """Whether tables are in the form that XLA prints; such need no reading to be known as right."""
    return _printed_form().fullmatch(text) is not None


@cache
def _printed_form() -> re.Pattern[str]:
    return re.compile(
        rf"FileNames\n(?>(?:{_NAMED})*)\n*+FunctionNames\n(?>(?:{_NAMED})*)\n*+"
        rf"FileLocations\n(?>(?:[0-9]++ \{{{_LOCATION}\}}\n)*)\n*+"
        rf"StackFrames\n?(?>(?:[0-9]++ \{{{_FRAME}\}}(?:\n|\Z))*)"
    )
