"""`hloipu compare`: what two profiles have in common and what not; files that hold none."""

import json
from pathlib import Path
from typing import Any

import pytest

from hloipu.cli.commands.compare import comparison, condition_of, figures
from hloipu_runtime.errors import UsageError
from tests.support.command_line import run
from tests.support.sessions import sums

SAMPLES = Path(__file__).parents[4] / "hlo_samples"


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    """Return estimates of one and of three steps a call."""
    return [sums(loop).profile().record() for loop in (1, 3)]


@pytest.fixture
def files(tmp_path: Path, records: list[dict[str, Any]]) -> list[str]:
    paths = [tmp_path / name for name in ("one.json", "three.json")]
    for path, record in zip(paths, records, strict=True):
        path.write_text(json.dumps(record))
    return [str(path) for path in paths]


def test_figures_are_those_of_the_profiles(records: list[dict[str, Any]]) -> None:
    one, three = records
    found = figures(one, three)
    assert found["figures"]["cycles"] == [one["total_cycles"], three["total_cycles"]]
    assert found["figures"]["steps"] == [1, 3]
    for bucket, cycles in one["by_bucket"].items():
        assert found["figures"][f"  {bucket}"] == [cycles, three["by_bucket"][bucket]]
    sums_ = [sum(pair[n] for pair in found["origins"].values()) for n in (0, 1)]
    assert sums_ == [one["total_cycles"], three["total_cycles"]]
    differences = [abs(b - a) for a, b in found["origins"].values()]
    assert differences == sorted(differences, reverse=True)


def test_the_command_shows_them_side_by_side(files: list[str]) -> None:
    outcome = run("compare", *files)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["one", "three", "difference", "ratio"]
    assert ["steps", "1", "3", "+2", "3.000"] in [line.split() for line in lines]
    assert ["calls", "by", "the", "host", "1", "1", "+0", "1.000"] in [x.split() for x in lines]
    assert json.loads(run("compare", *files, "--json").out)["figures"]["steps"] == [1, 3]


def test_no_more_rows_than_asked_for(records: list[dict[str, Any]]) -> None:
    text = comparison(*records, most_rows=1)
    assert "more instructions that differ" in text
    assert "cycles by instruction" not in comparison(*records, most_rows=0)
    assert "cycles by instruction" not in comparison(records[0], records[0])


@pytest.mark.parametrize(
    "text",
    ["", "[]", "1", '{"schema": "hloipu.memory"}', '{"schema": "hloipu.profile"}', "[" * 100_000],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, files: list[str], text: str) -> None:
    other = tmp_path / "other.json"
    other.write_text(text)
    outcome = run("compare", files[0], str(other))
    assert "E2040" in outcome.err
    assert outcome.code == 2


def test_a_profile_of_wrong_kinds_is_refused(
    tmp_path: Path, files: list[str], records: list[dict[str, Any]]
) -> None:
    for key, value in (("by_bucket", 1), ("runs", "x"), ("origins", [1]), ("machine", {})):
        other = tmp_path / "other.json"
        other.write_text(json.dumps({**records[0], key: value}))
        assert "E2040" in run("compare", files[0], str(other)).err


def test_a_file_that_is_not_there(files: list[str]) -> None:
    assert "E3001" in run("compare", files[0], "nowhere.json").err


@pytest.mark.parametrize(
    ("text", "first", "second", "holds"),
    [
        ("cycles>+2%", 100, 102, False),
        ("cycles>+2%", 100, 103, True),
        ("cycles > +10", 100, 110, False),
        ("cycles>+10", 100, 111, True),
        ("cycles<-5%", 100, 94, True),
        ("cycles<-5%", 100, 96, False),
        ("bytes on the fullest tile > 600_000", 1, 600_001, True),
        ("seconds>1e-3", 0.1, 0.001, False),
        ("remote>+1%", 0, 5, True),
        ("remote>+1%", 0, 0, False),
    ],
)
def test_conditions(text: str, first: float, second: float, holds: bool) -> None:
    assert condition_of(text).holds(first, second) is holds


@pytest.mark.parametrize("text", ["", "cycles", "cycles>", "cycles=3", "cycles>2%", "a>b>3"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="E2073"):
        condition_of(text)


def test_text_is_compiled_and_conditions_decide_the_exit_code(tmp_path: Path) -> None:
    files = [str(SAMPLES / f"{name}.hlo") for name in ("mnist_train_step", "mnist_adam_step")]
    outcome = run("compare", *files, "--fail-if", "device cycles>+2%", "--json")
    assert outcome.code == 6
    record = json.loads(outcome.out)
    first, second = record["figures"]["device cycles"]
    assert record["failed"] == [f"device cycles>+2%: device cycles {first:,} -> {second:,}"]
    assert run("compare", *reversed(files), "--fail-if", "device cycles>+2%").code == 0
    assert "E2073" in run("compare", *files, "--fail-if", "cyles>+2%").err
