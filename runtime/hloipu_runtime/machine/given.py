"""A number given by a user, with its place in a file."""

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
        self._headers: dict[str, int] = {}
        """The last line at which a section begins."""
        self._keys: dict[tuple[str, str], int] = {}
        """The first line of each key of a section; before the first section that is ""."""
        section = ""
        for number, line in enumerate(text.splitlines(), 1):
            stripped = line.strip()
            if header := _HEADER.match(stripped):
                section = header[1]
                self._headers[section] = number
            elif key := _KEY.match(stripped):
                self._keys.setdefault((section, key[1]), number)

    def of(self, section: str, name: str = "") -> str:
        """Return `file:line` of a section, or of a key in it.

        Only the usual form is found, a `[section]` with one key a line; else the file alone is
        named, or the section's line.
        """
        line = self._keys.get(("", section)) or self._keys.get((section, name))
        line = line or self._headers.get(section)
        return f"{self._file}:{line}" if line else self._file
