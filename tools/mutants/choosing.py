"""Which mutants are tried, and which tests each meets."""

import ast
import hashlib
import random
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tools.mutants.operators import Mutant, bound_names, is_python, mutants_of
from tools.mutants.reach import TimedTest, function_of
from tools.mutants.rooms import ROOMS, ROOT
from tools.mutants.trial import Case

EQUIVALENTS = Path(__file__).with_name("equivalents.toml")
TEST_SECONDS = 25.0
"""Tests of one mutant take no more than this together, as far as they were timed."""
NEAREST = 12
"""Tests of the nearest folders that come before faster ones from elsewhere."""


UNRECORDED_SECONDS = 4.0
"""Assumed for a file of tests of which no records are kept."""


class Equivalent(NamedTuple):
    """A mutant that changes no behaviour that anybody can see, and why."""

    file: str
    line: str
    mutant: str
    reason: str


class PerformanceOnly(NamedTuple):
    """A function, or a constant, that decides how fast something is done and never what is done."""

    file: str
    name: str
    text: str
    """Digest of its text: whoever changes it thinks about the reason again."""
    reason: str


@cache
def _listed() -> Mapping[str, Any]:
    return tomllib.loads(EQUIVALENTS.read_text())


@cache
def equivalents() -> dict[tuple[str, str, str], Equivalent]:
    """Return the listed equivalents by file, line and changed line."""
    listed = [
        Equivalent(file["file"], entry["line"], mutant, entry["reason"])
        for file in _listed().get("file", ())
        for entry in file["entry"]
        for mutant in entry["mutants"]
    ]
    return {(e.file, e.line, e.mutant): e for e in listed}


@cache
def performance_only() -> dict[tuple[str, str], PerformanceOnly]:
    """Return what changes times alone, by file and name."""
    listed = [PerformanceOnly(**entry) for entry in _listed().get("performance_only", ())]
    return {(e.file, e.name): e for e in listed}


def equivalent(mutant: Mutant) -> Equivalent | PerformanceOnly | None:
    """Return the entry that says why a mutant is equivalent, if there is one."""
    text = source(mutant.file)
    name = mutant.names[0] if mutant.names else function_of(text.decode(), mutant.first_line)[0]
    region = performance_only().get((mutant.file, name))
    if region and region.text == text_digest(mutant.file, name):
        return region
    return equivalents().get((mutant.file, *mutant.lines(text)))


@cache
def text_digest(file: str, name: str) -> str:
    """Return a digest of the text of a function, or of a constant, of a file."""
    text = source(file).decode()
    pieces = [
        ast.get_source_segment(text, node) or ""
        for node in ast.walk(ast.parse(text))
        if getattr(node, "name", "") == name.rpartition(".")[2]
        or (isinstance(node, ast.Assign | ast.AnnAssign) and name in bound_names(node))
    ]
    return hashlib.sha256("\n".join(pieces).encode()).hexdigest()[:12]


@cache
def source(file: str) -> bytes:
    """Return a source file."""
    return (ROOT / file).read_bytes()


@cache
def room_mutants(room: str) -> tuple[Mutant, ...]:
    """Return all mutants of a room."""
    return tuple(m for path in ROOMS[room].files() for m in mutants_of(room, path))


def drawn(rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw as many mutants from each room, in turn, none of them equivalent."""
    chosen: list[tuple[int, Mutant]] = []
    for number, room in enumerate(rooms):
        share = count * (number + 1) // len(rooms) - count * number // len(rooms)
        mutants = list(room_mutants(room))
        random.Random(f"{seed} {room}").shuffle(mutants)
        valid = (m for m in mutants if not equivalent(m) and is_python(m, source(m.file)))
        chosen += zip(range(share), valid, strict=False)
    return [mutant for _, mutant in sorted(chosen, key=lambda place: place[0])]


def at_place(file: str, line: int) -> list[Mutant]:
    """Return all mutants of a line."""
    wanted = str((ROOT / file).resolve().relative_to(ROOT))
    rooms = [name for name, room in ROOMS.items() if ROOT / wanted in room.files()]
    on_line = [m for room in rooms for m in mutants_of(room, ROOT / wanted) if m.line == line]
    return [m for m in on_line if is_python(m, source(m.file))]


class ReachingTests:
    """All recorded tests, by the lines that they reach, and files that were not recorded."""

    def __init__(self, tests: Iterable[TimedTest], unrecorded: Iterable[str] = ()) -> None:
        self.unrecorded = sorted(unrecorded)
        self.by_line: dict[tuple[str, str, int], set[str]] = defaultdict(set)
        self.by_source: dict[str, set[str]] = defaultdict(set)
        self.by_file: dict[str, list[TimedTest]] = defaultdict(list)
        self.tests: dict[str, TimedTest] = {}
        for test in tests:
            self.tests[test.name] = test
            self.by_file[test.name.partition("::")[0]].append(test)
            for lines in (test.lines, test.shared):
                for file, functions in lines.items():
                    self.by_source[file].add(test.name)
                    for function, numbers in functions.items():
                        for number in numbers:
                            self.by_line[file, function, number].add(test.name)

    def case(self, mutant: Mutant) -> Case:
        """Return a mutant with its tests.

        First those that reach it, then unrecorded files of the folder that mirrors its own, then
        the other tests of the files that reach it, and last what reaches its file elsewhere: of
        functions that keep their results, calls that found one are not recorded.
        """
        near = ROOMS[mutant.room].tests
        reaching = self._ordered(self._reaching(mutant), near)
        files = dict.fromkeys(test.name.partition("::")[0] for test in reaching)
        others = [test for file in files for test in self.by_file[file]]
        beside = self._ordered(self.by_source[mutant.file], near)
        chosen: dict[str, TimedTest] = {}
        seconds = 0.0
        for test in (*reaching, *self._mirroring(mutant.file), *others, *beside):
            if test.name not in chosen and seconds + test.seconds <= TEST_SECONDS:
                chosen[test.name] = test
                seconds += test.seconds
        return Case(mutant, tuple(chosen.values()))

    def _mirroring(self, file: str) -> list[TimedTest]:
        """Return unrecorded files of the folder of tests of a source file, its namesake first."""
        _, package, *_, folder, name = ("", *Path(file).parts)
        folders = [path for room in ROOMS.values() for path in room.tests]
        mirrors = tuple(f"{f}/" for f in folders if f.endswith(f"{package}/{folder}"))
        unrecorded = [test for test in self.unrecorded if test.startswith(mirrors)]
        unrecorded.sort(key=lambda test: not test.endswith(f"test_{name}"))
        return [TimedTest(test, UNRECORDED_SECONDS, {}, {}) for test in unrecorded]

    def _ordered(self, names: set[str], near: tuple[str, ...]) -> list[TimedTest]:
        """Return tests, some of the nearest first, the fastest first."""
        by_seconds = sorted((self.tests[name] for name in names), key=lambda t: (t.seconds, t.name))
        nearest = [test for test in by_seconds if test.name.startswith(near)][:NEAREST]
        return [*nearest, *(test for test in by_seconds if test not in nearest)]

    def _reaching(self, mutant: Mutant) -> set[str]:
        if not mutant.names:
            return self._at(mutant.file, mutant.first_line, mutant.last_line)
        return {name for file, line in _users(mutant) for name in self._at(file, line, line)} or {
            name
            for (file, function, _), names in self.by_line.items()
            if file == mutant.file and function
            for name in names
        }

    def _at(self, file: str, first: int, last: int) -> set[str]:
        text = source(file).decode()
        function, start = function_of(text, first)
        return {
            name
            for line in range(first, last + 1)
            for name in self.by_line.get((file, function, line - start), ())
        }


def _users(mutant: Mutant) -> Iterator[tuple[str, int]]:
    """Return the lines that use a name that is bound outside functions."""
    module = ".".join(Path(mutant.file).with_suffix("").parts[1:])
    for room in ROOMS.values():
        for path in room.files():
            file = str(path.relative_to(ROOT))
            text = source(file).decode()
            if file == mutant.file or re.search(rf"from {re.escape(module)} import", text):
                for node in ast.walk(ast.parse(text)):
                    name = getattr(node, "id", None) or getattr(node, "attr", None)
                    if name in mutant.names and isinstance(node, ast.expr):
                        yield file, node.lineno
