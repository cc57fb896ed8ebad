"""Loads machines: built in or from files, with overrides."""

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from stat import S_ISREG
from typing import Any

from hloipu_runtime.errors import MachineError
from hloipu_runtime.machine.build import Given, Places, build
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.schema import full_key, shown
from hloipu_runtime.nearest import did_you_mean

MACHINE_NAMES = ("gc2", "gc200", "bow", "tiny", "unit")
"""The built-in machines, in the order in which `hloipu targets` lists them."""

MOST_FILE_BYTES = 256 * 1024
"""A machine file is some 20 KB; nobody's is this long."""

_MACHINES_KEPT = 32
"""Machines that one process goes back and forth between; each takes some 50 KB."""

_OVERRIDE = re.compile(r"[+-]?[0-9](?:_?[0-9]){0,40}")


def load_machine(name_or_path: str, overrides: Mapping[str, str] | None = None) -> Machine:
    """Return a built-in machine, or the one that a `.toml` file describes.

    `overrides` maps keys, dotted or not, to integers as text: `{"tiles_per_ipu": "64"}`. A number
    so given counts as assumed. Raises MachineError (E3201 to E3208), which names the key and the
    line at fault: a machine has no defaults, no number without a source, and no unknown key.
    """
    if name_or_path in MACHINE_NAMES:
        return _built_in(name_or_path, tuple((overrides or {}).items()))
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        data, name = read_file(Path(name_or_path)), Path(name_or_path).stem
    else:
        raise MachineError(
            "E3201",
            f"there is no machine {shown(name_or_path)}",
            hint=did_you_mean(
                name_or_path,
                MACHINE_NAMES,
                f"built in are {', '.join(MACHINE_NAMES)}; another one is the path of a .toml file",
            ),
        )
    text, tables = parse(data, name_or_path)
    return build(name, tables, Places(name_or_path, text), parse_overrides(overrides or {}))


def machine_file(name: str) -> str:
    """Return the text of the file that describes a built-in machine; KeyError for any other."""
    if name not in MACHINE_NAMES:
        raise KeyError(name)
    path = files("hloipu_runtime.machine") / "data" / f"{name}.toml"
    return path.read_text(encoding="utf-8")


@lru_cache(_MACHINES_KEPT)
def _built_in(name: str, overrides: tuple[tuple[str, str], ...]) -> Machine:
    place = f"{name}.toml"
    text, tables = parse((files("hloipu_runtime.machine") / "data" / place).read_bytes(), place)
    return build(name, tables, Places(place, text), parse_overrides(dict(overrides)))


def read_file(path: Path) -> bytes:
    """Return the bytes of a file of bounded size; a pipe or a device is none."""
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):
            raise MachineError("E3201", f"{shown(str(path))} is not a file")
        with path.open("rb") as stream:
            data = stream.read(MOST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise MachineError(
            "E3201",
            f"cannot read the machine {shown(str(path))}: {reason}",
            hint=f"built in are {', '.join(MACHINE_NAMES)}",
        ) from error
    if len(data) > MOST_FILE_BYTES:
        raise MachineError(
            "E3202",
            f"a machine's file of more than {MOST_FILE_BYTES} bytes",
            place=str(path),
            hint="`hloipu targets gc200` shows all that one holds",
        )
    return data


def parse(data: bytes, place: str) -> tuple[str, dict[str, Any]]:
    """Return a TOML text and its tables; raises MachineError E3202 where it is none."""
    try:
        text = data.decode("utf-8")
        return text, tomllib.loads(text)
    except RecursionError as error:
        raise MachineError("E3202", "tables nested too deep", place=place) from error
    except ValueError as error:  # what tomllib, UTF-8 and integers of 5,000 digits raise
        line = re.search(r"line (\d+)", str(error))
        raise MachineError(
            "E3202", f"not TOML: {str(error)[:200]}", place=f"{place}:{line[1]}" if line else place
        ) from error


def parse_overrides(overrides: Mapping[str, str]) -> dict[str, Given]:
    """Return overrides by dotted key; raises MachineError E3203, or E3205 for no integer."""
    given_by_key: dict[str, Given] = {}
    for name, text in overrides.items():
        key = full_key(name.strip(), place="--set")
        if not _OVERRIDE.fullmatch(text.strip()):
            raise MachineError(
                "E3205",
                f"{key} is an integer, not {shown(text)}",
                key=key,
                place="--set",
                hint=f"for example --set {name.strip()}=64",
            )
        if key in given_by_key:
            raise MachineError("E3209", f"{key} is set twice", key=key, place="--set")
        given_by_key[key] = Given(int(text), f"assumed: set to {int(text)} by the user", "--set")
    return given_by_key
