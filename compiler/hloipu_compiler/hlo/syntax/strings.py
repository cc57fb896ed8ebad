"""Quoted strings: C escapes as XLA's lexer and printer treat them.

Text is held as Python strings in which bytes beyond ASCII stand as UTF-8 characters; bytes that are
no UTF-8 stand as lone surrogates, so that any string prints back byte for byte.
Source: abseil/abseil-cpp `absl/strings/escaping.cc` (CUnescape, CEscape).
"""

import re

from hloipu_compiler.hlo.syntax.text_fault import TextFault

_SIMPLE = {
    "a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, "?": 63, "'": 39, '"': 34,
}  # fmt: skip
_ESCAPE = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]+)|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_ESCAPED = {7: None, 10: b"\\n", 13: b"\\r", 9: b"\\t", 34: b'\\"', 39: b"\\'", 92: b"\\\\"}
_PLAIN = re.compile(rb"[^\x00-\x1f\"'\\\x7f-\xff]*+")
_SPECIAL = re.compile(rb"[\x00-\x1f\"'\\\x7f-\xff]")


def unquote(text: str) -> str:
    """Return what a quoted string stands for; `text` has its quotes. TextFault for a bad escape."""
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "\"'":
        raise TextFault("E0149", "a quoted string is expected here", expected='"…"')
    inner = text[1:-1]
    if "\\" not in inner:
        return inner
    encoded = inner.encode("utf-8", "surrogateescape")
    return _ESCAPE.sub(_unescaped, encoded).decode("utf-8", "surrogateescape")


def _unescaped(match: re.Match[bytes]) -> bytes:
    octal, digits, short, long, letter = match.groups()
    if octal is not None:
        code = int(octal, 8)
    elif digits is not None:
        code = int(digits[-16:], 16) if not digits[:-16].strip(b"0") else 256
    elif letter is not None:
        code = _SIMPLE.get(letter.decode("latin-1"), 256)
    else:
        return _character(match, int(short or long, 16))
    if code > 255:
        raise _bad_escape(match)
    return bytes((code,))


def _character(match: re.Match[bytes], code: int) -> bytes:
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise _bad_escape(match)
    return chr(code).encode()


def _bad_escape(match: re.Match[bytes]) -> TextFault:
    return TextFault(
        "E0149",
        f"`{match[0].decode('latin-1')}` is not an escape that a string may hold",
        match.start() + 1,
        expected=r"\n \t \\ \" \' \xHH or \ooo",
    )


def quote(value: str) -> str:
    """Return a value in double quotes, escaped as XLA's printer escapes."""
    encoded = value.encode("utf-8", "surrogateescape")
    if _PLAIN.fullmatch(encoded):
        return f'"{value}"'
    return '"' + _SPECIAL.sub(_escaped, encoded).decode("ascii") + '"'


def _escaped(match: re.Match[bytes]) -> bytes:
    code = match[0][0]
    return _ESCAPED.get(code) or b"\\%03o" % code
