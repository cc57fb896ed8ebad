"""One mutant against the tests that reach it, in a forked child or in a process of its own.

A pytest session collects all tests that are needed, once. For each mutant it forks; the child gives
the functions of the changed file their new code and runs the tests, the first failure ends it. What
stands outside of functions, and whatever passes all its tests, is tried in a process of its own
that imports the changed file from a tree of links.
"""

import gc
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import lru_cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FunctionType
from typing import NamedTuple

import pytest

from tools.mapping import HERE, Where, mapped
from tools.mutants.operators import Mutant
from tools.mutants.reach import TimedTest
from tools.mutants.rooms import ROOT

CASES_AT_ONCE = 8
"""That one session of pytest tries, and a worker at a time."""
START_SECONDS = 60
"""For the imports and the collection of a process of its own."""
TIMES_SLOWER = 10
"""A test may take this many times the seconds that it took, and SPARE_SECONDS."""
SPARE_SECONDS = 15
DATA_BYTES = 6 << 30
"""A mutant that fills the memory ends there."""

Items = Mapping[str, pytest.Item]
"""Collected tests by name."""

KILLED, SURVIVED, TIMED_OUT, NOT_REACHED = "killed", "survived", "timed out", "not reached"
LOST = "lost"
"""Its worker died with it, or what tries it raised something."""
_PASSED, _FAILED, _NOT_SWAPPED = 0, 1, 3


class Case(NamedTuple):
    """A mutant and its tests, in the order in which they run."""

    mutant: Mutant
    tests: tuple[TimedTest, ...]


class Outcome(NamedTuple):
    """How a mutant ended."""

    case: Case
    verdict: str
    seconds: float


def allowed_seconds(test: TimedTest) -> int:
    """Return how long a test may run."""
    return int(SPARE_SECONDS + TIMES_SLOWER * test.seconds)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Return all code within a module's code."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def swap(path: Path, source: bytes) -> bool:
    """Give every living function of a file the code of a changed text; False: not possible."""
    new: dict[tuple[str, int], list[CodeType]] = {}
    for code in _codes(compile(source, str(path), "exec")):
        new.setdefault((code.co_qualname, code.co_firstlineno), []).append(code)
    gc.unfreeze()  # what is frozen is not listed
    functions = [f for f in gc.get_objects() if type(f) is FunctionType]
    ours = [f for f in functions if f.__code__.co_filename == str(path)]
    for function in ours:
        old = function.__code__
        same = new.get((old.co_qualname, old.co_firstlineno), [])
        if len(same) != 1 or same[0].co_freevars != old.co_freevars:
            if "<" in old.co_qualname:  # lambdas of one line, closures: made anew or left
                continue
            return False
        function.__code__ = same[0]
    return bool(ours)


class _Watch:
    """Ends the child at the first failure, which it names, and when a test takes too long."""

    def __init__(self, seconds: dict[str, int], failures: int) -> None:
        self.seconds = seconds
        self.failures = failures
        """Where to write the name of the test that fails."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.alarm(self.seconds[nodeid])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self.failures, report.nodeid.encode())
            os._exit(_FAILED)


def _items_of(test: TimedTest, items: Items) -> list[str]:
    """Return the collected items of a test, or of a whole file of tests."""
    if test.name in items:
        return [test.name]
    return [name for name in items if name.startswith(f"{test.name}::")]


def _run_child(
    session: pytest.Session, mutant: Mutant | None, run: dict[str, int], items: Items, failures: int
) -> None:
    """Change the code, if it is to be, and run tests, each with its limit; does not return."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    status = _FAILED
    try:
        if mutant:
            path = ROOT / mutant.file
            if mutant.names or not swap(path, mutant.mutated(path.read_bytes())):
                os._exit(_NOT_SWAPPED)
        session.config.pluginmanager.register(_Watch(run, failures), "mutant")
        chosen = [items[name] for name in run]
        for item, after in zip(chosen, [*chosen[1:], None], strict=True):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        status = _PASSED
    finally:
        os._exit(status)


class _End(NamedTuple):
    """How a child ended."""

    status: int | None
    """None: by a signal."""
    failed: str
    """The test that failed; empty: none did, or the child was ended before it could say which."""


def _fork(
    session: pytest.Session, mutant: Mutant | None, run: dict[str, int], items: Items
) -> _End:
    """Run tests in a forked child, with a mutant or without, and end all that it started."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _run_child(session, mutant, run, items, writing)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with os.fdopen(reading, "rb") as pipe:
        failed = pipe.read().decode()
    code = os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else None
    return _End(code, failed)


@lru_cache(maxsize=1)
def _tree_of_process() -> TemporaryDirectory[str]:
    """Make a tree of links to all sources and tests, which is this process's own."""
    place = ROOT / "out" / "mutants"
    place.mkdir(parents=True, exist_ok=True)
    made = TemporaryDirectory(prefix="tree-", dir=place)
    tree = Path(made.name)
    for name in ("compiler", "runtime", "hloipu", "tests", "tools"):
        for folder, _, files in os.walk(ROOT / name):
            there = tree / Path(folder).relative_to(ROOT)
            there.mkdir(parents=True, exist_ok=True)
            for file in files:
                (there / file).symlink_to(Path(folder, file))
    for name in ("hlo_samples", "docs", "pyproject.toml", "Makefile", "README.md"):
        (tree / name).symlink_to(ROOT / name)
    return made


def apart(case: Case, names: Sequence[str]) -> tuple[str, str]:
    """Try a case with some tests in a process of its own; also return which test fails."""
    path = ROOT / case.mutant.file
    tree = Path(_tree_of_process().name)
    link = tree / case.mutant.file
    compiled = [*(link.parent / "__pycache__").glob(f"{link.stem}.*.pyc")]
    for old in (link, *compiled):
        old.unlink()
    link.write_bytes(case.mutant.mutated(path.read_bytes()))
    roots = os.pathsep.join(str(tree / root) for root in ("", "compiler", "runtime"))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
    limit = START_SECONDS + TIMES_SLOWER * sum(test.seconds for test in case.tests)
    process = subprocess.Popen(
        [*command, *names], cwd=tree, start_new_session=True, text=True,
        env={**os.environ, "PYTHONPATH": roots},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit)
        failed = next((name for name in names if f"FAILED {name}" in output), "")
        return (KILLED if process.returncode else SURVIVED), failed
    except subprocess.TimeoutExpired:
        return TIMED_OUT, ""
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        link.unlink()
        link.symlink_to(path)
        for bytecode in (link.parent / "__pycache__").glob(f"{link.stem}.*.pyc"):
            bytecode.unlink()


class _Trials:
    """The plugin that tries all cases where pytest would run the tests."""

    def __init__(self, cases: Sequence[Case], twice: bool, end: float) -> None:
        self.cases = cases
        self.outcomes: list[Outcome] = []
        self.twice = twice
        self.end = end

        self.trusted: dict[str, bool] = {}
        """Whether tests that found a mutant pass without it."""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        for case in self.cases:
            start = time.perf_counter()
            if time.time() > self.end:
                break
            verdict = self.verdict(session, case, items)
            self.outcomes.append(Outcome(case, verdict, time.perf_counter() - start))
        return True

    def verdict(self, session: pytest.Session, case: Case, items: Items) -> str:
        """Try a case, once more without each test that fails with unchanged code, too."""
        limits = {
            name: allowed_seconds(test) for test in case.tests for name in _items_of(test, items)
        }
        while run := {n: limit for n, limit in limits.items() if self.trusted.get(n, True)}:
            verdict, failed = self.tried(session, case, run, items)
            if verdict != KILLED or not failed:
                return verdict
            if failed not in self.trusted:
                unchanged = _fork(session, None, {failed: run[failed]}, items)
                self.trusted[failed] = unchanged.status == _PASSED
            if self.trusted[failed]:
                return KILLED
        return NOT_REACHED

    def tried(
        self, session: pytest.Session, case: Case, run: dict[str, int], items: Items
    ) -> tuple[str, str]:
        """Try a case once: in a fork, and in a process of its own if it lives or needs that."""
        end = _fork(session, case.mutant, run, items)
        if end.status is None:
            return TIMED_OUT, ""
        if end.status == _NOT_SWAPPED or (end.status == _PASSED and self.twice):
            return apart(case, [*run])
        return (SURVIVED if end.status == _PASSED else KILLED), end.failed


class _Some(NamedTuple):
    """Cases that one session tries."""

    cases: tuple[Case, ...]
    twice: bool
    end: float
    """By the clock of the day: no other case begins then."""


def _tried_together(some: _Some) -> list[Outcome]:
    """Try cases in one session of pytest, in a worker's process."""
    trials = _Trials(some.cases, some.twice, some.end)
    files = sorted({test.name.partition("::")[0] for x in some.cases for test in x.tests})
    arguments = ["-q", "-s", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    with redirect_stdout(StringIO()):
        pytest.main([*arguments, *files], plugins=[trials])
    return trials.outcomes


def _lost(some: _Some, said: str) -> list[Outcome]:
    print(said, file=sys.stderr)
    return [Outcome(case, LOST, 0.0) for case in some.cases]


def try_all(
    cases: Sequence[Case],
    told: Callable[[Outcome], None],
    *,
    twice: bool,
    seconds: float,
    where: Where = HERE,
) -> None:
    """Try cases, those that live in a fork `twice`; `told` hears of each as some have ended.

    After `seconds` no other case begins.
    """
    end = time.time() + seconds
    together = [
        _Some(tuple(cases[n : n + CASES_AT_ONCE]), twice, end)
        for n in range(0, len(cases), CASES_AT_ONCE)
    ]
    for outcomes in mapped(_tried_together, together, _lost, where):
        for outcome in outcomes:
            told(outcome)
