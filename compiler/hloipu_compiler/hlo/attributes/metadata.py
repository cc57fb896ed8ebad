"""`metadata={…}`: where in the user's program an instruction comes from.

Source: openxla/xla `xla/hlo/parser/hlo_parser.cc` (ParseMetadata), `xla/hlo/ir/hlo_op_metadata.cc`.
"""

import re
from dataclasses import fields
from functools import lru_cache

from hloipu_compiler.hlo.attributes.value_cursor import Cursor
from hloipu_compiler.hlo.syntax.strings import quote
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_runtime.frozen import dataclass

_CODE = "E0150"


@dataclass(frozen=True, slots=True)
class OpMetadata:
    """Metadata of one op; 0 and the empty string stand for what the text does not say."""

    op_type: str = ""
    op_name: str = ""
    source_file: str = ""
    source_line: int = 0
    source_end_line: int = 0
    source_column: int = 0
    source_end_column: int = 0
    profile_type: tuple[int, ...] = ()
    deduplicated_name: str = ""
    scheduling_name: str = ""
    stack_frame_id: int = 0
    """Points into the module's StackFrames table, from 1; 0 for none."""
    metadata_payload: str = ""

    def __str__(self) -> str:
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str) and value:
                parts.append(f"{field.name}={quote(value)}")
            elif isinstance(value, tuple) and value:
                parts.append(f"{field.name}={{{','.join(map(str, value))}}}")
            elif value:
                parts.append(f"{field.name}={value}")
        return f"{{{' '.join(parts)}}}"


NO_METADATA = OpMetadata()

_STRINGS = frozenset({
    "op_type", "op_name", "source_file", "deduplicated_name", "scheduling_name", "metadata_payload",
})  # fmt: skip
_INTEGERS = frozenset({
    "source_line", "source_end_line", "source_column", "source_end_column", "stack_frame_id",
})  # fmt: skip
_GONE = frozenset({"preserve_layout"})
"""Keys that XLA once wrote (July 2023 to January 2025) and no longer reads; they are skipped."""

_LAST_PROFILE_TYPE = 3

_TEXT = r'"(?>(?:[^"\\]|\\[\'"\\nrt])*)"'
_NUMBER = r"\d{1,9}+"
_PRINTED = re.compile(
    r"\{"
    + "".join(
        rf"(?>(?:(?<=[{{ ]){field.name}={_TEXT if field.name in _STRINGS else _NUMBER}[ ]?+)?)"
        for field in fields(OpMetadata)
        if field.name != "profile_type"
    )
    + r"\}"
)
"""Metadata in the order of XLA's printer, which also says each key once."""


def check_metadata(text: str) -> None:
    """Check that XLA accepts the text of `metadata=`, braces included; TextFault where not.

    The printed form is recognised by one regular expression, everything else is read.
    """
    if not _PRINTED.fullmatch(text):
        read_metadata(text)


@lru_cache(1 << 15)
def read_metadata(text: str) -> OpMetadata:
    """Read the text of `metadata=`, braces included; the empty text is no metadata."""
    if not text:
        return NO_METADATA
    cursor = Cursor(text, _CODE)
    metadata = take_metadata(cursor)
    cursor.finish()
    return metadata


def take_metadata(cursor: Cursor) -> OpMetadata:
    """Read one `{key=value …}` at the cursor; commas between the pairs may be left out."""
    values: dict[str, str | int | tuple[int, ...]] = {}
    keys: set[str] = set()
    cursor.expect("{")
    if not cursor.at("}"):
        while True:
            cursor.take(",")
            start = cursor.start
            key = cursor.key()
            if key in keys:
                raise TextFault(_CODE, f"`{key}` is said twice", start)
            keys.add(key)
            _take_value(cursor, key, start, values)
            if cursor.at("}"):
                break
    cursor.expect("}")
    return OpMetadata(**values)  # type: ignore[arg-type]


def _take_value(
    cursor: Cursor, key: str, start: int, values: dict[str, str | int | tuple[int, ...]]
) -> None:
    if key in _STRINGS:
        values[key] = cursor.string()
    elif key in _INTEGERS:
        values[key] = cursor.int32()
    elif key == "profile_type":
        types = cursor.integers("{", "}")
        if any(not 0 <= t <= _LAST_PROFILE_TYPE for t in types):
            raise TextFault(_CODE, f"{types} names an unknown profile type", start)
        values[key] = types
    elif key in _GONE:
        cursor.advance()
    else:
        known = ", ".join(field.name for field in fields(OpMetadata))
        raise TextFault(_CODE, f"metadata has no `{key}`", start, expected=f"one of {known}")


def take_metadata_list(cursor: Cursor) -> list[OpMetadata]:
    """Read `{…}` or `{{…}, {…}}`."""
    ahead = Cursor(cursor.source, cursor.code, cursor.start + 1) if cursor.at("{") else cursor
    if not ahead.at("{") or ahead is cursor:
        return [take_metadata(cursor)]
    cursor.expect("{")
    entries = [take_metadata(cursor)]
    while cursor.take(","):
        entries.append(take_metadata(cursor))
    cursor.expect("}")
    return entries


def metadata_list_text(metadata: tuple[OpMetadata, ...]) -> str:
    """Return `metadata=` of a sharding as XLA prints it: one bare, several in a list."""
    if not metadata:
        return ""
    if len(metadata) == 1:
        return f"metadata={metadata[0]}"
    return f"metadata={{{', '.join(map(str, metadata))}}}"
