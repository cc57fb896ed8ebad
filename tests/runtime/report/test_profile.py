"""Profiles: sums of parts, JSON, and the verdict line by line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hloipu_runtime.costs.counting import charge_plan
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import (
    ComputeSet,
    If,
    Parallel,
    Repeat,
    RepeatWhile,
    Sequence,
    StreamIn,
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
        "peak": {"total_bytes": 16_384 if fits else 131_072, "tile": 3},
    }


def run_profile(turns: int = 5) -> Profile:
    whole = program()
    costs = step_charges(whole, TINY)
    counts = charge_plan(costs).counts(Walked(whole, [turns, 0]).runs)
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
    counts = charge_plan(costs).counts(Walked(whole, [4, 1]).runs)
    ran = profile_of_run(costs, counts)
    told = profile_of_estimate(costs, estimate(whole, TINY, 4, costs))
    assert told.lower_bound_cycles == ran.lower_bound_cycles
    assert told.total_cycles is None  # the branches differ; the run took the cheaper one
    assert [item["path"] for item in told.unknown] == ["body/3"]


def test_the_record_is_json_and_says_what_it_is() -> None:
    record = json.loads(json.dumps(run_profile().record()))
    assert (record["schema"], record["version"]) == ("hloipu.profile", 1)
    assert record["machine"]["overrides"] == {"sync.sync_cycles": 90}
    assert record["options"] == {"target": "tiny"}
    assert record["memory"] == memory(True)
    assert record["total_cycles"] == sum(record["by_bucket"].values())
    assert record["origins"][0]["name"] in {origin["name"] for origin in record["origins"]}
    assert record["one_tile_gathers"] == ["body/4|1/0"]


def test_the_verdict_answers_in_twelve_lines() -> None:
    lines = verdict(run_profile()).splitlines()
    assert len(lines) == 12
    assert lines[0] == "by hand on tiny: 2 IPUs of 4 tiles at 1 GHz (exact)"
    assert lines[1] == "fits: 16,384 of 65,536 bytes (25 %) on tile 3"
    assert lines[2].startswith("cycles: ")
    assert "host" in lines[3]
    assert any(line.endswith("add.2  model.py:7") for line in lines[4:9])
    assert lines[4].split() == ["30,000", "cycles", "88", "%", "b.10"]
    assert lines[9].startswith("tiles at work: ")
    assert (
        lines[11] == "1 step(s) gather more than 64 KiB to one tile; most: 120,000 bytes for b.10"
    )


def test_the_verdict_says_what_is_not_known_or_does_not_fit() -> None:
    whole = program()
    costs = step_charges(whole, TINY)
    told = estimate(whole, TINY, costs=costs)
    lines = verdict(profile_of_estimate(costs, told, About(memory=memory(False)))).splitlines()
    assert lines[1] == "does NOT fit: 131,072 of 65,536 bytes (200 %) on tile 3"
    assert lines[2].startswith(f"cycles: unknown, at least {told.lower_bound_cycles:,}")
    assert "2 place(s)" in lines[2]


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
    inner = [record["machine"], record["by_bucket"], *rows]
    assert {key for keys in (record, *inner) for key in keys} <= told
