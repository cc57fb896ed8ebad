"""`hloipu reduce`: what is tested, what is written when, how it ends."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hloipu.check.tiles import Tiles
from hloipu.cli.trials import CommandTest, ForkedTest, TooLateError, Trials, words_of
from hloipu_compiler.compilation import Compilation
from hloipu_compiler.driver import continued
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.verifier import faults_of
from hloipu_runtime.errors import UsageError
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Sequence, StreamIn
from tests.hloipu.cli.test_interrupts import INTERRUPTIBLE
from tests.support.command_line import run

SLOW = """sh -c 'sleep 0.3; grep -q "cosine(" {}'"""

TEXT = """HloModule m

ENTRY e {
  p = f32[3] parameter(0)
  s = f32[3] sine(p)
  c = f32[3] cosine(s)
  ROOT t = f32[3] tanh(c)
}
"""

UNKNOWN_CALL = """HloModule m

body {
  s = (s32[], f32[64,32]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[64,32] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  t = f32[64,32] tanh(x)
  k = f32[64,32] custom-call(t), custom_call_target="Unheard"
  u = f32[64,32] add(k, x)
  ROOT r = (s32[], f32[64,32]) tuple(j, u)
}

below {
  s = (s32[], f32[64,32]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}

ENTRY e {
  p = f32[64,32] parameter(0)
  q = f32[64,32] parameter(1)
  a = f32[64,32] multiply(p, q)
  z = s32[] constant(0)
  b = (s32[], f32[64,32]) tuple(z, a)
  w = (s32[], f32[64,32]) while(b), condition=below, body=body
  v = f32[64,32] get-tuple-element(w), index=1
  ROOT r = f32[64,32] subtract(v, q)
}
"""

WRONG_SHAPE = UNKNOWN_CALL.replace("u = f32[64,32] add", "u = f32[64,31] add")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.hlo"
    path.write_text(TEXT)
    return path


def opcodes(text: str) -> list[str]:
    """Return the opcodes of a result, which must parse, verify and print as it was written."""
    module = parse(text)
    assert faults_of(module) == []
    return sorted(x.opcode for c in module.computations for x in c.instructions)


def test_the_smallest_form_is_written(file: Path) -> None:
    output = file.with_name("small.hlo")

    done = run("reduce", str(file), "--test", "grep -q cosine(", "-o", str(output))

    assert (done.code, done.out) == (0, "")
    assert opcodes(output.read_text()) == ["cosine", "parameter"]
    assert sorted(p.name for p in file.parent.iterdir()) == ["m.hlo", "small.hlo"]
    table = [line.split() for line in done.err.splitlines()]
    assert table[0] == ["seconds", "tests", "instructions", "after"]
    left = [int(row[2]) for row in table[1:-1]]
    assert left == sorted(left, reverse=True)
    assert table[-1][:4] == ["4", "->", "2", "instructions,"]


@pytest.mark.parametrize("code", ["E0470", "e0456"])
def test_an_error_of_compiling_or_evaluating_is_kept(tmp_path: Path, code: str) -> None:
    (tmp_path / "m.hlo").write_text(UNKNOWN_CALL)

    done = run("reduce", str(tmp_path / "m.hlo"), "--error", code, "--target", "bow")

    stage = {"E0470": "estimating it", "E0456": "evaluating it"}[code.upper()]
    assert done.code == 0, done.err
    assert opcodes(done.out) == ["custom-call", "parameter"]
    assert done.err.startswith(f"{code.upper()} comes up while {stage}")


def test_an_error_of_verifying_is_kept(tmp_path: Path) -> None:
    (tmp_path / "m.hlo").write_text(WRONG_SHAPE)

    done = run("reduce", str(tmp_path / "m.hlo"), "--error", "E0301")

    assert done.code == 0, done.err
    module = parse(done.out)
    assert {fault.code for fault in faults_of(module)} == {"E0301"}
    assert module.instruction_count <= 3


def test_what_does_not_fit_is_kept(tmp_path: Path) -> None:
    large = TEXT.replace("f32[3]", "f32[3000,3000]").replace("cosine(s)", "add(s, p)")
    (tmp_path / "m.hlo").write_text(large)

    done = run("reduce", str(tmp_path / "m.hlo"), "--error", "E1001", "--set", "tiles_per_ipu=16")

    assert done.code == 0, done.err
    assert len(opcodes(done.out)) <= 3
    assert done.err.startswith("E1001 comes up while fitting it into memory")


def losing(program: Program) -> Program:
    """Return a program that does not wait for its parameters."""
    steps = [step for step in program.body.steps if not isinstance(step, StreamIn)]
    return replace(program, body=Sequence(tuple(steps)))


@pytest.fixture
def _loses_sines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have programs of modules with a sine lose their parameters."""

    def compiled(begun: Compilation, *arguments: object, **options: object) -> object:
        made = continued(begun, *arguments, **options)  # type: ignore[arg-type]
        computations = begun.module.computations
        has_sine = any(x.opcode == "sine" for c in computations for x in c.instructions)
        if not has_sine or made.lowered is None:
            return made
        return replace(made, lowered=losing(made.program))

    monkeypatch.setattr("hloipu.api.continued", compiled)


@pytest.mark.usefixtures("_loses_sines")
def test_a_program_of_ours_that_is_not_proved(file: Path) -> None:
    """Compiling says that it is an internal error, and what it tells to do leads to the op."""
    failed = run("compile", str(file))
    done = run("reduce", str(file), "--error", "E4050")

    assert failed.code == 9
    assert "error[E4050]: internal error of hloipu: program not proved: " in failed.err
    for part in ("README.md", "Reporting a fault", "hloipu reduce FILE --error E4050 -o small.hlo"):
        assert part in failed.err
    assert done.code == 0, done.err
    assert opcodes(done.out) == ["parameter", "sine"]


def test_the_readme_says_how_to_report_a_fault() -> None:
    readme = Path(__file__).parents[3] / "README.md"
    assert "\n## Reporting a fault\n" in readme.read_text(encoding="utf-8")


def test_other_values_than_evaluated_are_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tiles.outputs

    def off(tiles: Tiles, module: Module, leaves: list[object]) -> list[object]:
        made = right(tiles, module, leaves)  # type: ignore[arg-type]
        wrong = any(x.opcode == "cosine" for x in module.entry.instructions)
        return [x + 1 if wrong else x for x in made]

    monkeypatch.setattr(Tiles, "outputs", off)

    done = run("reduce", str(file), "--differs", "--target", "tiny")

    assert done.code == 0, done.err
    assert opcodes(done.out) == ["cosine", "parameter"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--test", "false"], "does not hold"),
        (["--error", "E4050"], "does not end in E4050"),
        (["--error", "E0456"], "does not end in E0456"),
        (["--differs"], "same values"),
        (["--test", "sh -c 'sleep 9'", "--timeout", "0.2"], "timed out"),
        (["--test", "sh -c 'sleep 9'", "--time-limit", "0.2"], "timed out"),
    ],
)
def test_where_the_module_shows_nothing(file: Path, options: list[str], message: str) -> None:
    done = run("reduce", str(file), *options)

    assert (done.code, done.out) == (2, "")
    assert "error[E3115]" in done.err
    assert message in done.err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], "E3118", "nothing says what to keep"),
        (["--differs", "--error", "E4050"], "E3118", "--error and --differs exclude each other"),
        (["--differs", "--test", "true"], "E3118", "--differs and --test exclude each other"),
        (["--test", "true", "--target", "bow"], "E3118", "--target would have no effect"),
        (["--test", "true", "--random", "1"], "E3118", "--random"),
        (["--error", "E405"], "E3119", "no error has the code 'E405'"),
        (["--test", ""], "E3116", "it is empty"),
        (["--test", "./no-such-program"], "E3116", "No such file"),
    ],
)
def test_options_that_contradict(file: Path, options: list[str], code: str, message: str) -> None:
    done = run("reduce", str(file), *options)

    assert (done.code, done.out) == (2, "")
    assert f"error[{code}]" in done.err
    assert message in done.err


def test_a_limit_of_time_ends_with_the_best_so_far(file: Path) -> None:
    output = file.with_name("small.hlo")

    done = run("reduce", str(file), "--test", SLOW, "--time-limit", "1", "-o", str(output))

    assert done.code == 0, done.err
    assert done.err.endswith("--time-limit 1.0 ended it early\n")
    assert "cosine" in opcodes(output.read_text())


def test_an_interrupt_leaves_the_best_so_far(file: Path) -> None:
    output = file.with_name("small.hlo")
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            INTERRUPTIBLE,
            "reduce",
            str(file),
            "--test",
            SLOW,
            "-o",
            str(output),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    while not output.exists() and time.monotonic() < end:
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)

    assert child.returncode == 130
    assert f"of 4 instructions, is in {output}" in said
    assert "cosine" in opcodes(output.read_text())
    assert sorted(p.name for p in file.parent.iterdir()) == ["m.hlo", "small.hlo"]


@pytest.mark.parametrize("words", [["test", "-s", "{}"], ["test", "-s"]])
def test_the_path_stands_for_braces_or_comes_last(words: list[str]) -> None:
    tester = CommandTest(words)

    assert tester.holds(TEXT, 10)
    assert not tester.holds("", 10)
    tester.close()


def test_a_command_that_takes_too_long_is_ended() -> None:
    tester = CommandTest(["sh", "-c", "sleep 20"])

    with pytest.raises(TooLateError):
        tester.holds(TEXT, 0.2)
    tester.close()


@pytest.mark.parametrize("test", ["", "a 'b"])
def test_a_command_that_is_none_is_refused(test: str) -> None:
    with pytest.raises(UsageError, match="cannot be run"):
        words_of(test)


def behave(text: str) -> bool:
    if text == "hang":
        time.sleep(60)
    if text == "die":
        os._exit(1)
    if text == "raise":
        raise KeyError(text)
    return text.startswith("yes")


def test_a_forked_test_outlives_its_candidates() -> None:
    tester = ForkedTest(behave)

    assert tester.holds("yes", 10)
    assert not tester.holds("no", 10)
    assert not tester.holds("raise", 10)
    assert not tester.holds("die", 10)
    assert tester.holds("yes" * 10**6, 10)
    with pytest.raises(TooLateError):
        tester.holds("hang", 0.2)
    assert tester.holds("yes\udcff", 10)
    tester.close()


def test_candidates_that_take_too_long_are_counted_and_not_interesting() -> None:
    tester = ForkedTest(behave)
    trials = Trials(tester, timeout=0.3, time_limit=None)

    assert trials.holds("yes")
    assert not trials.holds("hang")
    assert trials.holds("yes, again")
    assert trials.too_late == 1
    assert not trials.is_over()
    tester.close()
