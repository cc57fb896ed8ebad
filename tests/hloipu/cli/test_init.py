"""`hloipu init` writes a file that says what the defaults say, and help stands in groups."""

import tomllib
from pathlib import Path

import pytest

from hloipu.options.groups import GROUPS
from hloipu.options.resolve import resolve
from hloipu.options.table import OPTIONS, Options
from tests.support.command_line import run


def test_the_file_says_what_was_given_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--target=bow", "--set=tiles_per_ipu=64", "--feed=data=4,5", "--device-map=0,[1,2]",
             "--outfeed=loss", "--no-cache", "--available-memory-proportion=0.3"]  # fmt: skip
    assert run("init", *words).code == 0
    said = Options(
        target="bow", set=(("tiles_per_ipu", "64"),), feed=(("data", (4, 5)),), cache=False,
        device_map=(0, (1, 2)), outfeed=("loss",), available_memory_proportion=0.3,
    )  # fmt: skip
    assert resolve("compile", {}, config="hloipu.toml").options == said


def test_defaults_are_what_comments_say(tmp_path: Path) -> None:
    assert run("init", str(tmp_path)).code == 0
    text = (tmp_path / "hloipu.toml").read_text("utf-8")
    assert tomllib.loads(text) == {}
    lines = [x.removeprefix("# ") for x in text.splitlines() if x.startswith("# ") and " = " in x]
    for line in lines:
        name = line.partition(" ")[0].partition(".")[0]
        default = OPTIONS[name].default
        if default not in (None, ()):
            assert OPTIONS[name].kind.check(tomllib.loads(line)[name]) == default, line
    assert {x.partition(" ")[0].partition(".")[0] for x in lines} >= {
        name for name, row in OPTIONS.items() if row.about.in_file
    }


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "hloipu.toml").write_text("mine")
    assert "E3213" in run("init", str(tmp_path)).err
    assert (tmp_path / "hloipu.toml").read_text() == "mine"
    assert (
        "E3014"
        in run("init", str(tmp_path), "--plugin=x.py").err
        + run("init", str(tmp_path.parent), "--plugin=x.py").err
    )


def test_each_option_stands_in_one_group() -> None:
    assert sorted(x for names in GROUPS.values() for x in names) == sorted(OPTIONS)
    said = run("compile", "--help").out
    places = [said.index(f"\n{heading}:\n") for heading in GROUPS]
    assert places == sorted(places)
    assert said.index("Memory:") < said.index("--over-memory") < said.index("Loops and feeds:")
