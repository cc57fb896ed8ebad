"""Every rule of pipelines, by a program that breaks it and nothing else."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hloipu_runtime.codelets.core.expression_form import Node
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.program.collective import RemoteCopy
from hloipu_runtime.program.program import Program, Role, Variable
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import (
    Channel,
    ComputeSet,
    Paged,
    Pipeline,
    Sequence,
    Stage,
    Step,
    StreamIn,
    VariableId,
)
from tests.support.pipelined_programs import PipelineMaker, read_where_made

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


def source_on_another_ipu(program: Program, step: Pipeline) -> Program:
    source = step.channels[0].source
    return with_variable(program, source, replace(program.variables[source], ipu=1))


def value_that_nobody_made(program: Program, step: Pipeline) -> Program:
    """Have a channel bring a value of its own, which no position makes."""
    wider = replace(program, values=(*program.values, program.values[step.channels[0].value]))
    channel = step.channels[0]._replace(value=len(program.values))
    return with_channel(wider, step, 0, channel)


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
    first = stages[0].body.steps[1]
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
    (sync, stream, compute) = stages[0].body.steps
    assert isinstance(compute, ComputeSet)
    group = compute.groups[0]
    inputs = (group.inputs[0], group.inputs[1]._replace(variable=total.variable))
    changed = replace(group, inputs=inputs, reads=(group.reads[0], total.turn))
    stages[0] = stages[0]._replace(body=Sequence((sync, stream, ComputeSet((changed,)))))
    return with_pipeline(program, replace(step, stages=tuple(stages)))


def read_where_made_too_late(program: Program, step: Pipeline) -> Program:
    """Have a backward stage read what its forward one has made, and made anew since."""
    return read_where_made(program, slots=3)


def with_stage(program: Program, step: Pipeline, number: int, stage: Stage) -> Program:
    stages = list(step.stages)
    stages[number] = stage
    return with_pipeline(program, replace(step, stages=tuple(stages)))


def places_of_both_kinds(program: Program, step: Pipeline) -> Program:
    place = step.channels[a_stash(step)].places[-1]
    record = program.variables[step.channels[a_stash(step)].destination]
    return with_variable(program, place, replace(record, role=Role.TEMPORARY))


def remote_place_used_by_a_body(program: Program, step: Pipeline) -> Program:
    """Have the consumer of a stash write where micro-batches wait."""
    channel = step.channels[a_stash(step)]
    stage = step.stages[channel.consumer]
    copy = RemoteCopy(channel.destination, channel.places[0], channel.value)
    body = Sequence((copy, *stage.body.steps))
    return with_stage(program, step, channel.consumer, stage._replace(body=body))


def remote_place_at_another_ipu(program: Program, step: Pipeline) -> Program:
    place = step.channels[a_stash(step)].places[0]
    other = 1 - program.variables[place].ipu
    return with_variable(program, place, replace(program.variables[place], ipu=other))


def remote_source(program: Program, step: Pipeline) -> Program:
    source = step.channels[0].source
    return with_variable(program, source, replace(program.variables[source], role=Role.REMOTE))


def groups_side_by_side(program: Program, step: Pipeline) -> Program:
    return with_pipeline(program, replace(step, interval=1))


def larger_groups(program: Program, step: Pipeline) -> Program:
    return with_pipeline(program, replace(step, group=step.group + 1))


def groups_of_none(program: Program, step: Pipeline) -> Program:
    return with_pipeline(program, replace(step, group=0))


def copies_before_no_groups(program: Program, step: Pipeline) -> Program:
    return with_pipeline(program, replace(step, group=1))


def computing_before_groups(program: Program, step: Pipeline) -> Program:
    stage = step.stages[1]
    moved = stage._replace(first=Sequence((*stage.first.steps, *stage.body.steps)), body=Sequence())
    return with_stage(program, step, 1, moved)


def what_changes_before_groups(program: Program, step: Pipeline) -> Program:
    """Have a backward stage fetch its total once for each group."""
    stage = step.stages[3]
    fetch = next(x for x in stage.body.steps if isinstance(x, RemoteCopy))
    rest = tuple(x for x in stage.body.steps if x is not fetch)
    moved = stage._replace(first=Sequence((fetch,)), body=Sequence(rest))
    return with_stage(program, step, 3, moved)


def taken_after_its_group(program: Program, step: Pipeline) -> Program:
    """Take what a stage hands on where the next stage has ended, all of its group before."""
    number = next(n for n, c in enumerate(step.channels) if c.consumer > c.producer + 1)
    channels = list(step.channels)
    channels[number] = channels[number]._replace(producer=channels[number].producer + 1)
    return with_pipeline(program, replace(step, channels=tuple(channels)))


EVERYTHING = frozenset(("activations", "weights", "totals"))


@pytest.mark.parametrize(
    ("change", "group", "said"),
    [
        (places_of_both_kinds, 1, "has places on tiles and in remote memory"),
        (remote_place_used_by_a_body, 1, "holds what is under way, and a body uses it"),
        (remote_place_at_another_ipu, 1, "not on its consumer's IPU"),
        (remote_source, 1, "is remote, and a step uses it in place"),
        (too_few_places, 1, "places for"),
        (one_place_twice, 1, "fills a variable twice"),
        (too_few_places, 3, "places for"),
        (larger_groups, 3, "places for"),
        (groups_side_by_side, 3, "has groups of 3, and 1 slots between micro-batches"),
        (groups_of_none, 3, "has groups of 0"),
        (taken_after_its_group, 3, "where a group has left its last micro-batch's only"),
        (copies_before_no_groups, 3, "has copies before groups, and there are no groups"),
        (computing_before_groups, 3, "does more before groups than to copy"),
        (what_changes_before_groups, 3, "before groups, and it changes"),
    ],
)
def test_what_breaks_a_rule_of_remote_memory_or_groups_is_told(
    change: Change, group: int, said: str
) -> None:
    interval = 4 if group > 1 else 1
    program = PipelineMaker(2, interval, 7, group=group, offloaded=EVERYTHING).program()
    assert told(program) == []
    step = program.body.steps[-1]
    assert isinstance(step, Pipeline)
    found = told(change(program, step))
    assert any(said in line for line in found), found


def with_page(program: Program, step: Pipeline, number: int, *pages: Paged) -> Program:
    return with_stage(program, step, number, step.stages[number]._replace(paged=pages))


def page_without_groups(program: Program, step: Pipeline) -> Program:
    return with_pipeline(program, replace(step, group=1))


def page_twice(program: Program, step: Pipeline) -> Program:
    (page,) = step.stages[3].paged
    return with_page(program, step, 3, page, page)


def page_of_two_stages(program: Program, step: Pipeline) -> Program:
    return with_page(program, step, 0, *step.stages[3].paged)


def page_on_tiles(program: Program, step: Pipeline) -> Program:
    (page,) = step.stages[3].paged
    return with_page(program, step, 3, Paged(page.here, page.there))


def page_carried_by_nobody(program: Program, step: Pipeline) -> Program:
    (page,) = step.stages[3].paged
    carried = tuple(item for item in step.carried if item.variable != page.there)
    return with_pipeline(program, replace(step, carried=carried))


def page_of_another_type(program: Program, step: Pipeline) -> Program:
    (page,) = step.stages[3].paged
    here = replace(program.variables[page.here], element_type="s32")
    return with_variable(program, page.here, here)


def page_used_by_a_step(program: Program, step: Pipeline) -> Program:
    """Have a position copy its page itself, too."""
    (page,) = step.stages[3].paged
    stage = step.stages[3]
    copy = RemoteCopy(page.here, page.there, 0)
    return with_stage(program, step, 3, stage._replace(body=Sequence((*stage.body.steps, copy))))


def page_left_out(program: Program, step: Pipeline) -> Program:
    return with_page(program, step, 3)


def page_where_something_is_handed_on(program: Program, step: Pipeline) -> Program:
    (page,) = step.stages[3].paged
    there = next(c.destination for c in step.channels if c.consumer == 3)
    return with_page(program, step, 3, page._replace(here=there))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (page_without_groups, "brings v14 for groups, and there are no groups"),
        (page_twice, "is brought twice"),
        (page_of_two_stages, "race: v26 is written in p0 and p3"),
        (page_on_tiles, "is not carried, or more than brought to tiles and back"),
        (page_carried_by_nobody, "is not carried, or more than brought to tiles and back"),
        (page_of_another_type, "is not a place on tiles for what lies remote in"),
        (page_used_by_a_step, "is not carried, or more than brought to tiles and back"),
        (page_left_out, "which holds nothing"),
        (page_where_something_is_handed_on, "is handed on, and v26 is brought there"),
    ],
)
def test_what_breaks_a_rule_of_pages_is_told(change: Change, said: str) -> None:
    program = PipelineMaker(2, 4, 7, group=3, offloaded=frozenset(("pages",))).program()
    assert told(program) == []
    step = program.body.steps[-1]
    assert isinstance(step, Pipeline)
    found = told(change(program, step))
    assert any(said in line for line in found), found


@pytest.mark.parametrize(
    ("change", "interval", "said"),
    [
        (backwards, 1, "pipeline: channel 0 leads from position 1 to 0"),
        (too_few_places, 1, "places for"),
        (one_place_twice, 1, "fills a variable twice"),
        (started_more_often, 2, "places for"),
        (never_started, 1, "counts below what can be"),
        (place_on_another_ipu, 1, "not on its consumer's IPU"),
        (source_on_another_ipu, 1, "takes v2, which is not on its producer's IPU"),
        (value_that_nobody_made, 1, "is not there yet"),
        (place_laid_out_otherwise, 1, "not laid out as"),
        (stage_on_another_ipu, 1, "which is not on IPU 1"),
        (stream_of_two_stages, 1, "is used by p0 and p3"),
        (accumulator_read_elsewhere, 1, "race: v16 is written in p0 and p3"),
        (
            read_where_made_too_late,
            1,
            "race: v2 is written in p0 and p3, or in one and read in another",
        ),
    ],
)
def test_what_breaks_a_rule_is_told(change: Change, interval: int, said: str) -> None:
    program = PipelineMaker(2, interval, 4).program()
    assert told(program) == []
    step = program.body.steps[-1]
    assert isinstance(step, Pipeline)
    found = told(change(program, step))
    assert any(said in line for line in found), found


@pytest.mark.parametrize(
    ("op", "arguments", "said"),
    [
        ("add", (0, 1), []),
        ("multiply", (0, 1), ["race: v11 is written in p3 and p5, or in one and read in another"]),
        ("add", (0, 0), ["race: v11 is written in p3 and p5, or in one and read in another"]),
    ],
)
def test_positions_of_one_ipu_may_only_add_to_what_they_share(
    op: str, arguments: tuple[int, int], said: list[str]
) -> None:
    program = PipelineMaker(3, 1, 4, ipus=(0, 1, 0), shares_totals=True).program()
    step = program.body.steps[-1]
    assert isinstance(step, Pipeline)
    assert len(step.carried) == 2
    *others, last = step.stages[-1].body.steps
    assert isinstance(last, ComputeSet)
    (group,) = last.groups
    assert isinstance(group.codelet, Elementwise)
    node = Node(op, arguments, "f32")
    expression = group.codelet.expression._replace(nodes=(node,))
    other = replace(group, codelet=replace(group.codelet, expression=expression))
    stage = step.stages[-1]._replace(body=Sequence((*others, ComputeSet((other,)))))
    assert told(with_stage(program, step, len(step.stages) - 1, stage)) == said
