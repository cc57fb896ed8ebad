"""Which tests reach which lines, told by coverage while the tests run once, and kept in out/.

A pytest plugin: `python -m pytest -p tools.mutants.reach FILE`. Each file of tests gives one
file of records, which holds as long as the tests' own text is the same, and their goldens. Lines
are numbered from the start of the function they stand in, so that an edit elsewhere in a module
leaves its records valid. Work of a fixture that several tests share counts for every
test of its file.
"""

import ast
import gc
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import _lru_cache_wrapper, cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tools.mutants.rooms import ROOMS, ROOT

FOLDER = ROOT / "out" / "mutants" / "reach"
SHARED = "*"
"""Stands for every test of a file: what its shared fixtures reach."""

Lines = Mapping[str, Mapping[str, list[int]]]
"""For each source file and each of its functions the lines that run, from the function's first."""


class TimedTest(NamedTuple):
    """A test as it ran: what it reaches itself, and what the shared fixtures of its file do."""

    name: str
    seconds: float
    lines: Lines
    shared: Lines

    def reaches(self, file: str, function: str, line: int) -> bool:
        """Whether a line, counted from its function's first, runs."""
        return any(
            line in lines.get(file, {}).get(function, ()) for lines in (self.lines, self.shared)
        )


@cache
def _starts(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return first line, last line and name of every function outside functions."""
    spans: list[tuple[int, int, str]] = []

    def walk(nodes: list[ast.stmt], within: str) -> None:
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                walk(node.body, f"{within}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                spans.append((first, node.end_lineno or node.lineno, within + node.name))

    walk(ast.parse(text).body, "")
    return tuple(spans)


def function_of(text: str, line: int) -> tuple[str, int]:
    """Return the function that holds a line, empty outside of any, and its first line."""
    for first, last, name in _starts(text):
        if first <= line <= last:
            return name, first
    return "", 0


def record_path(test_file: Path) -> Path:
    """Return where records of a file of tests are kept."""
    return FOLDER / (str(test_file.relative_to(ROOT)).replace("/", ".") + ".json")


def digest(test_file: Path) -> str:
    """Return the digest of a file of tests, and of the texts in the folder named after it."""
    texts = test_file.with_name(test_file.stem.removeprefix("test_"))
    files = [test_file, *(file for file in sorted(texts.glob("*")) if file.is_file())]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def is_current(test_file: Path) -> bool:
    """Whether records of a file of tests, as its text is now, are kept."""
    path = record_path(test_file)
    return path.exists() and bool(json.loads(path.read_text())["digest"] == digest(test_file))


def tests_of(test_file: Path) -> list[TimedTest]:
    """Return the tests of a file with what they reach; shared work is at each of them."""
    data = json.loads(record_path(test_file).read_text())
    lines = data["lines"]
    return [
        TimedTest(name, seconds, lines.get(name, {}), lines.get(SHARED, {}))
        for name, seconds in data["seconds"].items()
    ]


class _Watch:
    """Switches coverage's context to the test, or the shared fixture, that runs."""

    def __init__(self) -> None:
        import coverage

        files = [str(file) for room in ROOMS.values() for file in room.files()]
        self.coverage: Any = coverage.Coverage(data_file=None, include=files, config_file=False)
        self.coverage.start()
        self.current = ""
        self.seconds: dict[Path, dict[str, float]] = defaultdict(dict)
        self.caches: list[Any] = []
        """Of functions that keep results: a call that finds one would reach nothing."""

    def switch(self, context: str) -> None:
        self.current = context
        self.coverage.switch_context(context)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if item.path not in self.seconds:
            gc.unfreeze()  # what is frozen is not listed
            self.caches = [x for x in gc.get_objects() if type(x) is _lru_cache_wrapper]
        for kept in self.caches:
            kept.cache_clear()
        self.switch(item.nodeid)
        start = time.perf_counter()
        try:
            return (yield)
        finally:
            self.seconds[item.path][item.nodeid] = round(time.perf_counter() - start, 3)
            self.switch("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        before = self.current
        if fixturedef.scope != "function":
            self.switch(f"{before.partition('::')[0]}::{SHARED}")
        try:
            return (yield)
        finally:
            self.switch(before)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        data = self.coverage.get_data()
        lines: dict[str, dict[str, dict[str, list[int]]]] = defaultdict(dict)
        for name in data.measured_files():
            text = Path(name).read_text()
            for line, contexts in data.contexts_by_lineno(name).items():
                function, first = function_of(text, line)
                for context in filter(None, contexts):
                    file = lines[context].setdefault(str(Path(name).relative_to(ROOT)), {})
                    file.setdefault(function, []).append(line - first)
        FOLDER.mkdir(parents=True, exist_ok=True)
        for path, seconds in self.seconds.items():
            own = {name: lines.get(name, {}) for name in [*seconds]}
            own[SHARED] = lines.get(f"{path.relative_to(ROOT)}::{SHARED}", {})
            record = {"digest": digest(path), "seconds": seconds, "lines": own}
            text = json.dumps(record, separators=(",", ":"))
            record_path(path).write_text(text)


def pytest_configure(config: pytest.Config) -> None:
    """Watch this run."""
    config.pluginmanager.register(_Watch(), "reach")
