"""`frontend_attributes={…}` and `backend_config=…`: strings and raw braces that travel through XLA.

Source: openxla/xla `xla/hlo/parser/hlo_parser.cc` (ParseFrontendAttributes, ParseStringOrJsonDict).
"""

from collections.abc import Mapping
from functools import lru_cache

from hloipu_compiler.hlo.attributes.value_cursor import Cursor, Kind
from hloipu_compiler.hlo.syntax.strings import quote
from hloipu_compiler.hlo.syntax.text_fault import TextFault

_ATTRIBUTES_CODE = "E0154"
_CONFIG_CODE = "E0155"
_MOST_KNOWN = 1024
"""Characters of attributes that are kept."""


def read_frontend_attributes(text: str) -> dict[str, str]:
    """Read `{key="text",key2={raw}}`, braces included; the empty text is no attributes.

    Raw braces are kept verbatim with their braces. A key said twice has its last value, as in XLA.
    """
    if not text:
        return {}
    return dict(_known_pairs(text) if len(text) <= _MOST_KNOWN else _pairs(text))


def _pairs(text: str) -> dict[str, str]:
    cursor = Cursor(text, _ATTRIBUTES_CODE)
    text_by_key: dict[str, str] = {}
    cursor.expect("{")
    if not cursor.at("}"):
        _take_pair(cursor, text_by_key)
        while cursor.take(","):
            _take_pair(cursor, text_by_key)
    cursor.expect("}")
    cursor.finish()
    return text_by_key


_known_pairs = lru_cache(1024)(_pairs)
"""Many ops have the same attributes, and every step that looks for marks reads those of all."""


def _take_pair(cursor: Cursor, text_by_key: dict[str, str]) -> None:
    key = cursor.key()
    text_by_key[key] = _string_or_braces(cursor)


def _string_or_braces(cursor: Cursor) -> str:
    if cursor.kind is Kind.STRING:
        return cursor.string()
    if cursor.at("{"):
        return cursor.raw_braces()
    raise cursor.fault(expected="a quoted string or a balanced {…}")


def frontend_attributes_text(attributes: Mapping[str, str]) -> str:
    """Return the text of frontend attributes as XLA prints it: keys sorted, braces left raw."""
    parts = [f"{key}={config_text(value)}" for key, value in sorted(attributes.items())]
    return f"{{{','.join(parts)}}}"


def read_backend_config(text: str) -> str:
    """Return what `backend_config=` stands for: the unquoted string, or the raw braces."""
    if not text:
        return ""
    cursor = Cursor(text, _CONFIG_CODE)
    value = _string_or_braces(cursor)
    cursor.finish()
    return value


def config_text(value: str) -> str:
    """Return a value as XLA prints it: raw where it is one balanced `{…}`, else quoted."""
    try:
        cursor = Cursor(value, _CONFIG_CODE)
        cursor.raw_braces()
        cursor.finish()
    except TextFault:
        return quote(value)
    return value
