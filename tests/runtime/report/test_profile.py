"""Profiles: sums of parts, JSON, and the verdict line by line."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hloipu_runtime.costs.counting import ChargePlan
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.transfers import host_transfer
from hloipu_runtime.program.program import Port, Program
from hloipu_runtime.program.steps import (
    ComputeSet,
    If,
    Parallel,
    Repeat,
    RepeatWhile,
    Sequence,
    StreamIn,
    StreamOut,
    Sync,
)
from hloipu_runtime.report.build import About, profile_of_estimate, profile_of_run
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.report.verdict import verdict
from tests.support.priced_programs import Maker, Walked, everywhere, row, rows

TINY = load_machine("tiny", {"sync_cycles": "90"})


def program() -> Program:
    """Return a program with all kinds of steps, on two IPUs."""
    make = Maker(ipus=2)
    flag = make.variable((), everywhere((), row(1)), "pred")
    x = make.variable((64,), rows((64,), row(4)))
    y = make.variable((64,), everywhere((64,), row(4)))
    z = make.variable((30_000,), everywhere((30_000,), row(1)), ipu=1)
    far = make.variable((64,), rows((64,), row(4)), ipu=1)
    both = ComputeSet((make.group((), x, "dot.1", assumed=5), make.group((), y, "add.2")))
    turn = Sequence((make.exchange((x, y), name="copy.3"), both, Sync()))
    return make.program(
        StreamIn("x", x, x),
        Repeat(3, turn, (), "loop.4"),
        RepeatWhile(Sequence((make.toil(x, "less.5"),)), flag, flag, turn, (), "while.6"),
        If(flag, flag, Sequence((make.toil(x, "then.7"),)), Sequence(), (), "if.8"),
        Parallel((Sequence((make.toil(x, "a.9"),)), Sequence((make.toil(z, "b.10"),)))),
        make.exchange((x, far), name="far.11"),
    )


def memory(fits: bool) -> dict[str, Any]:
    return {
        "fits": fits,
        "available_bytes_per_tile": 65_536,
        "peak": {
            "total_bytes": 16_384 if fits else 131_072,
            "tile": 3,
            "assumed": {"vertex code": 0, "control code": 8_192},
        },
    }


def run_profile(turns: int = 5) -> Profile:
    whole = program()
    costs = step_charges(whole, TINY)
    counts = ChargePlan(costs).counts(Walked(whole, [turns, 0]).runs)
    about = About({"add.2": "model.py:7"}, {"target": "tiny"}, memory=memory(True))
    return profile_of_run(costs, counts, about, mode="exact", idle_cycles=17)


def estimate_profile() -> Profile:
    whole = program()
    costs = step_charges(whole, TINY)
    return profile_of_estimate(costs, estimate(whole, TINY, costs=costs))


@pytest.mark.parametrize("profile", [run_profile(), run_profile(0), estimate_profile()])
def test_totals_are_sums_of_their_parts(profile: Profile) -> None:
    total = profile.lower_bound_cycles
    idle = profile.by_bucket["idle"]
    assert sum(profile.by_bucket.values()) == total
    assert sum(step.cycles for step in profile.steps) == total - idle
    assert sum(origin.cycles for origin in profile.origins) == total - idle
    assert sum(origin.host_cycles for origin in profile.origins) == profile.by_bucket["host"]
    assert sum(step.assumed_cycles for step in profile.steps) == profile.assumed_cycles
    assert sum(origin.assumed_cycles for origin in profile.origins) == profile.assumed_cycles
    for ipu in profile.by_ipu:
        assert sum(ipu[1:]) == total
    assert sum(profile.device.values()) == profile.device_cycles
    assert profile.device_cycles + profile.host.stops_cycles + idle == total
    host = profile.by_bucket["host"]
    assert (profile.host.stops_cycles, profile.host.beside_cycles) == (host, 0)
    assert profile.device == {name: profile.by_bucket[name] for name in profile.device}


def test_counts_are_those_of_the_run() -> None:
    profile = run_profile(5)
    assert {loop.name: (loop.entered, loop.turns, loop.is_counted) for loop in profile.loops} == {
        "loop.4": (1, 3, True),
        "while.6": (1, 5, False),
    }
    executions = {step.name: step.executions for step in profile.steps}
    assert (executions["less.5"], executions["then.7"]) == (6, 1)
    hidden = {step.name: step.hidden_executions for step in profile.steps}
    assert (hidden["a.9"], hidden["b.10"]) == (1, 0)
    assert [step.cycles for step in profile.steps if step.name == "a.9"] == [0]


def test_a_run_and_an_estimate_with_its_turns_agree() -> None:
    whole = program()
    costs = step_charges(whole, TINY)
    counts = ChargePlan(costs).counts(Walked(whole, [4, 1]).runs)
    ran = profile_of_run(costs, counts)
    told = profile_of_estimate(costs, estimate(whole, TINY, 4, costs))
    assert told.lower_bound_cycles == ran.lower_bound_cycles
    assert told.total_cycles is None  # the branches differ; the run took the cheaper one
    assert [item["path"] for item in told.unknown] == ["body/3"]


def test_the_record_is_json_and_says_what_it_is() -> None:
    record = json.loads(json.dumps(run_profile().record()))
    assert (record["schema"], record["version"]) == ("hloipu.profile", 2)
    assert record["machine"]["overrides"] == {"sync.sync_cycles": 90}
    assert record["options"] == {"target": "tiny"}
    assert record["memory"] == memory(True)
    assert record["total_cycles"] == sum(record["by_bucket"].values())
    assert record["origins"][0]["name"] in {origin["name"] for origin in record["origins"]}
    assert record["one_tile_gathers"] == ["body/4|1/0"]


def test_the_verdict_answers_in_twelve_lines() -> None:
    profile = run_profile()
    lines = verdict(profile).splitlines()
    assert len(lines) == 12
    assert lines[0] == "by hand on tiny: 2 IPUs of 4 tiles at 1 GHz (exact)"
    assert lines[1] == "fits: 16,384 of 65,536 bytes (25 %) on tile 3"
    assert lines[2].startswith(f"device: {profile.device_cycles:,} cycles (")
    assert "host" not in lines[3]
    assert lines[4].startswith(f"host: stops the device for {profile.host.stops_cycles:,} cycles")
    assert lines[4].endswith("; 256 bytes in, 0 out")
    assert any(line.endswith("add.2  model.py:7") for line in lines[5:9])
    assert lines[5].split()[:2] == ["30,000", "cycles"]
    assert lines[9].startswith("tiles at work: ")
    assert (
        lines[10] == "from assumed constants: 100 % of the cycles, 50 % of the bytes (control code)"
    )
    assert (
        lines[11] == "1 step(s) collect more than 64 KiB on one tile; most: 120,000 bytes for b.10"
    )


def told(**changed: Any) -> list[str]:
    """Return the verdict on an estimate with such a memory report."""
    whole = program()
    costs = step_charges(whole, TINY)
    found = estimate(whole, TINY, costs=costs)
    about = About(memory=memory(False) | changed)
    return verdict(profile_of_estimate(costs, found, about)).splitlines()


def test_the_verdict_says_what_is_not_known_or_does_not_fit() -> None:
    lines = told()
    assert lines[1] == "does NOT fit: 131,072 of 65,536 bytes (200 %) on tile 3"
    least = estimate_profile().device_cycles
    assert lines[2].startswith(f"device: unknown, at least {least:,} cycles")
    assert "2 place(s)" in lines[2]


def test_the_verdict_names_the_limit_that_is_broken() -> None:
    code = {"executable_bytes_per_tile": 32_768, "code_peak": {"code_bytes": 40_960, "tile": 1}}
    both = told(**code)[1]
    assert both.startswith("does NOT fit: 131,072 of 65,536 bytes (200 %) on tile 3; code takes ")
    alone = told(**code, peak={"total_bytes": 49_152, "tile": 3})[1]
    assert alone.startswith(
        "does NOT fit: code takes 40,960 of the 32,768 bytes that code may take (125 %) on tile 1: "
    )
    assert "--outline on" in alone
    assert alone.endswith("in all 49,152 of 65,536 bytes (75 %) on tile 3")


@pytest.mark.parametrize(
    ("bytes_per_tile", "remote", "ipus"), [(1_000, 0, 5), (1_000, 8_192, 3), (8_192, 0, 0)]
)
def test_the_verdict_says_how_many_ipus_hold_the_state(
    bytes_per_tile: int, remote: int, ipus: int
) -> None:
    changed = {"available_bytes_per_tile": bytes_per_tile, "ipus": [{"remote_bytes": remote}]}
    profile = with_kept({"parameters": [0, 1], "results": [0], "evidence": "as said"}, **changed)
    size = 4 * (4096 + 64) - remote  # on 4 tiles an IPU
    said = [line for line in verdict(profile).splitlines() if line.startswith("no cut of so many")]
    assert len(said) == (ipus > 0)
    assert all(f"takes {size:,} bytes" in line and f"; {ipus} IPUs or" in line for line in said)


def with_kept(kept: dict[str, Any], **changed: Any) -> Profile:
    """Return the estimate of a step of two weights and data, of which a weight comes back.

    `changed`: of a report of memory that does not fit.
    """
    make = Maker(ipus=1)
    w, v, x = (make.variable((size,), rows((size,), row(4))) for size in (4096, 64, 256))
    comes = (StreamIn("w", w, w), StreamIn("v", v, v), StreamIn("x", x, x))
    goes = (StreamOut("w'", w, w), StreamOut("y", x, x))
    whole = replace(
        make.program(*comes, make.toil(x, "a.1"), *goes),
        parameters=tuple(Port(name, "f32", ()) for name in "wvx"),
        results=(Port("w'", "f32", ()), Port("y", "f32", ())),
    )
    costs = step_charges(whole, TINY)
    options = {"kept_between_runs": kept} if kept else {}
    about = About(options=options, memory=memory(False) | changed if changed else {})
    return profile_of_estimate(costs, estimate(whole, TINY, costs=costs), about)


def test_what_stays_on_the_device_is_not_charged_to_each_run() -> None:
    """A plain run transfers it; what is left costs as transfers of the data alone do."""
    plain = with_kept({})
    assert plain.host.each_run_cycles == plain.host.stops_cycles == plain.by_bucket["host"]
    kept = with_kept({"parameters": [0, 1], "results": [0], "evidence": "as said"})
    assert kept.total_cycles == plain.total_cycles
    assert kept.device == plain.device
    host = TINY.host
    trips = 2 * (host.round_trip_nanoseconds + host.command_cycles)  # at 1 GHz
    ways = (True, False)
    data = [host_transfer(TINY, [1024], to_device=way, busiest_tile_bytes=256) for way in ways]
    assert kept.host.each_run_cycles == sum(charge.cycles for charge in data) >= trips
    assert kept.host.once_cycles == plain.host.stops_cycles - kept.host.each_run_cycles
    assert (kept.host.once_bytes_in, kept.host.once_bytes_out) == (4 * (4096 + 64), 4 * 4096)
    assert kept.host.each_run_bytes == (1024, 1024)
    (line,) = (x for x in verdict(kept).splitlines() if x.startswith("host: "))
    assert "; once, before the first run and after the last: " in line
    assert line.endswith("for 33,024 bytes that stay on the device (as said)")


def test_an_empty_program_has_a_verdict() -> None:
    empty = Maker().program()
    costs = step_charges(empty, TINY)
    profile = profile_of_estimate(costs, estimate(empty, TINY, costs=costs))
    assert (profile.total_cycles, profile.seconds, profile.tile_use) == (0, 0.0, 0.0)
    assert "nothing to do" in verdict(profile)


def test_every_key_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "profile.md").read_text()
    told = set(re.findall(r"[a-z_]+", text))
    record = run_profile().record()
    rows = [record[key][0] for key in ("steps", "origins", "loops")]
    inner = [record["machine"], record["by_bucket"], record["host"], *rows]
    assert {key for keys in (record, *inner) for key in keys} <= told
