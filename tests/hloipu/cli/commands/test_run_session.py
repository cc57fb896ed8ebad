"""`hloipu run` of steps in loops: feeds and outfeeds by file, checkpoints, refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.command_line import run
from tests.support.sessions import SUMS, rows

LOOP = ("--target", "tiny", "--loop", "3", "--feed", "data=2", "--outfeed", "seen", "--no-cache")
ROWS = rows(60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", ROWS)
    start = {"a": np.zeros(6, np.float32), "b": np.int32(5), "in_3": np.full(6, 2, np.float32)}
    np.savez(tmp_path / "start.npz", **start)  # type: ignore[arg-type]
    (tmp_path / "sums.hlo").write_text(SUMS)
    return tmp_path


def session(folder: Path, *options: str) -> tuple[str, ...]:
    given = ("--inputs", str(folder / "start.npz"), "--infeed", f"data={folder / 'rows.npy'}")
    return ("run", str(folder / "sums.hlo"), *LOOP, *given, *options)


def test_files_in_and_out(folder: Path) -> None:
    out, seen = folder / "out.npz", folder / "seen.npz"
    outcome = run(*session(folder, "--steps", "12", "-o", str(out), "--outfeed-to", f"seen={seen}"))
    assert outcome.code == 0, outcome.err
    assert outcome.err.splitlines()[:4] == [
        "3 steps a run; 2 arrays stay on the device (from the aliases in the header)",
        "  state: parameters 0-1 become results 0-1",
        "  feed data: parameters 2",
        "  loaded once: parameters 3",
    ]
    with np.load(out) as made, np.load(seen) as told:
        np.testing.assert_array_equal(made["out_0"], 2 * ROWS[:12].sum(0))
        assert made["out_1"] == 17
        np.testing.assert_array_equal(told["seen"], 2 * ROWS[:12])


def test_what_is_not_written_is_printed(folder: Path) -> None:
    outcome = run(*session(folder, "--steps", "6"))
    assert "\nseen: 6 elements, last [" in outcome.out
    assert "\nout_1 int32[] = 11" in outcome.out
    assert " in 2 runs" in outcome.out


def test_arrays_of_an_outfeed_have_the_names_that_are_asked_for(folder: Path) -> None:
    given = list(session(folder, "--steps", "6"))
    given[given.index("seen")] = "seen=scaled=2"
    outcome = run(*given, "--outfeed-to", f"seen={folder / 'seen.npz'}")
    assert "\nseen: 6 elements, last scaled [" in outcome.out
    with np.load(folder / "seen.npz") as told:
        np.testing.assert_array_equal(told["seen/scaled"], 2 * ROWS[:6])


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_what_no_queue_takes_is_the_last_step_s(folder: Path, mode: str) -> None:
    given = [x for x in session(folder, "--steps", "6", "--mode", mode) if x != "seen"]
    given.remove("--outfeed")
    outcome = run(*given, "-o", str(folder / "out.npz"))
    assert "  at the end of a run: results 2\n" in outcome.err
    with np.load(folder / "out.npz") as made:
        np.testing.assert_array_equal(made["out_2"], 2 * ROWS[5])
        assert made["out_1"] == 11
    assert "\nout_2 float32[6] = [" in run(*given).out


def test_results_keep_their_numbers_where_an_outfeed_takes_one_before(folder: Path) -> None:
    text = SUMS.replace("tuple(more, next, scaled)", "tuple(scaled, more, next)")
    text = text.replace("(f32[6], s32[], f32[6])", "(f32[6], f32[6], s32[])")
    text = text.replace("{0}: (0", "{1}: (0").replace("{1}: (1", "{2}: (1")
    (folder / "sums.hlo").write_text(text)
    run(*session(folder, "--steps", "6", "-o", str(folder / "out.npz")))
    with np.load(folder / "out.npz") as made:
        assert list(made) == ["out_1", "out_2"]
        np.testing.assert_array_equal(made["out_1"], 2 * ROWS[:6].sum(0))


def test_a_profile_holds_one_run_for_each_call(folder: Path) -> None:
    record = json.loads(run(*session(folder, "--steps", "12", "--json")).out)
    assert record["runs"] == 4
    assert [(row["entered"], row["turns"]) for row in record["loops"]] == [(4, 12)]


def test_both_modes_agree(folder: Path) -> None:
    for mode in ("functional", "exact"):
        out = folder / f"{mode}.npz"
        assert run(*session(folder, "--mode", mode, "-o", str(out))).code == 0
    assert (folder / "functional.npz").read_bytes() == (folder / "exact.npz").read_bytes()


def test_a_run_is_resumed_where_it_was(folder: Path) -> None:
    kept = ("--checkpoint", str(folder / "kept"), "--every", "6")
    whole, resumed = folder / "whole.npz", folder / "resumed.npz"
    assert run(*session(folder, "--steps", "30", "-o", str(whole))).code == 0
    assert run(*session(folder, "--steps", "12", *kept)).code == 0
    outcome = run(*session(folder, "--steps", "30", *kept, "--resume", "-o", str(resumed)))
    assert "resumed after 12 steps" in outcome.err
    assert whole.read_bytes() == resumed.read_bytes()


def test_an_executable_runs_as_well(folder: Path) -> None:
    file = str(folder / "sums.ipux")
    assert run("compile", str(folder / "sums.hlo"), *LOOP, "-o", file).code == 0
    given = ("--inputs", str(folder / "start.npz"), "--infeed", f"data={folder / 'rows.npy'}")
    np.savez(folder / "start.npz", a=np.zeros(6, np.float32), b=np.int32(0),
             in_3=np.ones(6, np.float32))  # fmt: skip
    outcome = run("run", file, *given, "--steps", "3")
    assert "\nout_1 int32[] = 3" in outcome.out, outcome.err
    outcome = run("run", file, "--random", "1", "--infeed", "data=synthetic")
    assert outcome.code == 0, outcome.err
    outcome = run("run", file, "--loop", "4")
    assert (outcome.code, "E3144" in outcome.err) == (2, True)


def test_rows_are_put_together_to_batches(tmp_path: Path) -> None:
    text = SUMS.replace("x = f32[6]", "x = f32[2,3]").replace(
        "multiply(x, k)", "multiply(flat, k)"
    ).replace("  k = ", "  flat = f32[6] reshape(x)\n  k = ")  # fmt: skip
    np.save(tmp_path / "rows.npy", np.arange(30, dtype=np.float32).reshape(10, 3))
    outcome = run("run", "-", *LOOP, "--random", "1", "--infeed",
                  f"data={tmp_path / 'rows.npy'}", "--steps", "3", stdin=text)  # fmt: skip
    assert outcome.code == 0, outcome.err
    outcome = run("run", "-", *LOOP, "--random", "1", "--infeed",
                  f"data={tmp_path / 'rows.npy'}", "--steps", "6", stdin=text)  # fmt: skip
    assert (outcome.code, "E2020" in outcome.err) == (7, True)
    outcome = run("run", "-", *LOOP, "--random", "1", "--infeed", f"data={tmp_path / 'rows.npy'}",
                  "--repeat", "--steps", "6", stdin=text)  # fmt: skip
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--infeed", "data"), "E3011"),
        (("--infeed", "dada=x.npy"), "E3155"),
        (("--outfeed-to", "loss=x.npz"), "E3155"),
        (("--steps", "4"), "E3153"),
        (("--every", "3"), "E3151"),
        (("--resume",), "E3151"),
        (("--checkpoint", "kept", "--every", "4"), "E3153"),
    ],
)
def test_refusals(folder: Path, options: tuple[str, ...], code: str) -> None:
    outcome = run(*session(folder, *options))
    assert outcome.code == 2
    assert f"error[{code}]" in outcome.err, outcome.err


def test_a_queue_without_a_source_and_a_program_without_queues(folder: Path) -> None:
    start = ("--inputs", str(folder / "start.npz"))
    outcome = run("run", str(folder / "sums.hlo"), *LOOP, *start)
    assert (outcome.code, "E3155" in outcome.err) == (2, True)
    outcome = run("run", str(folder / "sums.hlo"), "--target", "tiny", "--random", "0",
                  "--steps", "3")  # fmt: skip
    assert (outcome.code, "E3158" in outcome.err) == (2, True)


def test_estimates_and_verdicts_of_loops(folder: Path) -> None:
    record = json.loads(run("estimate", str(folder / "sums.hlo"), *LOOP, "--json").out)
    assert record["loops"][0]["turns"] == 3
    outcome = run("estimate", str(folder / "sums.hlo"), "--loop", "3", "--feed", "data=9")
    assert (outcome.code, "E3151" in outcome.err) == (2, True)


@pytest.mark.parametrize(("outfeed", "kept"), [
    ("seen:last", [11]), ("seen:first", [0]), ("seen:every=5", [4, 9]), ("seen:all=2", range(12)),
])  # fmt: skip
def test_an_outfeed_keeps_what_its_mode_says(folder: Path, outfeed: str, kept: list[int]) -> None:
    seen = folder / "seen.npz"
    given = [*session(folder, "--steps", "12", "--outfeed-to", f"seen={seen}")]
    given[given.index("--outfeed") + 1] = outfeed
    assert run(*given).code == 0
    with np.load(seen) as told:
        np.testing.assert_array_equal(told["seen"], 2 * ROWS[list(kept)])


def test_the_device_adds_up_what_is_asked_for(folder: Path) -> None:
    seen = folder / "seen.npz"
    given = [*session(folder, "--steps", "12", "--outfeed-to", f"seen={seen}")]
    given[given.index("--outfeed") + 1] = "seen:sum"
    outcome = run(*given)
    assert "  outfeed seen: sum of results 2" in outcome.err
    with np.load(seen) as told:
        np.testing.assert_array_equal(told["seen"], 2 * ROWS[:12].reshape(4, 3, 6).sum(1))


def test_a_stated_rate_makes_the_device_wait(folder: Path) -> None:
    """At 1000 elements a second, twelve steps take 12 ms and a step."""
    outcome = run(*session(folder, "--steps", "12", "--producer-rate", "data=1e3", "--json"))
    record = json.loads(outcome.out)
    assert record["seconds"] == pytest.approx(0.012, rel=0.01)
    assert record["feeds"]["verdict"] == "host-bound"
    assert record["by_bucket"]["idle"] > 0.9 * record["total_cycles"]
    outcome = run(*session(folder, "--steps", "12", "--producer-rate", "data=1e3"))
    assert "feeds: host-bound, data gives 1,000 elements/s; the device takes " in outcome.out
    assert len(outcome.out.split("seen:")[0].splitlines()) <= 12


def test_a_rate_may_be_measured(folder: Path) -> None:
    outcome = run(*session(folder, "--producer-rate", "data=measured"))
    assert "data: this host makes " in outcome.err
    assert "feeds: " in outcome.out


@pytest.mark.parametrize(("rate", "code"), [
    ("data=0", "E3011"), ("data=quick", "E3011"), ("data=nan", "E3011"), ("date=5", "E3155"),
])  # fmt: skip
def test_rates_that_are_none(folder: Path, rate: str, code: str) -> None:
    outcome = run(*session(folder, "--producer-rate", rate))
    assert code in outcome.err


def test_steps_that_are_no_whole_runs_are_refused_before_any_is_done(folder: Path) -> None:
    kept = ("--checkpoint", str(folder / "kept"), "--every", "3")
    outcome = run(*session(folder, "--steps", "10", *kept))
    assert outcome.code == 2
    assert "E3153" in outcome.err
    assert not list((folder / "kept").iterdir())


@pytest.mark.parametrize("place", ["rows.npy", "rows.npy/deeper"])
def test_a_folder_of_checkpoints_that_cannot_be_made(folder: Path, place: str) -> None:
    outcome = run(*session(folder, "--checkpoint", str(folder / place)))
    assert outcome.code == 2
    assert "E3004" in outcome.err


@pytest.fixture
def two(folder: Path) -> list[str]:
    """The command of a step that is fed with x and k, parameters 2 and 3."""
    (folder / "seen.npz").unlink(missing_ok=True)
    return [
        "run", str(folder / "sums.hlo"), "--target", "tiny", "--no-cache", "--loop", "3",
        "--feed", "data=3,2", "--random", "0", "--outfeed-to", f"seen={folder / 'seen.npz'}",
        "--outfeed", "seen",
    ]  # fmt: skip


def seen_of(folder: Path) -> np.ndarray[Any, Any]:
    with np.load(folder / "seen.npz") as found:
        return np.array(found["seen"])


@pytest.mark.parametrize("names", [("in_3", "in_2"), ("data.0", "data.1")])
def test_arrays_of_a_file_are_taken_by_name(
    folder: Path, two: list[str], names: tuple[str, str]
) -> None:
    text = SUMS.replace("multiply(x, k)", "subtract(x, k)")
    (folder / "sums.hlo").write_text(text)
    k, x = names
    np.savez(folder / "f.npz", **{x: ROWS, k: 2 * ROWS, "other": np.zeros(3)})  # type: ignore[arg-type]
    outcome = run(*two, "--infeed", f"data={folder / 'f.npz'}")
    assert outcome.code == 0, outcome.err
    np.testing.assert_array_equal(seen_of(folder), -ROWS[:3])


def test_arrays_of_a_file_may_be_chosen(folder: Path, two: list[str]) -> None:
    (folder / "sums.hlo").write_text(SUMS.replace("multiply(x, k)", "subtract(x, k)"))
    np.savez(folder / "f.npz", a=ROWS, b=2 * ROWS, test=np.zeros(3))
    assert run(*two, "--infeed", f"data={folder / 'f.npz'}:b,a").code == 0
    np.testing.assert_array_equal(seen_of(folder), -ROWS[:3])
    assert run(*two, "--infeed", f"data={folder / 'f.npz'}:a,b").code == 0
    np.testing.assert_array_equal(seen_of(folder), ROWS[:3])
    outcome = run(*two, "--infeed", f"data={folder / 'f.npz'}:a,c")
    assert outcome.code == 7
    assert "E2032" in outcome.err
    outcome = run(*two, "--infeed", f"data={folder / 'f.npz'}")
    assert "E2023" in outcome.err
    assert "found a float32[60, 6], b float32[60, 6], test float64[3]" in outcome.err


def test_tiles_set_apart_change_no_values(folder: Path) -> None:
    plain, apart = folder / "plain.npz", folder / "apart.npz"
    assert run(*session(folder, "--steps", "6", "-o", str(plain))).code == 0
    for mode in ("functional", "exact"):
        given = ("--steps", "6", "--io-tiles", "1", "--mode", mode, "-o", str(apart))
        outcome = run(*session(folder, *given))
        assert outcome.code == 0, outcome.err
        assert apart.read_bytes() == plain.read_bytes()
    assert "E2044" in run(*session(folder, "--io-tiles", "4")).err


RATED = """HloModule rated, input_output_alias={ {0}: (0, {}, may-alias) }
ENTRY main {
  a = f32[6]{0} parameter(0), metadata={op_name="a"}
  rate = f32[] parameter(1), metadata={op_name="rate"}
  x = f32[6]{0} parameter(2), metadata={op_name="x"}
  rates = f32[6]{0} broadcast(rate), dimensions={}
  scaled = f32[6]{0} multiply(rates, x)
  sum = f32[6]{0} add(a, scaled)
  some = f32[3]{0} slice(scaled), slice={[0:3]}
  ROOT out = (f32[6]{0}, f32[3]{0}) tuple(sum, some)
}
"""


@pytest.mark.parametrize("role", ["call", "hyper"])
def test_a_number_may_differ_from_call_to_call(folder: Path, role: str) -> None:
    (folder / "rated.hlo").write_text(RATED)
    np.savez(folder / "a.npz", a=np.zeros(6, np.float32))
    out, kept = folder / "out.npz", ("--checkpoint", str(folder / "kept"), "--every", "3")
    given = ("--inputs", str(folder / "a.npz"), "--infeed", f"data={folder / 'rows.npy'}")
    step = (
        "run",
        str(folder / "rated.hlo"),
        *LOOP[:6],
        *given,
        "--role",
        f"rate={role}",
    )
    assert run(*step, "--steps", "6", "--input", "rate=2,4", *kept).code == 0
    more = ("--steps", "12", "--input", "rate=2,4,8,0.5", *kept, "--resume", "-o", str(out))
    assert run(*step, *more).code == 0
    wanted = sum(r * ROWS[3 * n : 3 * n + 3].sum(0) for n, r in enumerate((2, 4, 8, 0.5)))
    with np.load(out) as made:
        np.testing.assert_array_equal(made["out_0"], wanted)
    for text, code in (("rate=1,2,3", "E3154"), ("rat=1", "E3154"), ("rate=fast", "E3011")):
        outcome = run(*step, "--steps", "6", "--input", text)
        assert (outcome.code, code in outcome.err) == (2, True), outcome.err


def test_a_number_goes_over_what_a_plain_run_draws(folder: Path) -> None:
    (folder / "rated.hlo").write_text(RATED)
    outcome = run("run", str(folder / "rated.hlo"), *LOOP[:2], "--random", "0", "--input", "rate=0")
    last = outcome.out.rpartition("out_1 f32[3] =")[2].strip()
    assert [abs(float(x)) for x in last.strip("[]").split(",")] == [0.0] * 3


def test_made_up_elements_are_fed_where_no_file_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = ("run", str(folder / "sums.hlo"), *LOOP, "--inputs", str(folder / "start.npz"))
    named = run(*step, "--infeed", "data=synthetic")
    assert named.code == 0, named.err
    assert run(*step).code == 2
    assert run(*step, "--synthetic-data").out == named.out
    monkeypatch.setenv("TF_POPLAR_FLAGS", "--use_synthetic_data")
    assert run(*step).out == named.out
    real = run(*session(folder))
    assert real.code == 0
    assert real.out != named.out
