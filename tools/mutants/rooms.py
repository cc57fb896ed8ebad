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
        files = {file for pattern in self.patterns for file in ROOT.glob(pattern)}
        return sorted(file for file in files if file.name != "__init__.py")


ROOMS = {
    "costs": Room(
        (
            f"{_RUNTIME}/costs/*.py",
            f"{_RUNTIME}/machine/*.py",
            f"{_RUNTIME}/codelets/costs/*.py",
        ),
        ("tests/runtime/costs", "tests/runtime/machine", "tests/runtime/codelets", _GOLDENS),
    ),
    "memory": Room((f"{_RUNTIME}/memory/*.py",), ("tests/runtime/memory", _GOLDENS)),
    "planners": Room(
        tuple(f"{_COMPILER}/{room}/**/*.py" for room in ("planners", "layout", "lowering")),
        (*(f"tests/compiler/{room}" for room in ("planners", "layout", "lowering")), _GOLDENS),
    ),
    "simulate": Room((f"{_RUNTIME}/simulate/**/*.py",), ("tests/runtime/simulate",)),
    "program": Room((f"{_RUNTIME}/program/**/*.py",), ("tests/runtime/program", _GOLDENS)),
    "streams": Room((f"{_RUNTIME}/streams/*.py",), ("tests/runtime/streams",)),
    "partition": Room(
        tuple(
            f"{_COMPILER}/partition/{room}/*.py"
            for room in ("training", "stages", "scans", "placement")
        ),
        ("tests/compiler/partition", _GOLDENS),
    ),
}
