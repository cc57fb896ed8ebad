"""The rules by which a pipeline's slots do what its logical form says.

In a slot, positions of other micro-batches run beside each other, so that the order of the logical
form does not protect them: nothing may be written that another position uses, and what is handed on
must wait in as many places as there are micro-batches under way.
"""

from collections.abc import Iterator

from hloipu_runtime.program.channels import is_read_in_place
from hloipu_runtime.program.faults import Fault
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import (
    Channel,
    Pipeline,
    Sequence,
    StreamIn,
    StreamOut,
    VariableId,
)
from hloipu_runtime.program.uses import steps_within, used, written


def pipeline_faults(program: Program, step: Pipeline, place: str) -> list[Fault]:
    """Return the rules that a pipeline breaks, its bodies' own faults aside."""
    if step.count < 0 or step.interval < 1 or not step.stages:
        return [Fault("pipeline", place, "has no stages, or counts below what can be")]
    found = [Fault("pipeline", place, message) for message in _places_faults(program, step)]
    found += [Fault("race", place, message) for message in _race_faults(program, step)]
    found += [Fault("pipeline", place, message) for message in _channel_faults(program, step)]
    return found


def _places_faults(program: Program, step: Pipeline) -> Iterator[str]:
    """Yield what lies on another IPU than the stage that uses it, and streams used twice."""
    streams: dict[str, int] = {}
    for position, stage in enumerate(step.stages):
        for variable in sorted(used(stage.body, program)):
            if program.variables[variable].ipu != stage.ipu:
                name = _name(program, variable)
                yield f"{stage.name} uses {name}, which is not on IPU {stage.ipu}"
        for name in sorted(_streams(stage.body, program)):
            first = step.stages[streams.setdefault(name, position)].name
            if streams[name] != position:
                yield f"stream {name!r} is used by {first} and {stage.name}"


def _race_faults(program: Program, step: Pipeline) -> Iterator[str]:
    users: dict[VariableId, set[int]] = {}
    writers: dict[VariableId, set[int]] = {}
    for position, stage in enumerate(step.stages):
        for variable in used(stage.body, program):
            users.setdefault(variable, set()).add(position)
        for variable in written(stage.body, program):
            writers.setdefault(variable, set()).add(position)
    for item in step.carried:
        writers.setdefault(item.variable, set()).update(users.get(item.variable, ()))
    for channel in step.channels:
        for variable in dict.fromkeys((*channel.places, channel.destination)):
            used_by = users.setdefault(variable, set())
            writers.setdefault(variable, set()).add(channel.consumer)
            if variable == channel.destination:
                used_by.add(channel.consumer)
            elif used_by:
                yield f"{_name(program, variable)} holds what is under way, and a body uses it"
    for variable in sorted(writers):
        positions = sorted(writers[variable] | users.get(variable, set()))
        if len(positions) > 1:
            names = " and ".join(step.stages[position].name for position in positions[:2])
            yield f"{_name(program, variable)} is written in {names}, or in one and read in another"


def _channel_faults(program: Program, step: Pipeline) -> Iterator[str]:
    table = step.timetable
    filled: set[VariableId] = set()
    for number, channel in enumerate(step.channels):
        where = f"channel {number}"
        if not 0 <= channel.producer < channel.consumer < len(step.stages):
            yield f"{where} leads from position {channel.producer} to {channel.consumer}"
            continue
        held = table.held(channel.producer, channel.consumer)
        if len(channel.places) < held:
            yield f"{where} has {len(channel.places)} places for {held} micro-batches under way"
        targets = dict.fromkeys((*channel.places, channel.destination))
        expected = len(channel.places) + (0 if is_read_in_place(channel) else 1)
        if len(targets) != expected or not channel.places or filled & targets.keys():
            yield f"{where} fills a variable twice"
        filled |= targets.keys()
        yield from _target_faults(program, step, channel, list(targets), where)


def _target_faults(
    program: Program, step: Pipeline, channel: Channel, targets: list[VariableId], where: str
) -> Iterator[str]:
    variables = program.variables
    source = variables[channel.source]
    if source.ipu != step.stages[channel.producer].ipu:
        yield f"{where} takes {source.name}, which is not on its producer's IPU"
    for number in targets:
        record = variables[number]
        if record.ipu != step.stages[channel.consumer].ipu:
            yield f"{where} fills {record.name}, which is not on its consumer's IPU"
        kind = (record.element_type, record.shape, record.mapping)
        if kind != (source.element_type, source.shape, source.mapping):
            yield f"{where} fills {record.name}, which is not laid out as {source.name}"


def _streams(body: Sequence, program: Program) -> set[str]:
    return {x.stream for x in steps_within(body, program) if isinstance(x, StreamIn | StreamOut)}


def _name(program: Program, variable: VariableId) -> str:
    return program.variables[variable].name
