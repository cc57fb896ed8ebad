"""`hloipu compile`: the verdict, the profile, the executable, and what does not fit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run
from tests.support.tile_texts import DOT, LOOP, TOO_LARGE

ROOT = Path(__file__).resolve().parents[4]
SAMPLE = ROOT / "hlo_samples" / "mnist_train_step.hlo"
TINY = ("--target", "tiny")


def profile_sums(record: dict[str, Any]) -> None:
    """Check that totals are the sums of their parts."""
    total = record["lower_bound_cycles"]
    assert sum(record["by_bucket"].values()) == total
    idle = record["by_bucket"]["idle"]
    assert sum(step["cycles"] for step in record["steps"]) + idle == total
    assert sum(origin["cycles"] for origin in record["origins"]) + idle == total
    for row in record["by_ipu"]:
        assert (
            sum(row[key] for key in ("compute", "exchange", "sync", "remote", "host", "idle"))
            == total
        )
    peak = record["memory"]["peak"]
    assert sum(peak["parts"].values()) == peak["total_bytes"]
    assert sum(record["memory"]["parts"].values()) == record["memory"]["total_bytes"]


def test_the_verdict_has_at_most_twelve_lines(tmp_path: Path) -> None:
    outcome = run("compile", str(SAMPLE), "--profile", str(tmp_path / "p.json"))
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert len(lines) <= 12
    assert lines[0].startswith("jit_step on gc200: 1 IPU of 1,472 tiles at 1.33 GHz (estimate)")
    assert lines[1].startswith("fits: ")
    assert lines[2].startswith("device: ")
    assert sum(" cycles " in line and line.startswith("     ") for line in lines) == 4
    record = json.loads((tmp_path / "p.json").read_text())
    assert (record["schema"], record["version"], record["mode"]) == (
        "hloipu.profile",
        2,
        "estimate",
    )
    profile_sums(record)


def test_json_takes_the_verdicts_place() -> None:
    outcome = run("compile", "-", *TINY, "--json", stdin=DOT)
    assert (outcome.code, outcome.err) == (0, "")
    record = json.loads(outcome.out)
    profile_sums(record)
    assert record["machine"]["tiles_per_ipu"] == 4
    assert record["options"]["target"] == "tiny"


def test_a_loop_that_data_ends_has_a_lower_bound() -> None:
    unknown = json.loads(run("compile", "-", *TINY, "--json", stdin=LOOP).out)
    assert unknown["total_cycles"] is None
    assert unknown["lower_bound_cycles"] > 0
    assert [item["kind"] for item in unknown["unknown"]] == ["while"]
    profile_sums(unknown)
    known = [
        json.loads(run("compile", "-", *TINY, "--json", "--assume-trips", n, stdin=LOOP).out)
        for n in ("0", "3", "6")
    ]
    totals = [record["total_cycles"] for record in known]
    assert totals[0] == unknown["lower_bound_cycles"]
    assert totals[2] - totals[1] == totals[1] - totals[0] > 0


def test_what_does_not_fit_is_told_and_its_profile_written(tmp_path: Path) -> None:
    profile, output = tmp_path / "p.json", tmp_path / "m.ipux"
    options = (*TINY, "--profile", str(profile), "-o", str(output))
    outcome = run("compile", "-", *options, stdin=TOO_LARGE)
    assert outcome.code == 5
    assert outcome.out.splitlines()[1].startswith("does NOT fit: ")
    lines = outcome.err.splitlines()
    assert lines[0].startswith("error[E1001]: tile ")
    assert lines[2].startswith("tile 0 of IPU 0: parameters 1,048,576, ")
    assert lines[3].split() == ["tensor", "type", "role", "source", "bytes", "on", "the", "tile"]
    assert "f32[1024,1024]" in lines[4]
    assert "model.py:7" in outcome.err
    record = json.loads(profile.read_text())
    assert record["memory"]["fits"] is False
    profile_sums(record)
    assert not output.exists()


def test_json_of_what_does_not_fit_is_one_object() -> None:
    outcome = run("compile", "-", *TINY, "--json", stdin=TOO_LARGE)
    assert outcome.code == 5
    assert json.loads(outcome.out)["memory"]["fits"] is False
    assert "error[E1001]" in outcome.err


def test_times_are_shown_of_what_does_not_fit() -> None:
    outcome = run("compile", "-", *TINY, "--timing", stdin=TOO_LARGE)
    assert outcome.code == 5
    assert outcome.err.splitlines()[-1].startswith("total ")


def test_too_large_a_program_is_compiled_where_that_is_allowed(tmp_path: Path) -> None:
    output = tmp_path / "m.ipux"
    allowed = (*TINY, "--over-memory", "allow", "-o", str(output))
    outcome = run("compile", "-", *allowed, stdin=TOO_LARGE)
    assert (outcome.code, outcome.err) == (0, f"wrote {output}\n")
    assert output.stat().st_size > 1000


def test_code_may_be_left_out_of_the_count() -> None:
    with_code, without = (
        json.loads(run("compile", "-", *TINY, "--json", *more, stdin=DOT).out)["memory"]
        for more in ((), ("--no-code-memory",))
    )
    assert without["parts"]["vertex code"] == without["parts"]["exchange code"] == 0
    assert with_code["parts"]["vertex code"] > 0
    assert without["total_bytes"] < with_code["total_bytes"]


def test_times_of_the_phases() -> None:
    outcome = run("compile", "-", *TINY, "--timing", "--no-cache", stdin=DOT)
    names = [line.split()[0] for line in outcome.err.splitlines()]
    assert names == [
        "phase", "parse", "verify", "passes", "codegen", "memory", "proof", "costs", "report",
        "findings", "total",
    ]  # fmt: skip


def test_what_was_compiled_is_kept(tmp_path: Path) -> None:
    options = (*TINY, "--cache-dir", str(tmp_path / "kept"), "--timing")
    first, second = (run("compile", "-", *options, stdin=DOT) for _ in range(2))
    assert first.out == second.out
    assert "codegen" in first.err
    assert "codegen" not in second.err
    other = run("compile", "-", *options, "--set", "tiles_per_ipu=7", stdin=DOT)
    assert "codegen" in other.err
    (entry, _) = sorted((tmp_path / "kept").iterdir(), key=lambda path: path.stat().st_mtime)
    entry.write_bytes(entry.read_bytes()[:-1])
    third = run("compile", "-", *options, stdin=DOT)
    assert third.out == first.out
    assert third.err.startswith("warning: a cached program is not used: ")
    assert "codegen" in third.err


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--target", "gc300"), 2, "error[E3"),
        (("--set", "tiles_per_ipus=3"), 2, "did you mean"),
        (("--set", "tiles_per_ipu=0"), 2, "error[E3"),
        (("--ipus", "4", "--shards", "8"), 4, "error[E0552]"),
        (("--ipu-ids", "31"), 2, "error[E0554]"),
        (("--passes", "inline-call"), 2, "error[E3131]"),
        (("--plugin", "no such file.py"), 2, "error[E3136]"),
        (("--over-memory", "perhaps"), 2, "error[E3011]"),
        (("-o", "/no/such/folder/m.ipux"), 2, "error[E3004]"),
        (("--profile", "/no/such/folder/p.json"), 2, "error[E3004]"),
    ],
)
def test_mistakes_are_told(options: tuple[str, ...], code: int, said: str) -> None:
    outcome = run("compile", "-", *options, stdin=DOT)
    assert outcome.code == code
    assert said in outcome.err
    assert "Traceback" not in outcome.err


def test_what_has_no_program_is_told() -> None:
    text = DOT.replace("dot(a, b)", 'custom-call(a, b), custom_call_target="theirs"').replace(
        ", lhs_contracting_dims={1}, rhs_contracting_dims={0}", ""
    )
    outcome = run("compile", "-", stdin=text)
    assert outcome.code == 4
    assert outcome.err.startswith("<stdin>:6:3: error[E0470]: ")


def test_the_configuration_needs_no_file() -> None:
    outcome = run("compile", "--print-config", *TINY)
    assert outcome.code == 0
    assert ["target", "tiny", "command", "line"] in [x.split() for x in outcome.out.splitlines()]
    assert run("compile").code == 2


def child(seed: str, folder: Path) -> tuple[bytes, bytes, bytes]:
    output, profile = folder / f"{seed}.ipux", folder / f"{seed}.json"
    path = os.pathsep.join(map(str, (ROOT, ROOT / "compiler", ROOT / "runtime")))
    done = subprocess.run(
        [
            sys.executable, "-m", "hloipu", "compile", str(ROOT / "hlo_samples" / "scan_rnn.hlo"),
            "--no-cache", "-o", str(output), "--profile", str(profile),
        ],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
        capture_output=True,
        check=True,
    )  # fmt: skip
    return done.stdout, output.read_bytes(), profile.read_bytes()


def test_equal_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    assert child("0", tmp_path) == child("4711", tmp_path)
