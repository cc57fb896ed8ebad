"""The rooms whose code is mutated, and the tests that are asked first."""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_COMPILER = "compiler/hloipu_compiler"
_RUNTIME = "runtime/hloipu_runtime"
_GOLDENS = "tests/goldens"
"""Whole programs with their costs and memory: they move with most decisions."""


class Room(NamedTuple):
    """Source files by pattern, and the folders of tests nearest to them."""

    patterns: tuple[str, ...]
    tests: tuple[str, ...]

    def files(self) -> list[Path]:
        """Return the source files, sorted."""
        found = {file for pattern in self.patterns for file in ROOT.glob(pattern)}
        return sorted(file for file in found if file.name != "__init__.py")


ROOMS = {
    "costing": Room(
        (
            f"{_RUNTIME}/costing/*.py",
            f"{_RUNTIME}/machine/*.py",
            f"{_RUNTIME}/codelets/*cost*.py",
            f"{_RUNTIME}/codelets/*rates.py",
            f"{_RUNTIME}/codelets/amp.py",
        ),
        ("tests/runtime/costing", "tests/runtime/machine", "tests/runtime/codelets", _GOLDENS),
    ),
    "memory": Room((f"{_RUNTIME}/memory/*.py",), ("tests/runtime/memory", _GOLDENS)),
    "planners": Room((f"{_COMPILER}/codegen/*.py",), ("tests/compiler/codegen", _GOLDENS)),
    "sim": Room((f"{_RUNTIME}/sim/*.py",), ("tests/runtime/sim",)),
    "program": Room((f"{_RUNTIME}/program/*.py",), ("tests/runtime/program", _GOLDENS)),
    "streams": Room((f"{_RUNTIME}/streams/*.py",), ("tests/runtime/streams",)),
    "partition": Room(
        tuple(f"{_COMPILER}/{room}/*.py" for room in ("staging", "stacking", "sharding")),
        (*(f"tests/compiler/{room}" for room in ("staging", "stacking", "sharding")), _GOLDENS),
    ),
}
