"""Pipelines in the profile and on the terminal."""

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.channels import read_where_made
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import ComputeSet, Pipeline, Sequence, Stage
from hloipu_runtime.report.build import profile_of_estimate
from hloipu_runtime.report.pipeline_chart import chart, pipeline_lines
from hloipu_runtime.report.profile import Profile
from tests.support.concurrent_programs import ConcurrentMaker
from tests.support.pipelined_programs import SHAPE, PipelineMaker

MACHINE = load_machine("tiny")
VALUE_BYTES = 4 * SHAPE[0]


def profile_of(program: Program) -> Profile:
    costs = step_charges(program, MACHINE)
    return profile_of_estimate(costs, estimate(program, MACHINE, costs=costs))


@pytest.mark.parametrize("interval", [1, 2, 6])
def test_cycles_and_bubble_are_those_of_slots_walked_one_by_one(interval: int) -> None:
    count = 7
    (row,) = profile_of(PipelineMaker(3, interval, count).program()).pipelines
    span = 0
    for slot in range(interval * (count - 1) + 6):
        busy = [0, 0, 0]
        for position in row.positions:
            turn, rest = divmod(slot - row.positions.index(position), interval)
            if not rest and 0 <= turn < count:
                busy[position.ipu] += position.cycles
        span += max(busy)
    work = count * sum(position.cycles for position in row.positions)
    assert row.cycles == span + row.slot_end_cycles
    assert row.slots == interval * (count - 1) + 6
    assert row.bubble == pytest.approx(float(1 - Fraction(work, 3 * span)))


@pytest.mark.parametrize(("interval", "held"), [(1, (1, 3, 5)), (2, (1, 2, 3)), (6, (1, 1, 1))])
def test_stashes_hold_what_the_schedule_makes_wait(interval: int, held: tuple[int, ...]) -> None:
    """Graphcore's depths 2 (S - 1 - s), S - 1 - s and 0, and the one at work."""
    (row,) = profile_of(PipelineMaker(3, interval, 8).program()).pipelines
    backward = row.positions[3:]
    assert tuple(position.depth for position in backward) == held
    assert [position.stash_bytes for position in backward] == [VALUE_BYTES * n for n in held]
    assert [position.received_bytes > 0 for position in backward] == [False, True, True]
    assert not any(position.stash_bytes for position in row.positions[:3])


@pytest.mark.parametrize("is_read_first", [False, True])
def test_what_positions_write_before_they_read_it_is_no_stash(is_read_first: bool) -> None:
    """As the variables of a function that positions of an IPU call."""
    program = PipelineMaker(2, 1, 3).program()
    pipe = next(x for x in program.body.steps if isinstance(x, Pipeline))
    scratch, other = (len(program.variables) + n for n in range(2))

    def calling(stage: Stage) -> Stage:
        made = next(x for x in stage.body.steps if isinstance(x, ComputeSet))
        (group,) = made.groups
        source, (target,) = group.inputs[0], group.outputs
        writing = replace(group, outputs=(target._replace(variable=scratch),))
        inputs = source._replace(variable=scratch), *group.inputs[1:]
        reading = replace(group, inputs=inputs, outputs=(target._replace(variable=other),))
        calls = [ComputeSet((writing,)), ComputeSet((reading,))]
        steps = calls[::-1] if is_read_first else calls
        return stage._replace(body=Sequence((*steps, *stage.body.steps)))

    stages = tuple(calling(x) if x.ipus == (0,) else x for x in pipe.stages)
    changed = replace(pipe, stages=stages)
    body = Sequence(tuple(changed if x is pipe else x for x in program.body.steps))
    variables = (*program.variables, *2 * program.variables[:1])
    found = list(read_where_made(replace(program, variables=variables, body=body), changed))
    assert found == ([(3, scratch)] if is_read_first else [])


def test_the_chart_has_every_slot_where_there_is_room() -> None:
    lines = chart(profile_of(PipelineMaker(2, 1, 3).program()), 80).splitlines()
    assert [line.split() for line in lines[1:6]] == [
        ["slot", "0", "1", "2", "3", "4", "5"],
        ["IPU", "0", "p0", "0", "1", "2", "·", "·", "·"],
        ["IPU", "0", "p3", "·", "·", "·", "0", "1", "2"],
        ["IPU", "1", "p1", "·", "0", "1", "2", "·", "·"],
        ["IPU", "1", "p2", "·", "·", "0", "1", "2", "·"],
    ]


@pytest.mark.parametrize("width", [30, 60, 100])
def test_long_pipelines_are_shortened_to_the_terminal(width: int) -> None:
    lines = chart(profile_of(PipelineMaker(2, 2, 500).program()), width).splitlines()
    grid = lines[1:6]
    assert max(map(len, grid)) <= max(width, 9 + 6 * 5)
    assert all(len(line) == len(grid[0]) for line in grid)
    shown = grid[0].split()[1:]
    assert shown[0] == "0"
    assert shown[-1] == str(2 * 499 + 3)
    assert f"… stands for {2 * 499 + 4 - (len(shown) - 1):,} slots" in lines


def test_a_long_pipeline_leaves_out_positions() -> None:
    lines = chart(profile_of(PipelineMaker(38, 1, 1).program())).splitlines()
    assert "… 13 more positions" in lines


def test_each_pipeline_is_told_in_a_line() -> None:
    profile = profile_of(PipelineMaker(2, 1, 3).program())
    (line,) = pipeline_lines(profile)
    assert line.startswith("pipe: 3 through 4 positions on 2 IPUs in 6 slots, ")
    assert line.endswith(f"bubble {profile.pipelines[0].bubble:.1%}")


def test_the_record_is_json_and_every_key_is_documented() -> None:
    record = json.loads(json.dumps(profile_of(PipelineMaker(2, 1, 3).program()).record()))
    (pipeline,) = record["pipelines"]
    text = (Path(__file__).parents[3] / "docs" / "profile.md").read_text()
    assert {*pipeline, *pipeline["positions"][0]} <= set(re.findall(r"[a-z_]+", text))


def test_a_stage_on_several_ipus_says_what_each_of_them_does() -> None:
    """The second branch adds more often; the first IPU joins them and waits for it."""
    profile = profile_of(ConcurrentMaker(4, more=5).program())
    (row,) = profile.pipelines
    middle = row.positions[1]
    short, long = middle.shares
    assert (middle.ipu, short.ipu, long.ipu) == (1, 1, 2)
    assert short.cycles < middle.cycles
    assert long.cycles < middle.cycles
    assert middle.received_bytes == short.received_bytes + long.received_bytes == 2 * VALUE_BYTES
    alone = [share for x in (row.positions[0], row.positions[2]) for share in x.shares]
    work = 4 * sum(share.cycles for share in (short, long, *alone))
    span = row.cycles - row.slot_end_cycles
    assert row.bubble == pytest.approx(float(1 - Fraction(work, 4 * span)))
    lines = chart(profile, 80).splitlines()
    assert [line.split() for line in lines[2:6]] == [
        ["IPU", "0", "p0", "0", "1", "2", "3", "·", "·"],
        ["IPU", "1", "p1", "·", "0", "1", "2", "3", "·"],
        ["IPU", "2", "p1", "·", "0", "1", "2", "3", "·"],
        ["IPU", "3", "p2", "·", "·", "0", "1", "2", "3"],
    ]
    assert json.loads(json.dumps(row.record()))["positions"][1]["shares"][1]["ipu"] == 2
