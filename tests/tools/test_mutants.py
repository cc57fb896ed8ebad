"""Planting mutants: what is changed and what is not, and that changed code really runs."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tools.mutants.choosing import (
    Equivalent,
    PerformanceOnly,
    ReachingTests,
    drawn,
    equivalent,
    equivalents,
    performance_only,
)
from tools.mutants.operators import is_python, mutants_of, mutants_of_text
from tools.mutants.reach import TimedTest, function_of
from tools.mutants.rooms import ROOMS, ROOT
from tools.mutants.trial import swap

TEXT = b'''"""Text of 1 module."""

LIMIT = 7
__all__ = ["f" + "g"]


def f(a: "list[int] | None", b: int = 2) -> int:
    """Return 3."""
    if a is None:
        raise ValueError(f"{b + 1} is no list" + str(5))
    total = 0
    for x in a:
        if x < LIMIT and not x == 3:
            total += max(x, b)
    return total
'''


def changes(text: bytes = TEXT) -> set[tuple[str, str]]:
    made = mutants_of_text("simulate", "x.py", text)
    assert all(is_python(m, text) for m in made)
    assert all(m.mutated(text).count(b"\n") == text.count(b"\n") for m in made)
    return {m.lines(text) for m in made}


def test_what_is_changed() -> None:
    assert changes() == {
        ("LIMIT = 7", "LIMIT = 8"),
        *(
            ('def f(a: "list[int] | None", b: int = 2) -> int:', x)
            for x in ('def f(a: "list[int] | None", b: int = 3) -> int:',)
        ),
        *(("if a is None:", f"if {x}:") for x in ("True", "False", "a is not None")),
        ("total = 0", "total = 1"),
        *(
            ("if x < LIMIT and not x == 3:", f"if {x}:")
            for x in (
                "True",
                "False",
                "x < LIMIT or not x == 3",
                "x <= LIMIT and not x == 3",
                "True and not x == 3",
                "x < LIMIT and True",
                "x < LIMIT and bool((x == 3))",
                "x < LIMIT and not x != 3",
                "x < LIMIT and not x == 4",
            )
        ),
        ("total += max(x, b)", "pass"),
        *(
            ("total += max(x, b)", f"total {x}")
            for x in ("-= max(x, b)", "+= min(x, b)", "+= x", "+= b")
        ),
        ("return total", "return total + 1"),
    }


def test_mutants_that_span_lines_move_no_line() -> None:
    text = b"def f(a: int, b: int) -> int:\n    return (\n        a +\n        b * 2\n    )\n"
    assert ("a + b * 2", "a") in changes(text)


def test_living_functions_run_the_changed_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "planted.py"
    path.write_bytes(TEXT)
    module = ModuleType("planted")
    monkeypatch.setitem(sys.modules, "planted", module)
    exec(compile(TEXT, str(path), "exec"), module.__dict__)
    imported = module.f
    assert imported([1, 5]) == 7
    (mutant,) = (
        m for m in mutants_of_text("simulate", "x.py", TEXT) if m.lines(TEXT)[1] == "total += x"
    )
    assert swap(path, mutant.mutated(TEXT))
    assert imported([1, 5]) == 6


def test_a_seed_draws_the_same_mutants_of_every_room() -> None:
    first = drawn(["simulate", "memory"], 8, 3)
    assert first == drawn(["simulate", "memory"], 8, 3) != drawn(["simulate", "memory"], 8, 4)
    assert [m.room for m in first] == ["simulate", "memory"] * 4


def test_every_room_has_files_and_tests() -> None:
    for room in ROOMS.values():
        assert len(room.files()) > 10
        assert all((ROOT / folder).is_dir() for folder in room.tests)


def test_a_mutant_meets_the_tests_that_run_its_line() -> None:
    path = next(file for file in ROOMS["memory"].files() if file.stem == "plan")
    text = path.read_text()
    mutant = next(m for m in mutants_of("memory", path) if not m.names)
    function, first = function_of(text, mutant.first_line)
    here = {mutant.file: {function: [mutant.first_line - first]}}
    tests = [
        TimedTest("tests/hloipu/test_far.py::quick", 0.1, here, {}),
        TimedTest("tests/runtime/memory/test_near.py::slow", 2.0, here, {}),
        TimedTest("tests/runtime/memory/test_near.py::beside", 0.1, {}, {}),
        TimedTest("tests/runtime/memory/test_other.py::other", 0.1, {}, {}),
        TimedTest("tests/runtime/memory/test_near.py::endless", 99.0, here, {}),
        TimedTest("tests/runtime/simulate/test_shared.py::by_fixture", 0.2, {}, here),
    ]
    names = [test.name.partition("::")[2] for test in ReachingTests(tests).case(mutant).tests]
    assert names == ["slow", "quick", "by_fixture", "beside"]


def test_files_without_records_are_run_whole_where_they_mirror_the_changed_file() -> None:
    path = next(file for file in ROOMS["streams"].files() if file.stem == "rate")
    mutant = next(m for m in mutants_of("streams", path) if not m.names)
    here = "tests/runtime/streams/test_host.py", "tests/runtime/streams/test_rate.py"
    tests = ReachingTests((), (*here, "tests/runtime/simulate/exact/test_exact.py"))
    assert [test.name for test in tests.case(mutant).tests] == [here[1], here[0]]


def test_every_listed_equivalent_is_a_mutant() -> None:
    listed: set[Equivalent | PerformanceOnly] = {
        *equivalents().values(),
        *performance_only().values(),
    }
    files = {entry.file for entry in listed}
    rooms = {str(f.relative_to(ROOT)): name for name, r in ROOMS.items() for f in r.files()}
    met = [equivalent(m) for file in files for m in mutants_of(rooms[file], ROOT / file)]
    assert {e for e in met if e} == listed
    assert all(entry.reason.endswith(".") for entry in listed)
