"""`hloipu advise`, and findings in what `hloipu compile` prints."""

import json
from pathlib import Path

from hloipu.api import compile_once
from hloipu.options.table import Options
from hloipu_compiler.hlo.parse import parse
from tests.support.command_line import run

SAMPLE = Path(__file__).resolve().parents[4] / "hlo_samples" / "mnist_train_step.hlo"


def test_the_first_three_findings_end_the_verdict() -> None:
    lines = run("compile", str(SAMPLE)).out.splitlines()
    assert len(lines) <= 12
    assert [line[:3] for line in lines[-3:]] == ["1. ", "2. ", "3. "]
    assert "of the device's cycles" in lines[-3]
    assert any(line.startswith("host: stops the device for ") for line in lines)


def test_all_findings_with_their_cures() -> None:
    few, all_of_them = run("compile", str(SAMPLE)), run("compile", str(SAMPLE), "--findings")
    assert all_of_them.out.startswith(few.out)
    rest = all_of_them.out[len(few.out) :]
    # What the host adds is not the device's: it comes last.
    kinds = [line.split(": ")[0] for line in rest.splitlines() if line[:1].isdigit()]
    assert kinds[-1].endswith(". host-bound")
    assert rest.count("cure: ") >= 3
    assert "measured" not in rest


def test_the_profile_has_them_by_what_they_save() -> None:
    record = json.loads(run("compile", str(SAMPLE), "--json").out)
    findings = record["findings"]
    gains = [x["gain_cycles"] for x in findings if not (x["gain_bytes"] or x["is_of_host"])]
    assert gains == sorted(gains, reverse=True)
    assert record["fitting"] is None
    total = record["lower_bound_cycles"]
    assert all(0 <= x["gain_cycles"] <= total for x in findings)
    host = record["host"]
    assert findings[-1]["evidence"]["host_cycles"] == host["each_run_cycles"] > 0
    assert host["stops_cycles"] == record["by_bucket"]["host"]
    assert host["each_run_cycles"] + host["once_cycles"] == host["stops_cycles"]
    assert record["device_cycles"] + host["stops_cycles"] == total


def test_advice_measures_by_compiling() -> None:
    outcome = run("advise", str(SAMPLE), "--json")
    assert outcome.code == 0
    record = json.loads(outcome.out)
    measured = {x["kind"]: x["measured"] for x in record["findings"] if x["measured"]}
    assert "host-bound" in measured
    loop = measured["host-bound"]
    assert loop["settings"] == {"loop": 100}
    program = compile_once(parse(SAMPLE.read_text(encoding="utf-8")), Options(loop=100))
    assert loop["cycles"] == program.estimate().lower_bound_cycles // 100
    assert loop["cycles_before"] == record["total_cycles"]
    assert loop["cycles"] < loop["cycles_before"] / 2


def test_advice_in_words() -> None:
    out = run("advise", str(SAMPLE)).out
    assert "measured with --loop=100: " in out


def test_findings_are_the_same_each_time() -> None:
    first, second = (run("compile", str(SAMPLE), "--findings", "--no-cache").out for _ in range(2))
    assert first == second
