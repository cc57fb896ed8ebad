"""How the command line ends when something is wrong: codes, streams, places."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hloipu.cli.application import error_record
from hloipu_runtime.program.faults import Fault as ProofFault
from hloipu_runtime.program.faults import ProgramError
from tests.support.command_line import run

GOOD = """HloModule good
ENTRY e {
  a = f32[4] parameter(0)
  ROOT r = f32[4] tanh(a)
}
"""
UNREADABLE = GOOD.replace("tanh(a)", "tanh(a")
UNSOUND = GOOD.replace("= f32[4] tanh", "= f32[5] tanh")
UNSUPPORTED = GOOD.replace("tanh(a)", 'custom-call(a), custom_call_target="mystery"')
DYNAMIC = GOOD.replace("f32[4]", "f32[<=4]")
TOO_LARGE = GOOD.replace("f32[4]", "f32[3000000000]")
NAN = GOOD.replace("tanh(a)", "log(b)").replace("  ROOT", "  b = f32[4] subtract(a, a)\n  c = f32[4] negate(b)\n  ROOT").replace("log(b)", "divide(b, c)")  # fmt: skip # noqa: E501


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.hlo"


@pytest.mark.parametrize(
    ("text", "arguments", "code"),
    [
        (GOOD, "verify", 0), (GOOD, "show", 0), (GOOD, "emit", 0), (GOOD, "eval --random 0", 0),
        (GOOD, "check --against evaluator-f64", 0),
        (GOOD, "eval", 2), (GOOD, "check --against nonsense", 2), (GOOD, "show --nonsense", 2),
        (UNREADABLE, "verify", 3), (UNREADABLE, "show", 3), (UNREADABLE, "emit", 3),
        (UNREADABLE, "eval --random 0", 3), (UNREADABLE, "check", 3),
        (UNSOUND, "verify", 3), (UNSOUND, "show", 3), (UNSOUND, "emit", 3),
        (UNSOUND, "emit --no-verify", 0), (UNSOUND, "verify --parse-only", 0),
        (UNSOUND, "eval --random 0", 3),
        (UNSUPPORTED, "eval --random 0", 4), (DYNAMIC, "verify --static", 4),
        (NAN, "eval --random 0 --stop-on-nan", 6), (NAN, "eval --random 0", 0),
        (TOO_LARGE, "eval --random 0", 8),
    ],
)  # fmt: skip
def test_exit_codes(text: str, arguments: str, code: int, path: Path) -> None:
    path.write_text(text)
    command, *options = arguments.split()
    outcome = run(command, str(path), *options)
    assert outcome.code == code, outcome
    if code:
        assert "error" in outcome.err.lower()
        assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("option", "hint"),
    [("--no-progress", "here; hloipu run has it"), ("--stagess", "did you mean --stages")],
)
def test_an_option_of_another_command_is_said_to_be_one(option: str, hint: str, path: Path) -> None:
    path.write_text(GOOD)
    assert hint in run("compile", str(path), option).err


@pytest.mark.parametrize("left", range(30, len(GOOD) - 3))
def test_texts_that_are_cut_off_are_said_to_be(left: int, path: Path) -> None:
    path.write_text(GOOD[:left])
    said = run("verify", str(path)).err
    assert "cut off" in said or "is never closed" in said, said


@pytest.mark.parametrize("text", ["hello", UNREADABLE, GOOD + "x = f32[4]}", GOOD + "1 {}\n"])
def test_whole_texts_are_not_said_to_be_cut_off(text: str, path: Path) -> None:
    path.write_text(text)
    assert "cut off" not in run("verify", str(path)).err


def test_a_fault_stands_on_stderr_with_its_place_and_a_caret(path: Path) -> None:
    path.write_text(UNSOUND)
    outcome = run("verify", str(path))
    assert outcome.out == ""
    lines = outcome.err.splitlines()
    line, column = 4, GOOD.splitlines()[3].index("f32") + 1
    (first,) = (i for i, text in enumerate(lines) if text.startswith(f"{path}:{line}:"))
    assert "error[E0301]" in lines[first]
    assert lines[first + 1] == "    ROOT r = f32[5] tanh(a)"
    caret = lines[first + 2]
    assert set(caret.strip()) == {"^"}
    # Two blanks before the excerpt; the caret stands at the shape or the whole statement.
    place = int(lines[first].split(":")[2])
    assert caret.index("^") == place - 1 + 2
    assert place <= column


def test_errors_as_json(path: Path) -> None:
    path.write_text(UNREADABLE)
    outcome = run("show", str(path), "--json")
    record = json.loads(outcome.out)
    assert outcome.err == ""
    assert record["schema"] == "hloipu.error/1"
    assert record["exit_code"] == outcome.code == 3
    (fault,) = record["faults"]
    assert (fault["file"], fault["code"]) == (str(path), record["code"])
    assert fault["line"] in (4, 5)
    assert fault["column"] > 0


@pytest.mark.parametrize("command", ["verify", "show", "emit", "eval", "check"])
def test_a_file_that_is_not_there(command: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing.hlo")
    outcome = run(command, missing)
    assert (outcome.code, outcome.out) == (2, "")
    assert "E3001" in outcome.err
    assert missing in outcome.err
    assert "No such file" in outcome.err


@pytest.mark.parametrize("command", ["verify", "show", "emit", "eval", "check"])
def test_a_binary_file(command: str, path: Path) -> None:
    path.write_bytes(b"\x7fELF\x02\x01\x01\0")
    outcome = run(command, str(path))
    assert outcome.code == 2
    assert "E3002" in outcome.err


def test_a_path_with_a_line_end_is_a_path(tmp_path: Path) -> None:
    odd = tmp_path / "two\nlines.hlo"
    odd.write_text(GOOD)
    assert run("verify", str(odd)).code == 0
    odd.unlink()
    assert run("verify", str(odd)).code == 2


def test_several_files_all_get_an_answer(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.hlo", tmp_path / "bad.hlo"
    good.write_text(GOOD)
    bad.write_text(UNSOUND)
    missing = tmp_path / "missing.hlo"
    outcome = run("verify", str(bad), str(missing), str(good), "--json")
    assert outcome.code == 3  # the highest code of all
    records = json.loads(outcome.out)["files"]
    assert [r["ok"] for r in records] == [False, False, True]
    assert [r["file"] for r in records] == [str(bad), str(missing), str(good)]
    assert [r["error"]["exit_code"] for r in records[:2]] == [3, 2]


def test_no_command_and_unknown_commands() -> None:
    assert run("--help").code == 0
    outcome = run("verfiy")
    assert outcome.code == 2
    assert "verfiy" in outcome.err


BAD_OPTIONS = [
    "eval {} --random -1", "eval {} --fill-elided -1", "eval {} --random 0 --seed -1",
    "eval {} --random x", "eval {} --random 0 --replicas 0", "check {} --iterations 0",
    "show {} --most -1", "show {} --assume-trips -1", "emit {} --form nonsense",
]  # fmt: skip


@pytest.mark.parametrize("arguments", BAD_OPTIONS)
def test_numbers_out_of_range_are_usage_errors(arguments: str, path: Path) -> None:
    path.write_text(GOOD)
    outcome = run(*arguments.format(path).split())
    assert outcome.code == 2
    assert "Invalid value" in outcome.err


def hloipu(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "hloipu", *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def test_a_real_process(path: Path) -> None:
    path.write_text(UNSOUND)
    done = hloipu("verify", str(path))
    assert (done.returncode, done.stdout) == (3, "")
    assert f"{path}:4:" in done.stderr
    assert "\x1b[" not in done.stderr  # nobody sees colours in a pipe


@pytest.mark.parametrize("files", [1, 400])
def test_a_reader_that_goes_away_is_no_error(files: int, path: Path) -> None:
    """With little output the pipe breaks at the last flush, with much of it before."""
    path.write_text(GOOD)
    with subprocess.Popen(
        [sys.executable, "-m", "hloipu", "verify", *[str(path)] * files],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait() == 141
    assert said == b""


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_a_reader_that_goes_away_from_an_error(json_flag: list[str], path: Path) -> None:
    path.write_text(UNSOUND)
    for command in ("verify", "show"):
        with subprocess.Popen(
            [sys.executable, "-m", "hloipu", command, str(path), *json_flag],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            said = process.stderr.read()
            assert process.wait() in (3, 141)
        assert b"Traceback" not in said
        assert b"Exception ignored" not in said


FAST = """
import sys
sys.argv = ["hloipu", "--version"]
from hloipu.cli import main
main()
print(*[m for m in ("numpy", "click", "lark", "networkx") if m in sys.modules], file=sys.stderr)
"""


def test_the_version_is_told_without_importing_anything() -> None:
    done = subprocess.run([sys.executable, "-c", FAST], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("hloipu ")
    assert done.stderr.strip() == ""


LIGHT = """
import sys
sys.argv = ["hloipu", "verify", sys.argv[1]]
from hloipu.cli import main
try:
    main()
finally:
    heavy = [m for m in ("numpy", "networkx", "jax", "scipy") if m in sys.modules]
    print(*heavy, file=sys.stderr)
"""


def test_verifying_imports_no_numpy(path: Path) -> None:
    path.write_text(GOOD)
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == ""


def test_colours_only_where_asked_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hloipu.cli.saying import styled

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert styled("x: error[E0101]: y") == "x: \x1b[31m\x1b[1merror[E0101]\x1b[0m: y"
    assert styled("nothing here") == "nothing here"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("x: error[E0101]: y") == "x: error[E0101]: y"


def test_faults_of_a_proof_are_json_data() -> None:
    error = ProgramError([ProofFault("version", "body/3", "reads what is not there")])
    assert error_record(error)["faults"] == [
        {"rule": "version", "place": "body/3", "message": "reads what is not there"}
    ]
