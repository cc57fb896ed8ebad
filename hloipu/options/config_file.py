"""`hloipu.toml`: options in a file of the current folder or one above it.

target = "bow"
cache_size_bytes = "4GiB"

[set]
tiles_per_ipu = 64

[ipu_config]
io_tiles.num_io_tiles = 32
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any

from hloipu.options.composite_kinds import Pairs
from hloipu.options.faults import fault, unknown
from hloipu.options.origin import Assignment, Level, Origin, assign
from hloipu.options.table import OPTIONS
from hloipu_runtime.arguments import shown

FILE_NAME = "hloipu.toml"
IPU_CONFIG = "ipu_config"
"""The table that holds keys of Graphcore's IPUConfig."""

MOST_FILE_BYTES = 16 * 1024
"""All options take 2 KB; `tomllib` takes a second for 16 KiB of dots, and the square of more."""
_MOST_LEVELS = 8

_HEADER = re.compile(r"\s*\[([^\[\]]+)\]")
_KEY = re.compile(r"\s*([\w.\"' -]+?)\s*=")


def nearest_file(folder: Path) -> Path | None:
    """Return the `hloipu.toml` of a folder, or of the nearest folder above that has one."""
    for place in (folder, *folder.parents):
        try:
            if S_ISREG((place / FILE_NAME).stat().st_mode):
                return place / FILE_NAME
        except OSError:
            continue  # not there, or in a folder that may not be looked into
    return None


def read_file(path: Path, shown_as: str) -> Iterator[Assignment | str]:
    """Yield the assignments that a file makes, and warnings; paths in it are from its folder.

    Raises UsageError: E3015 for a file that cannot be read, E3016 for one that is not TOML, E3010
    for an unknown key, E3014 for an option that no file may state, and what `assign` raises.
    """
    text = _text(path, shown_as)
    try:
        tables = tomllib.loads(text)
    except RecursionError as error:
        raise fault("E3016", "not TOML: nested too deep", place=shown_as) from error
    except ValueError as error:  # what tomllib and integers of 5,000 digits raise
        place_of_fault = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        at_end = f":{text.count(chr(10)) + 1}" if "(at end of document)" in str(error) else ""
        place = shown_as + (
            f":{place_of_fault[1]}:{place_of_fault[2]}" if place_of_fault else at_end
        )
        fault_text = str(error).partition(" (at ")[0][:200]
        raise fault("E3016", f"not TOML: {fault_text}", place=place) from error
    lines = Lines(shown_as, text)
    for name, value in tables.items():
        if name == IPU_CONFIG:
            yield from _ipu_config(value, lines)
        else:
            yield from _assignments(name, value, lines, path.parent)


def _text(path: Path, shown_as: str) -> str:
    try:
        if not S_ISREG(path.stat().st_mode):
            raise fault("E3015", "not a file", place=shown_as)
        with path.open("rb") as stream:
            data = stream.read(MOST_FILE_BYTES + 1)
        if len(data) > MOST_FILE_BYTES:
            raise fault("E3015", f"more than {MOST_FILE_BYTES} bytes of options", place=shown_as)
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise fault("E3016", "not UTF-8", place=f"{shown_as}:{line}") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise fault("E3015", f"cannot be read: {reason}", place=shown_as) from error


def _assignments(name: str, value: object, lines: "Lines", folder: Path) -> Iterator[Assignment]:
    option = OPTIONS.get(name)
    place = lines.of(name)
    if option is None:
        raise unknown(name, [*OPTIONS, IPU_CONFIG], place=place)
    if not option.about.in_file:
        raise fault(
            "E3014",
            f"a file may not state {name}, which runs code",
            place=place,
            hint=f"give it as {option.flag} on the command line, or as a keyword",
        )
    parts = [(place, value)]
    if isinstance(option.kind, Pairs) and isinstance(value, dict):
        parts = [(lines.of(f"{name}.{key}"), {key: part}) for key, part in value.items()]
    for where, part in parts:
        assignment = assign(option, part, Origin(Level.FILE, where))
        yield Assignment(option, option.kind.rebased(assignment.value, folder), assignment.origin)


def _ipu_config(tables: object, lines: "Lines") -> Iterator[Assignment | str]:
    from hloipu.options import ipu_config

    if not isinstance(tables, dict):
        raise fault(
            "E3011", f"{IPU_CONFIG} is a table, not {shown(tables)}", place=lines.of(IPU_CONFIG)
        )
    for name, value in _leaves(tables):
        origin = Origin(Level.FILE, lines.of(f"{IPU_CONFIG}.{name}"), name)
        yield from ipu_config.translate(name, value, origin)


def _leaves(tables: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield dotted keys and values of nested tables, to a bounded depth."""
    stack: list[tuple[str, object, int]] = [("", tables, 0)]
    while stack:
        name, value, level = stack.pop()
        if isinstance(value, dict) and value and level < _MOST_LEVELS:
            prefix = f"{name}." if name else ""
            stack += [(prefix + key, value[key], level + 1) for key in reversed(value)]
        elif name:
            yield name, value


class Lines:
    """Finds the line of a key, for messages: `tomllib` does not tell lines."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._numbers: dict[str, int] = {}
        table = ""
        for number, line in enumerate(text.splitlines(), 1):
            if header := _HEADER.match(line):
                table = _bare(header[1])
                self._numbers.setdefault(table, number)
            elif key := _KEY.match(line):
                path = f"{table}.{_bare(key[1])}" if table else _bare(key[1])
                self._numbers.setdefault(path, number)

    def of(self, path: str) -> str:
        """Return `file:line` of a dotted key, or of the nearest table above it that is found."""
        while path:
            if path in self._numbers:
                return f"{self._file}:{self._numbers[path]}"
            path = path.rpartition(".")[0]
        return self._file


def _bare(key: str) -> str:
    """Return a dotted key without spaces and quotes."""
    return ".".join(part.strip(" \"'") for part in key.split("."))
