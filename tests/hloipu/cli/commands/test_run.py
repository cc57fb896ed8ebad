"""`hloipu run`: values, cycles of both modes, files in and out, and refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

from hloipu.api import compile
from hloipu.cli.saying import steps_of, turns_told
from hloipu_runtime.watching import listening
from tests.hloipu.cli.commands.test_compile import profile_sums
from tests.support.arrays import Array
from tests.support.command_line import Outcome, run
from tests.support.tile_texts import DOT, DRAWING, LOOP, TOO_LARGE

TINY = ("--target", "tiny")
MODES = ("functional", "exact")


def operands() -> tuple[Array, Array]:
    return (
        np.arange(32, dtype=np.float32).reshape(4, 8),
        np.arange(16, dtype=np.float32).reshape(8, 2) - 5,
    )


def run_dot(folder: Path, file: str, *options: str) -> tuple[Outcome, Array]:
    a, b = operands()
    np.savez(folder / "in.npz", in_0=a, in_1=b)
    files = ("--inputs", str(folder / "in.npz"), "-o", str(folder / "out.npz"))
    outcome = run("run", file, *files, *options, stdin=DOT)
    with np.load(folder / "out.npz") as made:
        return outcome, made["out_0"]


@pytest.mark.parametrize("mode", MODES)
def test_values_from_files_to_files(tmp_path: Path, mode: str) -> None:
    outcome, made = run_dot(tmp_path, "-", *TINY, "--mode", mode)
    a, b = operands()
    np.testing.assert_array_equal(made, a @ b)
    assert outcome.code == 0
    assert outcome.err == f"wrote 1 arrays to {tmp_path / 'out.npz'}\n"
    assert f"({mode})" in outcome.out.splitlines()[0]
    assert len(outcome.out.splitlines()) <= 12


def test_values_are_printed_under_the_verdict() -> None:
    text = DOT.replace("parameter(0)", "constant(1)").replace("f32[4,8]{1,0} c", "f32[] c")
    text = text.replace("dot(a, b)", "dot(x, b)").replace(
        "  b = ", "  x = f32[4,8]{1,0} broadcast(a), dimensions={}\n  b = "
    )
    text = text.replace("parameter(1)", "parameter(0)")
    outcome = run("run", "-", *TINY, "--random", "3", stdin=text)
    assert outcome.code == 0
    assert "\nout_0 f32[4,2] = [[" in outcome.out
    assert outcome.out == run("run", "-", *TINY, "--random", "3", stdin=text).out


def test_both_modes_and_the_estimate_take_the_same_cycles() -> None:
    records = {
        mode: json.loads(
            run("run", "-", *TINY, "--random", "0", "--mode", mode, "--json", stdin=DOT).out
        )
        for mode in (*MODES, "estimate")
    }
    for mode, record in records.items():
        profile_sums(record)
        assert record["mode"] == mode
    assert len({record["total_cycles"] for record in records.values()}) == 1


def test_a_loop_that_data_ends_is_counted(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", s=np.float32(8), v=np.ones(3, np.float32))
    options = (*TINY, "--inputs", str(tmp_path / "in.npz"), "--json")
    found = [
        json.loads(run("run", "-", *options, "--mode", mode, stdin=LOOP).out) for mode in MODES
    ]
    assert found[0]["total_cycles"] == found[1]["total_cycles"]
    for record in found:
        profile_sums(record)
        assert [(row["entered"], row["turns"]) for row in record["loops"]] == [(1, 3)]
    told = run("estimate", "-", *TINY, "--assume-trips", "3", "--json", stdin=LOOP)
    assert json.loads(told.out)["total_cycles"] == found[0]["total_cycles"]


def test_an_estimate_needs_no_arguments() -> None:
    outcome = run("run", "-", *TINY, "--mode", "estimate", stdin=DOT)
    assert outcome.code == 0
    assert "(estimate)" in outcome.out
    assert "out_0" not in outcome.out


def test_what_does_not_fit_does_not_run(tmp_path: Path) -> None:
    profile = tmp_path / "p.json"
    options = (*TINY, "--random", "0", "--profile", str(profile))
    outcome = run("run", "-", *options, stdin=TOO_LARGE)
    assert outcome.code == 5
    assert "out_0" not in outcome.out
    assert "error[E1001]" in outcome.err
    assert json.loads(profile.read_text())["memory"]["fits"] is False
    allowed = run("run", "-", *options, "--over-memory=allow", stdin=TOO_LARGE)
    assert (allowed.code, allowed.err) == (0, "")
    assert "out_0 f32[1024,1024]" in allowed.out


@pytest.fixture
def executable(tmp_path: Path) -> str:
    file = str(tmp_path / "dot.ipux")
    assert run("compile", "-", *TINY, "-o", file, stdin=DOT).code == 0
    return file


@pytest.mark.parametrize("mode", MODES)
def test_an_executable_runs(tmp_path: Path, executable: str, mode: str) -> None:
    outcome, made = run_dot(tmp_path, executable, "--mode", mode)
    a, b = operands()
    np.testing.assert_array_equal(made, a @ b)
    from_text, _ = run_dot(tmp_path, "-", *TINY, "--mode", mode)
    assert outcome.out == from_text.out
    drawn = run("run", executable, "--random", "1", "--mode", mode)
    assert "\nout_0 f32[4,2] = [[" in drawn.out


def test_an_executable_is_estimated(executable: str) -> None:
    assert run("estimate", executable).out == run("compile", "-", *TINY, stdin=DOT).out
    assert run("run", executable, "--mode", "estimate").out == run("estimate", executable).out


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--target", "tiny"), "E3144"),
        (("--set", "tiles_per_ipu=4"), "E3144"),
        (("--passes", "front"), "E3144"),
        (("--fill-elided", "0"), "E3144"),
        ((), "E3110"),
    ],
)
def test_what_comes_too_late_for_an_executable(
    executable: str, options: tuple[str, ...], code: str
) -> None:
    outcome = run("run", executable, *options)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error[{code}]: ")


def test_a_damaged_executable_is_refused(executable: str) -> None:
    data = bytearray(Path(executable).read_bytes())
    data[len(data) // 2] ^= 1
    Path(executable).write_bytes(data)
    for command in ("run", "estimate"):
        outcome = run(command, executable)
        assert outcome.code == 9
        assert outcome.err.startswith("error[E40")


def test_elided_constants_are_not_invented() -> None:
    text = DOT.replace("parameter(1)", "constant({...})")
    outcome = run("run", "-", *TINY, "--random", "0", stdin=text)
    assert outcome.code == 2
    assert "\nerror[E3143]: " in outcome.err
    filled = [
        run("run", "-", *TINY, "--random", "0", "--fill-elided", seed, stdin=text).out
        for seed in ("1", "1", "2")
    ]
    assert filled[0] == filled[1] != filled[2]


def values(text: str) -> str:
    """Return what is printed from the first result on."""
    return text[text.index("out_0") :]


@pytest.mark.parametrize("seed", ["0", "1", str(2**64 - 1)])
def test_random_ops_draw_from_the_seed_as_the_evaluator_does(seed: str, tmp_path: Path) -> None:
    expected = run("eval", "-", "--seed", seed, stdin=DRAWING).out.replace("{0}", "")
    for mode in MODES:
        outcome = run("run", "-", *TINY, "--mode", mode, "--seed", seed, stdin=DRAWING)
        assert values(outcome.out) == expected.replace("{1,0}", "")
    file = str(tmp_path / "m.ipux")
    assert run("compile", "-", *TINY, "-o", file, stdin=DRAWING).code == 0
    assert values(run("run", file, "--seed", seed).out) == values(outcome.out)


def test_arguments_must_be_given() -> None:
    outcome = run("run", "-", *TINY, stdin=DOT)
    assert outcome.code == 2
    assert outcome.err.startswith("error[E3110]: ")


def test_progress_counts_steps_and_turns() -> None:
    program = compile(DOT, target="tiny")
    told: list[int] = []
    for mode in MODES:
        told.clear()
        program.run(*operands(), mode=mode, progress=told.append)
        assert told == list(range(1, len(told) + 1))
    assert told[-1] == steps_of(program)
    looping = compile(LOOP, target="tiny")
    assert steps_of(looping) is None
    counts = []
    for start in (2.0, 32.0):
        told.clear()
        looping.run(np.float32(start), np.ones(3, np.float32), mode="exact", progress=told.append)
        counts.append(len(told))
    assert counts[1] - counts[0] == 2 * 4  # condition and body of each further turn


def test_turns_are_told_where_somebody_listens() -> None:
    program = compile(DOT, target="tiny")
    assert turns_told("exact", program) is None
    heard = []
    with listening(lambda parts, done, count: heard.append((parts[-1], done, count))):
        program.run(*operands(), mode="exact", progress=turns_told("exact", program))
    total, cycles = steps_of(program), program.estimate().total_cycles
    what = f"exact: steps and turns of loops ({cycles:,} cycles)"
    turns = [each for each in heard if each[0].startswith("exact")]
    assert turns == [(what, done, total) for done in range(1, len(turns) + 1)]
    assert heard[-1][1] == total
