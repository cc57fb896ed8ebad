"""Stateless rules of collectives and remote buffers."""

from collections.abc import Iterator

from hloipu_runtime.program.channels import is_offloaded
from hloipu_runtime.program.collective import Collective, Moved, RemoteCopy, form_faults
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import Pipeline, Repeat, RepeatWhile, Step
from hloipu_runtime.program.uses import steps_within, touched_by


def collective_faults(program: Program, step: Collective) -> Iterator[str]:
    """Yield the rules that a collective breaks."""
    yield from form_faults(
        step.form,
        [_kind(program, moved) for moved in step.inputs],
        [_kind(program, moved) for moved in step.outputs],
        program.participants,
    )
    if len({moved.variable for moved in step.outputs}) != len(step.outputs):
        yield "leaves two results in one variable"
    ipus = {program.variables[moved.variable].ipu for moved in step.outputs}
    if len(step.inputs) != len(step.outputs):
        ipus |= {program.variables[moved.variable].ipu for moved in step.inputs}
        if len(ipus) > 1:
            yield "its tensors lie on several IPUs"
    else:
        for before, after in zip(step.inputs, step.outputs, strict=True):
            if program.variables[before.variable].ipu != program.variables[after.variable].ipu:
                yield "a result lies on another IPU than its operand"


def remote_faults(program: Program) -> Iterator[tuple[str, str]]:
    """Yield places and faults of what lies in remote memory, or is copied from or to there."""
    remote = {n for n, record in enumerate(program.variables) if record.role is Role.REMOTE}
    checked_ids: set[int] = set()
    for body in (program.body, *program.functions.values()):
        for step in steps_within(body, program):
            if id(step) in checked_ids:
                continue
            checked_ids.add(id(step))
            if isinstance(step, RemoteCopy):
                yield from _copy_faults(program, step)
            elif remote:
                for variable in sorted(remote & _used_in_place(program, step)):
                    yield program.variables[variable].name, "is remote, and a step uses it in place"


def _copy_faults(program: Program, step: RemoteCopy) -> Iterator[tuple[str, str]]:
    source, destination = program.variables[step.source], program.variables[step.destination]
    place = f"{source.name} to {destination.name}"
    if (source.role is Role.REMOTE) == (destination.role is Role.REMOTE):
        yield place, "not one of the two lies in remote memory"
    if source.ipu != destination.ipu:
        yield place, "lie at different IPUs"


def _used_in_place(program: Program, step: Step) -> frozenset[int]:
    """Return the variables that a step itself reads or writes, without those of its blocks."""
    match step:
        case Repeat() | RepeatWhile():
            return frozenset()
        case Pipeline():
            places = (c.places for c in step.channels if not is_offloaded(program, c))
            ends = (v for c in step.channels for v in (c.source, c.destination))
            return frozenset((*ends, *(v for channel_places in places for v in channel_places)))
        case _:
            return touched_by(step)


def _kind(program: Program, moved: Moved) -> tuple[str, tuple[int, ...]]:
    variable = program.variables[moved.variable]
    return variable.element_type, variable.shape
