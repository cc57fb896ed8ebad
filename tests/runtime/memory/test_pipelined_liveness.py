"""Points at which what positions of a pipeline hand on takes memory, slot by slot."""

from dataclasses import replace

import pytest

from hloipu_runtime.memory.liveness import Liveness, Ranges, liveness_of
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import Channel, Pipeline, Sequence, StreamIn
from tests.support.pipelined_programs import ROWS, SHAPE, PipelineMaker


def with_a_step_before(program: Program) -> tuple[Program, Pipeline]:
    """Return a program with a step in front of its pipeline, which takes point 0."""
    pipe = next(step for step in program.body.steps if isinstance(step, Pipeline))
    other = replace(program.variables[0], role=Role.TEMPORARY, name="other")
    assert (other.shape, other.mapping) == (SHAPE, ROWS)
    before = StreamIn("before", len(program.variables), 0)
    return replace(
        program, variables=(*program.variables, other), body=Sequence((before, pipe))
    ), pipe


@pytest.mark.parametrize(("stages", "interval"), [(1, 1), (2, 1), (3, 2)])
def test_what_is_handed_on_lives_throughout_and_not_before(stages: int, interval: int) -> None:
    program, pipe = with_a_step_before(PipelineMaker(stages, interval, 4).program())
    found = liveness_of(program)
    for channel in pipe.channels:
        for variable in (channel.source, channel.destination, *channel.places):
            assert found.ranges[variable] == ((1, found.points - 1),)


def points(ranges: Ranges) -> int:
    return sum(last - first + 1 for first, last in ranges)


def lives_throughout(found: Liveness, channel: Channel) -> bool:
    return found.ranges[channel.source] == ((1, found.points - 1),)


@pytest.mark.parametrize("interval", [1, 2, 3, 4])
@pytest.mark.parametrize("ipus", [(0, 1), (0, 0), (0, 1, 0)])
def test_what_waits_in_remote_memory_gives_its_tiles_free(
    ipus: tuple[int, ...], interval: int
) -> None:
    """Unless a position before its own works in the same slot on its IPU, and would take them."""
    maker = PipelineMaker(len(ipus), interval, 9, ipus=ipus, offloaded=frozenset(("activations",)))
    program, pipe = with_a_step_before(maker.program())
    found, table = liveness_of(program), pipe.timetable
    assert not any(found.ranges[place] for channel in pipe.channels for place in channel.places)
    here = [
        channel
        for channel in pipe.channels
        if pipe.stages[channel.producer].ipus == pipe.stages[channel.consumer].ipus
    ]
    crossing = {
        variable
        for channel in pipe.channels
        if channel not in here
        for variable in (channel.source, channel.destination)
    }
    assert here
    for channel in here:
        ipu, producer = pipe.stages[channel.producer].ipus, channel.producer
        in_its_slots = {
            position
            for slot in range(table.slots)
            if producer in table.active(slot)
            for position in table.active(slot)
        }
        kept = any(pipe.stages[n].ipus == ipu for n in in_its_slots if n < producer)
        others = [c for c in here if c.source == channel.source]
        assert len({c.producer for c in others}) == 1
        if channel.source not in crossing:
            assert lives_throughout(found, channel) == kept
        if channel.destination not in crossing:
            assert points(found.ranges[channel.destination]) < found.points - 1
