"""Pipeline rules: slots do what the logical form says.

In a slot, positions of other micro-batches run beside each other, so that the order of the logical
form does not protect them: nothing may be written that another position uses, and what is handed on
must wait in as many places as there are micro-batches under way.
"""

from collections.abc import Iterator

from hloipu_runtime.codelets.core.expression_form import is_added_to
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.channels import is_read_in_place
from hloipu_runtime.program.collective import RemoteCopy
from hloipu_runtime.program.faults import Fault
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.proof.blocks import named_ipus
from hloipu_runtime.program.proof.exchanges import is_plain_copy
from hloipu_runtime.program.uses import read_first, steps_within, touched_by, used, written


def pipeline_faults(program: Program, step: s.Pipeline, place: str) -> list[Fault]:
    """Return the rules that a pipeline breaks, its bodies' own faults aside."""
    if step.count < 0 or step.interval < 1 or not step.stages:
        return [Fault("pipeline", place, "has no stages, or counts below what can be")]
    if step.group != 1 and (step.group < 1 or step.interval != len(step.stages)):
        message = f"has groups of {step.group}, and {step.interval} slots between micro-batches"
        return [Fault("pipeline", place, message)]
    faults = [Fault("pipeline", place, message) for message in _places_faults(program, step)]
    faults += [Fault("race", place, message) for message in _race_faults(program, step)]
    faults += [Fault("pipeline", place, message) for message in _channel_faults(program, step)]
    faults += [Fault("pipeline", place, message) for message in _first_faults(program, step)]
    faults += [Fault("pipeline", place, message) for message in _page_faults(program, step)]
    return faults


def _places_faults(program: Program, step: s.Pipeline) -> Iterator[str]:
    """Yield what lies on another IPU than the stage that uses it, and streams used twice."""
    streams: dict[str, int] = {}
    for position, stage in enumerate(step.stages):
        for variable in sorted(_used(stage, program)):
            if program.variables[variable].ipu not in stage.ipus:
                name, places = _name(program, variable), named_ipus(stage.ipus)
                yield f"{stage.name} uses {name}, which is not on {places}"
        yield from _meeting_faults(program, stage)
        for name in sorted(_streams(stage.body, program)):
            first = step.stages[streams.setdefault(name, position)].name
            if streams[name] != position:
                yield f"stream {name!r} is used by {first} and {stage.name}"


def _meeting_faults(program: Program, stage: s.Stage) -> Iterator[str]:
    """Yield meetings of more IPUs than a stage has."""
    for block in stage.blocks:
        for step in steps_within(block, program):
            if isinstance(step, s.Sync) and step.ipus > len(stage.ipus):
                yield f"{stage.name} has {step.ipus} IPUs meet, and is on {named_ipus(stage.ipus)}"


def _race_faults(program: Program, step: s.Pipeline) -> Iterator[str]:
    users: dict[s.VariableId, set[int]] = {}
    writers: dict[s.VariableId, set[int]] = {}
    for position, stage in enumerate(step.stages):
        for variable in _used(stage, program):
            users.setdefault(variable, set()).add(position)
        for variable in _written(stage, program):
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
    sources = {c.source for c in step.channels}
    handed = {v for c in step.channels for v in (*c.places, c.destination)}
    added_up = {item.variable for item in step.carried} - handed - sources
    handed.update(item.variable for item in step.carried)
    read_first = [_read_first(stage, program) for stage in step.stages]
    for variable in sorted(writers):
        positions = sorted(writers[variable] | users.get(variable, set()))
        is_shared = len(positions) > 1
        # Positions of one IPU take turns: what each of them makes for itself harms no other.
        is_apart = variable not in sources and all(variable not in read_first[p] for p in positions)
        if is_shared and variable in added_up:
            takes_turns = all(_only_adds(step.stages[p], variable, program) for p in positions)
        else:
            takes_turns = variable not in handed and (
                is_apart or _is_in_time(step, writers[variable], positions)
            )
        if is_shared and not takes_turns:
            names = " and ".join(step.stages[position].name for position in positions[:2])
            yield f"{_name(program, variable)} is written in {names}, or in one and read in another"


def _only_adds(stage: s.Stage, variable: s.VariableId, program: Program) -> bool:
    """Whether all that a stage does with a variable is to add to it.

    Positions of one IPU take turns, and sums come to the same in any order, but for rounding.
    """
    if any(variable in page for page in stage.paged) or variable in used(stage.first, program):
        return False
    touching = [x for x in steps_within(stage.body, program) if variable in touched_by(x)]
    return all(
        isinstance(x, s.ComputeSet)
        and all(_adds(group, variable) for group in x.groups if variable in _touched(group))
        for x in touching
    )


def _touched(group: s.VertexGroup) -> set[s.VariableId]:
    return {operand.variable for operand in (*group.inputs, *group.outputs)}


def _adds(group: s.VertexGroup, variable: s.VariableId) -> bool:
    codelet = group.codelet
    places = [n for n, operand in enumerate(group.inputs) if operand.variable == variable]
    return (
        isinstance(codelet, Elementwise)
        and len(places) == 1
        and group.outputs == (group.inputs[places[0]],)
        and codelet.labels[places[0]] == tuple(range(codelet.rank))
        and is_added_to(codelet.expression, places[0])
    )


def _is_in_time(step: s.Pipeline, writers: set[int], positions: list[int]) -> bool:
    """Whether positions read what the first of them makes before it does the next micro-batch.

    A variable is on one IPU, where those of a slot take turns, later ones first.
    """
    return (
        writers == {positions[0]}
        and step.timetable.micro_batches_waiting(positions[0], positions[-1]) == 1
    )


def _channel_faults(program: Program, step: s.Pipeline) -> Iterator[str]:
    table = step.timetable
    filled: set[s.VariableId] = set()
    writers = _writers_in_groups(program, step)
    for number, channel in enumerate(step.channels):
        where = f"channel {number}"
        if not 0 <= channel.producer < channel.consumer < len(step.stages):
            yield f"{where} leads from position {channel.producer} to {channel.consumer}"
            continue
        if channel.producer not in writers.get(channel.source, (channel.producer,)):
            source = _name(program, channel.source)
            yield f"{where} takes {source} where a group has left its last micro-batch's only"
        needed = table.micro_batches_waiting(channel.producer, channel.consumer)
        if len(channel.places) < needed:
            yield f"{where} has {len(channel.places)} places for {needed} micro-batches under way"
        targets = dict.fromkeys((*channel.places, channel.destination))
        expected = len(channel.places) + (0 if is_read_in_place(channel) else 1)
        if len({program.variables[v].role is Role.REMOTE for v in channel.places}) > 1:
            yield f"{where} has places on tiles and in remote memory"
        if len(targets) != expected or not channel.places or filled & targets.keys():
            yield f"{where} fills a variable twice"
        filled |= targets.keys()
        yield from _target_faults(program, step, channel, list(targets), where)


def _writers_in_groups(program: Program, step: s.Pipeline) -> dict[s.VariableId, set[int]]:
    """Return the positions that write each variable, bodies and channels; without groups none.

    The micro-batches of a group overwrite each other's, so that no later position finds them all.
    """
    writers: dict[s.VariableId, set[int]] = {}
    if step.group < 2:
        return writers
    for position, stage in enumerate(step.stages):
        for variable in written(stage.body, program):
            writers.setdefault(variable, set()).add(position)
    for channel in step.channels:
        for variable in (*channel.places, channel.destination):
            writers.setdefault(variable, set()).add(channel.consumer)
    return writers


def _first_faults(program: Program, step: s.Pipeline) -> Iterator[str]:
    """Yield what stages do before groups that is more than copies of what does not change."""
    handed = {v for c in step.channels for v in (*c.places, c.destination)}
    handed.update(item.variable for item in step.carried)
    handed.update(v for stage in step.stages for page in stage.paged for v in page)
    for stage in step.stages:
        if not stage.first.steps:
            continue
        if step.group < 2:
            yield f"{stage.name} has copies before groups, and there are no groups"
        if not all(_only_copies(program, inner) for inner in stage.first.steps):
            yield f"{stage.name} does more before groups than to copy"
        changing = handed | written(stage.body, program)
        for variable in sorted(used(stage.first, program) & changing):
            yield f"{stage.name} copies {_name(program, variable)} before groups, and it changes"


def _page_faults(program: Program, step: s.Pipeline) -> Iterator[str]:
    """Yield what does not come from remote memory before groups and go back there after them."""
    carried = {item.variable for item in step.carried}
    in_steps = {v for stage in step.stages for block in stage.blocks for v in used(block, program)}
    handed = {v for c in step.channels for v in (c.source, *c.places, c.destination)}
    pages = [(stage, page) for stage in step.stages for page in stage.paged]
    filled = [v for _, page in pages for v in page]
    for stage, page in pages:
        remote, on_tiles = (program.variables[v] for v in page)
        if step.group < 2:
            yield f"{stage.name} brings {remote.name} for groups, and there are no groups"
        if page.there not in carried or page.there in in_steps or page.there in handed:
            yield f"{remote.name} is not carried, or more than brought to tiles and back"
        if page.here in carried or page.here in handed:
            yield f"{on_tiles.name} is handed on, and {remote.name} is brought there"
        if filled.count(page.there) + filled.count(page.here) > 2:
            yield f"{remote.name} or {on_tiles.name} is brought twice"
        kinds = [
            (variable.element_type, variable.shape, variable.ipu) for variable in (remote, on_tiles)
        ]
        if remote.role is not Role.REMOTE or on_tiles.role is Role.REMOTE or kinds[0] != kinds[1]:
            yield f"{on_tiles.name} is not a place on tiles for what lies remote in {remote.name}"


def _only_copies(program: Program, step: s.Step) -> bool:
    match step:
        case s.Exchange():
            shapes = (program.values[definition.value].shape for definition in step.definitions)
            return all(map(is_plain_copy, step.definitions, shapes))
        case RemoteCopy() | s.Sync():
            return True
        case s.Parallel():
            return all(
                _only_copies(program, inner) for branch in step.branches for inner in branch.steps
            )
        case _:
            return False


def _used(stage: s.Stage, program: Program) -> frozenset[s.VariableId]:
    inside = (used(block, program) for block in stage.blocks)
    return frozenset(v for page in stage.paged for v in page).union(*inside)


def _written(stage: s.Stage, program: Program) -> frozenset[s.VariableId]:
    inside = (written(block, program) for block in stage.blocks)
    return frozenset(v for page in stage.paged for v in page).union(*inside)


def _read_first(stage: s.Stage, program: Program) -> frozenset[s.VariableId]:
    all_blocks = s.Sequence(stage.blocks)
    return read_first(all_blocks, program).union(*((page.there, page.here) for page in stage.paged))


def _target_faults(
    program: Program, step: s.Pipeline, channel: s.Channel, targets: list[s.VariableId], where: str
) -> Iterator[str]:
    variables = program.variables
    source = variables[channel.source]
    if source.ipu not in step.stages[channel.producer].ipus:
        yield f"{where} takes {source.name}, which is not on its producer's IPU"
    for number in targets:
        record = variables[number]
        if record.ipu not in step.stages[channel.consumer].ipus:
            yield f"{where} fills {record.name}, which is not on its consumer's IPU"
        mapping = source.mapping if record.role is Role.REMOTE else record.mapping
        kind = (record.element_type, record.shape, mapping)
        if kind != (source.element_type, source.shape, source.mapping):
            yield f"{where} fills {record.name}, which is not laid out as {source.name}"


def _streams(body: s.Sequence, program: Program) -> set[str]:
    return {
        step.stream
        for step in steps_within(body, program)
        if isinstance(step, s.StreamIn | s.StreamOut)
    }


def _name(program: Program, variable: s.VariableId) -> str:
    return program.variables[variable].name
