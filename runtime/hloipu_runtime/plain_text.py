"""Sanitises foreign text for terminals: no control sequences, no faked lines.

Names, metadata and messages of modules, files and callbacks can hold escape sequences (ECMA-48),
C0 and C1 controls, and marks that turn the direction of writing (Unicode Standard Annex 9), with
which shown text is not what it seems (CVE-2021-42574).
"""

import re
import threading

_DRIVING = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """Return `text` as one line: control characters, line ends among them, become `?`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else (" " if c == "\t" else "?") for c in text)


def plain_lines(text: str) -> str:
    r"""Return lines of text with what would drive a terminal as `\u001b` and the like.

    JSON data stays what it is: that is how its strings escape characters.
    """
    return text if text.isascii() and text.isprintable() else _DRIVING.sub(_escaped, text)


def plain_hlo(text: str) -> str:
    r"""Return HLO text with what would drive a terminal as `\033` and the like.

    Its strings mean the same: they are C's, of bytes.
    """
    return _DRIVING.sub(_octal, text)


def plain_message(error: BaseException) -> str:
    """Return an exception of foreign code with its type, and the first line of what it says.

    Its `__str__` is foreign code too, and may raise anything. KeyboardInterrupt and SystemExit go
    on from it on the main thread; threads of queues have nobody to hand them to.
    """
    kind = printable(type(error).__name__)
    try:
        lines = str(error)[:_LONGEST_MESSAGE].splitlines()
        said = printable(lines[0]) if lines else ""
    except BaseException as raised:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and isinstance(raised, KeyboardInterrupt | SystemExit):
            raise
        return f"{kind}, whose message cannot be had: its __str__ raises"
    return f"{kind}: {said}" if said else kind


_LONGEST_MESSAGE = 200


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    if number < 1 << 16:
        return f"\\u{number:04x}"
    number -= 1 << 16  # as UTF-16 writes it, and JSON with it
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"


def _octal(match: re.Match[str]) -> str:
    data = match[0].encode("utf-8", errors="surrogateescape" if match[0] > "\udc7f" else "replace")
    return "".join(f"\\{byte:03o}" for byte in data)
