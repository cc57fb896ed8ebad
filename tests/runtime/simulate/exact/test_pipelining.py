"""Pipelines in both engines: what slots side by side compute is what one after the other would."""

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest

from hloipu_runtime.memory.liveness import liveness_of
from hloipu_runtime.memory.messages import points_of
from hloipu_runtime.program import channels
from hloipu_runtime.program.channels import popped, pushed
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import ComputeSet, Exchange, Pipeline, Sequence, Step
from hloipu_runtime.program.uses import used
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.exact.pipelining import pipelined
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from tests.support.cases import each
from tests.support.pipelined_programs import (
    SHAPE,
    Feed,
    PipelineMaker,
    expected_totals,
    read_where_made,
)

CASES = [
    (stages, interval, count)
    for stages in (1, 2, 3, 4)
    for interval in (1, 2, 2 * stages)
    for count in (0, 1, 2, 3, 5, 9)
]


def totals(engine: ExactEngine | FunctionalEngine, program: Program, feed: Feed) -> list[Array]:
    engine.state = {port.name: np.zeros(SHAPE, np.float32) for port in program.state}
    engine.run(feed)
    return [engine.state[name] for name in sorted(port.name for port in program.state)]


def assert_totals(program: Program, stages: int, count: int) -> None:
    """Run so many micro-batches in both engines, and compare the state that they leave."""
    inputs = [np.arange(6, dtype=np.float32) + 100 * n for n in range(count)]
    wanted = expected_totals(stages, list(inputs))
    for engine in (
        ExactEngine(program),
        ExactEngine(program, poison=True),
        FunctionalEngine(program),
    ):
        feed = Feed(inputs)
        for found, total in zip(totals(engine, program, feed), wanted, strict=True):
            np.testing.assert_array_equal(found, total.astype(np.float32))
        assert feed.taken == count


def pipeline_of(program: Program) -> Pipeline:
    step = program.body.steps[-1]
    assert isinstance(step, Pipeline)
    return step


@each("spare", [0, 1])
@each(("stages", "interval", "count"), CASES)
def test_totals_are_those_of_one_micro_batch_after_the_other(
    stages: int, interval: int, count: int, spare: int
) -> None:
    program = PipelineMaker(stages, interval, count, spare=spare).program()
    assert faults_of(program, 4) == []
    assert_totals(program, stages, count)


@pytest.mark.parametrize("late_bytes", [0, 10**6])
@each(("stages", "interval", "count"), [x for x in CASES if x[0] > 1 and x[2] > 1][::3])
def test_large_values_are_taken_right_before_they_are_read(
    stages: int, interval: int, count: int, late_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Totals stay the same; until then the values take memory in their places alone."""
    monkeypatch.setattr(channels, "_LATE_BYTES", late_bytes)
    program = PipelineMaker(stages, interval, count, works_first=True).program()
    assert faults_of(program, 4) == []
    assert_totals(program, stages, count)
    step, live = pipeline_of(program), liveness_of(program)
    late = 0
    for position, stage in enumerate(step.stages):
        begin = next(x for x in stage.body.steps if isinstance(x, ComputeSet))
        ((point, _),) = points_of(live.region, {id(begin): begin})[id(begin)]
        for channel in (c for c in step.channels if len(c.places) > 1 and c.consumer == position):
            is_there = any(a <= point <= b for a, b in live.ranges[channel.destination])
            reads = channel.destination in used(begin, program)
            assert is_there == (reads or late_bytes > 0)
            late += not is_there
    stashes = [c for c in step.channels if len(c.places) > 1 and c.consumer - c.producer > 1]
    assert late > 0 or late_bytes > 0 or not stashes


@pytest.mark.parametrize("interval", [1, 2, 6])
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("shares_totals", [False, True])
@pytest.mark.parametrize("ipus", [(0, 1, 0), (0, 0, 0)])
def test_stages_may_share_an_ipu(
    ipus: tuple[int, ...], shares_totals: bool, interval: int, direct: bool
) -> None:
    """And read there what others have made, until the next micro-batch, and add to one total."""
    program = PipelineMaker(3, interval, 5, ipus=ipus, shares_totals=shares_totals).program()
    if direct:
        copied, program = program, read_where_made(program)
        assert len(pipeline_of(program).channels) < len(pipeline_of(copied).channels)
    assert faults_of(program, 4) == []
    inputs = [np.full(SHAPE, float(n), np.float32) for n in range(5)]
    wanted = expected_totals(3, list(inputs))
    if shares_totals:
        last = sorted({ipu: stage for stage, ipu in enumerate(ipus)}.values())
        on = [[wanted[n] for n in range(3) if ipus[n] == ipus[stage]] for stage in last]
        wanted = [np.sum(each, axis=0) for each in on]
    for engine in (ExactEngine(program, poison=True), FunctionalEngine(program)):
        for found, total in zip(totals(engine, program, Feed(inputs)), wanted, strict=True):
            np.testing.assert_array_equal(found, total.astype(np.float32))


@pytest.mark.parametrize(("stages", "interval"), [(2, 1), (3, 1), (4, 2)])
def test_a_place_too_few_is_found_and_would_lose_values(stages: int, interval: int) -> None:
    program = PipelineMaker(stages, interval, 6).program()
    step = pipeline_of(program)
    longest = max(range(len(step.channels)), key=lambda n: len(step.channels[n].places))
    channel = step.channels[longest]
    assert len(channel.places) > 1
    channels = list(step.channels)
    channels[longest] = channel._replace(places=channel.places[:-1])
    wrong = replace(
        program, body=Sequence((*program.body.steps[:-1], replace(step, channels=tuple(channels))))
    )
    assert any(fault.rule == "pipeline" for fault in faults_of(wrong, 4))
    inputs = [np.full(SHAPE, 3.0**n, np.float32) for n in range(6)]
    right = totals(ExactEngine(program), program, Feed(inputs))
    lost = totals(ExactEngine(wrong), wrong, Feed(inputs))
    assert any(not np.array_equal(a, b) for a, b in zip(right, lost, strict=True))


@pytest.mark.parametrize(
    ("stages", "interval", "count", "group"),
    [(2, 1, 5, 1), (3, 2, 4, 1), (1, 1, 3, 1), (2, 4, 5, 2)],
)
def test_positions_of_a_slot_take_turns_later_ones_first(
    stages: int, interval: int, count: int, group: int
) -> None:
    """And copies of a slot come after all of its positions."""
    program = PipelineMaker(stages, interval, count, group=group).program()
    step, done = pipeline_of(program), list[tuple[str, object]]()

    def noted(kind: str, what: object) -> Callable[[], object]:
        return lambda: done.append((kind, what))

    def prepared(copy: Step) -> list[Callable[[], object]]:
        return [noted("copy", copy)] if isinstance(copy, Exchange) and copy.transfers else []

    positions = range(len(step.stages))
    firsts = [[noted("first", n)] for n in positions]
    fresh = [list[Callable[[], object]]() for _ in positions]
    bodies = [[[noted("body", n)]] for n in positions]
    pipelined(program, step, firsts, fresh, bodies, prepared)()

    table, wanted = step.timetable, list[tuple[str, object]]()
    turns = [(table.slot(n, m), -n, m) for n in positions for m in range(count)]
    for slot, same in groupby(sorted(turns), key=lambda turn: turn[0]):
        active = [(-n, m) for _, n, m in same]
        assert [n for n, _ in active] == sorted((n for n, _ in active), reverse=True), slot
        for n, m in active:
            wanted += [("first", n)] if m % group == 0 else []
            for channel in step.channels:
                if channel.consumer == n and channel.places != (channel.destination,):
                    copy = popped(program, (channel,), m % len(channel.places))
                    wanted.append(("copy", copy))
            wanted.append(("body", n))
        for n, m in reversed(active):
            for channel in step.channels:
                if channel.producer == n:
                    copy = pushed(program, (channel,), m % len(channel.places))
                    wanted.append(("copy", copy))
    assert done == wanted
