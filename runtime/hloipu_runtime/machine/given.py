"""A number as somebody gave it, and the place where it stands."""

import re
from typing import NamedTuple

_HEADER = re.compile(r"\[\s*([\w.-]+)\s*\]")
_KEY = re.compile(r"([\w-]+)\s*=")


class Given(NamedTuple):
    """One number as it was given: value, source, and the place it stands at."""

    value: int
    source: str
    place: str


class Places:
    """Finds the line of a key of one file, for messages: `tomllib` does not tell lines."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._text = text

    def of(self, section: str, name: str = "") -> str:
        """Return `file:line` of a section, or of a key in it.

        Only the usual form is found, a `[section]` with one key a line; else the file alone is
        named, or the section's line.
        """
        here, found = "", 0
        for number, line in enumerate(self._text.splitlines(), 1):
            stripped = line.strip()
            if header := _HEADER.match(stripped):
                here = header[1]
                if here == section:
                    found = number
            elif (key := _KEY.match(stripped)) and (
                (here == section and key[1] == name) or (not here and key[1] == section)
            ):
                found = number
                break
        return f"{self._file}:{found}" if found else self._file
