"""`hloipu reduce`: candidates in files, a command's exit code, a result written whole."""

import subprocess
import sys
from pathlib import Path

import pytest

from hloipu.cli.reduce import CommandTest, words_of
from hloipu_runtime.errors import UsageError

TEXT = """HloModule m

ENTRY e {
  p = f32[3] parameter(0)
  s = f32[3] sine(p)
  c = f32[3] cosine(s)
  ROOT t = f32[3] tanh(c)
}
"""


def reduce(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hloipu", "reduce", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.hlo"
    path.write_text(TEXT)
    return path


def test_the_smallest_form_is_written(file: Path) -> None:
    output = file.with_name("small.hlo")

    done = reduce(str(file), "--test", "grep -q cosine(", "-o", str(output))

    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    small = output.read_text()
    assert "cosine(" in small
    assert "sine(" not in small.replace("cosine(", "")
    assert "tanh" not in small
    assert sorted(p.name for p in file.parent.iterdir()) == ["m.hlo", "small.hlo"]
    assert done.stderr.startswith("4 -> ")


def test_a_test_that_never_holds_is_a_mistake_of_the_caller(file: Path) -> None:
    done = reduce(str(file), "--test", "false")

    assert done.returncode == 2
    assert "error[E3115]" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("words", [["test", "-s", "{}"], ["test", "-s"]])
def test_the_path_stands_for_braces_or_comes_last(words: list[str]) -> None:
    tester = CommandTest(words, 10)

    assert tester.holds(TEXT)
    assert not tester.holds("")
    tester.close()


def test_a_test_that_takes_too_long_does_not_hold() -> None:
    tester = CommandTest(["sh", "-c", "sleep 20"], 0.2)

    assert not tester.holds(TEXT)
    tester.close()


@pytest.mark.parametrize("test", ["", "a 'b"])
def test_a_command_that_is_none_is_refused(test: str) -> None:
    with pytest.raises(UsageError, match="cannot be run"):
        words_of(test)


def test_a_program_that_does_not_exist_is_refused() -> None:
    tester = CommandTest(["./no-such-program"], 1)

    with pytest.raises(UsageError, match="No such file"):
        tester.holds(TEXT)
    tester.close()
