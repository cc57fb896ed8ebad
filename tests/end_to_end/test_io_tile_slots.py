"""Cycles of cut steps with tiles set apart for queues: slots with transfers beside them."""

from dataclasses import replace
from typing import Any

import pytest

import hloipu
from hloipu.choosing import sweep
from hloipu.options.resolve import resolve
from hloipu_runtime.costs.step_times import step_times
from hloipu_runtime.findings.facts import Facts
from hloipu_runtime.findings.find import findings_of
from hloipu_runtime.program.program import Role
from hloipu_runtime.report.pipeline_chart import chart
from tests.compiler.partition.training.test_inference import LAYERS, text
from tests.support.io_tile_steps import (
    CUTS,
    SLOW_HOST,
    UPDATES,
    Walk,
    apart,
    built,
    loop_of,
    normed,
    pipeline_of,
)
from tests.support.pipeline_trials import Cut, compiled
from tests.support.training_steps import STEPS


@pytest.mark.thinned(6)
@pytest.mark.parametrize("options", [{}, {"set": SLOW_HOST}], ids=["fast", "slow"])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_slot_takes_the_longer_of_transfers_and_work(cut: Cut, options: dict[str, Any]) -> None:
    program = built(cut, **options)
    walk = Walk(program)
    step = pipeline_of(program.program)
    waits = walk.pipeline(step) > walk.pipeline(step, beside=False)
    assert waits == bool(options)
    found = program.estimate()
    assert found.total_cycles == walk.start + walk.around() + UPDATES * walk.turn()
    profile = program.profile()
    for row in profile.by_ipu:
        assert row.idle >= 0
        assert sum(row[1:]) == found.total_cycles
    if len(profile.by_ipu) == 1:
        assert profile.by_ipu[0].idle == 0
    (pipe,) = profile.pipelines
    assert pipe.cycles == walk.pipeline(step)
    transfers = [cycles for *_, cycles in walk.positions(step)]
    assert [row.host_cycles for row in pipe.positions] == transfers
    heads = [line.split("  ") for line in chart(profile).splitlines() if "stash bytes" in line]
    assert "host cycles" in heads[0]


@pytest.mark.parametrize("slow", [False, True])
def test_a_single_slot_leaves_transfers_the_whole_turn(slow: bool) -> None:
    """So that copies of a plain step do what a loop around one does."""
    program = built(
        Cut("mlp_adam", 1, "grouped", 1, replicas=2, loop=UPDATES), set=SLOW_HOST if slow else ()
    )
    walk = Walk(program)
    step = pipeline_of(program.program)
    ((own, handing, transfers),) = walk.positions(step)
    rest = walk.turn() - walk.pipeline(step) + walk.pipeline(step, beside=False)
    assert own < rest
    jump = program.machine.tile.supervisor_branch_cycles
    turn = jump + max(rest - jump, handing + transfers)
    assert (turn == rest) != slow
    assert program.estimate().total_cycles == walk.start + transfers + UPDATES * turn


@pytest.mark.parametrize("rate", ["", "200000"], ids=["fast", "slow"])
def test_what_an_update_gives_out_goes_beside_what_is_outside_of_slots(rate: str) -> None:
    program = normed(rate)
    walk = Walk(program)
    step, outside = pipeline_of(program.program), list(loop_of(program.program).body.steps)
    outside.remove(step)
    parts = apart(outside, program.program)
    transfers = walk.cycles(parts.transfers)
    own, beside = walk.cycles(parts.own), walk.cycles(parts.handing) + transfers
    assert (beside > own) == bool(rate)
    turn = program.machine.tile.supervisor_branch_cycles + walk.pipeline(step) + max(own, beside)
    around = transfers + walk.around()
    assert program.estimate().total_cycles == walk.start + around + UPDATES * turn


def test_programs_that_wait_for_the_host_are_told_of_tiles_to_set_apart() -> None:
    cut = Cut("mlp_adam", 1, "grouped", 4, loop=UPDATES, offload="off")
    settings = []
    for each in (cut, replace(cut, io_tiles=1)):
        program = compiled(each, set=SLOW_HOST)
        facts = Facts(program.program, program.machine, program.profile(), program.memory)
        (finding,) = (x for x in findings_of(facts) if x.kind == "host-bound")
        settings.append(dict(finding.settings))
    assert settings == [{"io_tiles": 1}, {}]


def test_ways_to_cut_are_looked_at_with_tiles_set_apart() -> None:
    step = STEPS["mlp_adam"]
    first = step.state_count
    given: dict[str, Any] = {
        "target": "tiny", "set": SLOW_HOST, "over_memory": "allow", "cache": False, "loop": 1,
        "feed": {"data": (first, first + 1)}, "outfeed": [f"loss={first}"], "io_tiles": 1,
    }  # fmt: skip
    asked = {"stages": ("1", "2"), "micro-batches": ("4",)}
    options = resolve("compile", given).options
    for row in sweep(hloipu.verify(step.text), options, asked).rows:
        program = hloipu.compile(
            step.text, **given, stages=row.candidate.stages,
            micro_batches=row.candidate.micro_batches,
        )  # fmt: skip
        assert row.update_cycles == pytest.approx(
            step_times(program.costs).iteration_cycles, rel=0.05
        )
    found = hloipu.compile(step.text, **given, plan="auto", ipus=2, micro_batches=4)
    assert any(v.role is Role.BUFFER for v in found.program.variables)


def test_ipus_of_different_chassis_transfer_at_the_same_time() -> None:
    """Five stages of an inference: the fifth, which gives out, is beyond the first chassis."""
    slow = (*SLOW_HOST, ("host.from_device_bytes_per_second", "250000"))
    program = hloipu.compile(
        text(named=False), target="tiny", set=slow, over_memory="allow", cache=False, stages=LAYERS,
        micro_batches=6, loop=UPDATES, io_tiles=1, feed={"data": (LAYERS,)}, outfeed=["out"],
    )  # fmt: skip
    walk = Walk(program)
    (*_, first), *_, (*_, last) = walk.positions(pipeline_of(program.program))
    assert walk.around() == max(first, last) < first + last
    assert program.estimate().total_cycles == walk.start + walk.around() + UPDATES * walk.turn()
