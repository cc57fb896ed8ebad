"""Every rule of pipelines, by a program that breaks it and nothing else."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hloipu_runtime.program.program import Program, Variable
from hloipu_runtime.program.steps import (
    Channel,
    ComputeSet,
    Pipeline,
    Sequence,
    Step,
    StreamIn,
    VariableId,
)
from hloipu_runtime.program.verify import faults_of
from tests.support.pipelined_programs import PipelineMaker

Change = Callable[[Program, Pipeline], Program]


def told(program: Program) -> list[str]:
    return [f"{fault.rule}: {fault.message}" for fault in faults_of(program, 4)]


def with_pipeline(program: Program, step: Step) -> Program:
    return replace(program, body=Sequence((*program.body.steps[:-1], step)))


def with_variable(program: Program, number: VariableId, variable: Variable) -> Program:
    variables = list(program.variables)
    variables[number] = variable
    return replace(program, variables=tuple(variables))


def with_channel(program: Program, step: Pipeline, number: int, channel: Channel) -> Program:
    channels = list(step.channels)
    channels[number] = channel
    return with_pipeline(program, replace(step, channels=tuple(channels)))


def a_stash(step: Pipeline) -> int:
    """Return the number of a channel with several places."""
    return next(n for n, channel in enumerate(step.channels) if len(channel.places) > 1)


def backwards(program: Program, step: Pipeline) -> Program:
    first = step.channels[0]
    turned = first._replace(producer=first.consumer, consumer=first.producer)
    return with_channel(program, step, 0, turned)


def too_few_places(program: Program, step: Pipeline) -> Program:
    number = a_stash(step)
    channel = step.channels[number]
    return with_channel(program, step, number, channel._replace(places=channel.places[:-1]))


def one_place_twice(program: Program, step: Pipeline) -> Program:
    number = a_stash(step)
    channel = step.channels[number]
    places = (*channel.places[:-1], channel.places[0])
    return with_channel(program, step, number, channel._replace(places=places))


def started_more_often(program: Program, step: Pipeline) -> Program:
    return with_pipeline(program, replace(step, interval=1))


def never_started(program: Program, step: Pipeline) -> Program:
    return with_pipeline(program, replace(step, interval=0))


def place_on_another_ipu(program: Program, step: Pipeline) -> Program:
    place = step.channels[a_stash(step)].places[0]
    return with_variable(program, place, replace(program.variables[place], ipu=1))


def place_laid_out_otherwise(program: Program, step: Pipeline) -> Program:
    place = step.channels[a_stash(step)].places[0]
    record = program.variables[place]
    tiles = replace(record.mapping.tiles, first=record.mapping.tiles.first + 1)
    moved = replace(record, mapping=replace(record.mapping, tiles=tiles))
    return with_variable(program, place, moved)


def stage_on_another_ipu(program: Program, step: Pipeline) -> Program:
    stages = list(step.stages)
    stages[0] = stages[0]._replace(ipus=(1,))
    return with_pipeline(program, replace(step, stages=tuple(stages)))


def stream_of_two_stages(program: Program, step: Pipeline) -> Program:
    stages = list(step.stages)
    variable = len(program.variables)
    value = len(program.values)
    like = program.variables[0]
    first = stages[0].body.steps[0]
    assert isinstance(first, StreamIn)
    taken = StreamIn(first.stream, variable, value)
    body = Sequence((taken, *stages[-1].body.steps))
    stages[-1] = stages[-1]._replace(body=body)
    wider = replace(
        program,
        variables=(*program.variables, replace(like, name="again", ipu=stages[-1].ipus[0])),
        values=(*program.values, program.values[0]),
    )
    return with_pipeline(wider, replace(step, stages=tuple(stages)))


def accumulator_read_elsewhere(program: Program, step: Pipeline) -> Program:
    """Have the forward stage of an IPU read what the backward one adds up."""
    total = next(item for item in step.carried if program.variables[item.variable].ipu == 0)
    stages = list(step.stages)
    (stream, compute) = stages[0].body.steps
    assert isinstance(compute, ComputeSet)
    group = compute.groups[0]
    inputs = (group.inputs[0], group.inputs[1]._replace(variable=total.variable))
    changed = replace(group, inputs=inputs, reads=(group.reads[0], total.turn))
    stages[0] = stages[0]._replace(body=Sequence((stream, ComputeSet((changed,)))))
    return with_pipeline(program, replace(step, stages=tuple(stages)))


@pytest.mark.parametrize(
    ("change", "interval", "said"),
    [
        (backwards, 1, "pipeline: channel 0 leads from position 1 to 0"),
        (too_few_places, 1, "places for"),
        (one_place_twice, 1, "fills a variable twice"),
        (started_more_often, 2, "places for"),
        (never_started, 1, "counts below what can be"),
        (place_on_another_ipu, 1, "not on its consumer's IPU"),
        (place_laid_out_otherwise, 1, "not laid out as"),
        (stage_on_another_ipu, 1, "which is not on IPU 1"),
        (stream_of_two_stages, 1, "is used by p0 and p3"),
        (accumulator_read_elsewhere, 1, "race: v16 is written in p0 and p3"),
    ],
)
def test_what_breaks_a_rule_is_told(change: Change, interval: int, said: str) -> None:
    program = PipelineMaker(2, interval, 4).program()
    assert told(program) == []
    step = program.body.steps[-1]
    assert isinstance(step, Pipeline)
    found = told(change(program, step))
    assert any(said in line for line in found), found
