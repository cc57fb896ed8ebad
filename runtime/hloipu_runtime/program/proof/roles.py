"""Role rules: a variable's role follows from how it is loaded, kept and streamed.

Roles decide how long variables live and what is told of them: the memory of what does not stay is
others' after its last use.
"""

from collections.abc import Iterator
from typing import NamedTuple

from hloipu_runtime.program.collective import RemoteCopy
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import Exchange, Pipeline, StreamIn, StreamOut, VariableId
from hloipu_runtime.program.uses import steps_within, touched_by


class _Uses(NamedTuple):
    """Variables by use."""

    loaded: frozenset[VariableId]
    kept: frozenset[VariableId]
    filled: set[VariableId]
    """From the host."""
    drained: set[VariableId]
    remote: set[VariableId]
    """An end of a copy from or to remote memory, or where channels wait."""


def role_faults(program: Program) -> Iterator[tuple[str, str]]:
    """Yield names of variables, and what each is that its role denies."""
    uses = _uses(program)
    for number, variable in enumerate(program.variables):
        for message in _faults(variable.role, number, uses):
            yield variable.name, message
    yield from _buffer_faults(program)


def _uses(program: Program) -> _Uses:
    uses = _Uses(
        frozenset(program.constants), frozenset(port.variable for port in program.state),
        set(), set(), set(),
    )  # fmt: skip
    for body in (program.body, *program.functions.values()):
        for step in steps_within(body, program):
            match step:
                case StreamIn():
                    uses.filled.add(step.variable)
                case StreamOut():
                    uses.drained.add(step.variable)
                case RemoteCopy():
                    uses.remote.update((step.source, step.destination))
                case Pipeline():
                    uses.remote.update(v for channel in step.channels for v in channel.places)
                    uses.remote.update(
                        v for stage in step.stages for page in stage.paged for v in page
                    )
                case _:
                    pass
    return uses


def _faults(role: Role, number: VariableId, uses: _Uses) -> Iterator[str]:
    role_text = f"and is a {role.value}"
    if number in uses.loaded and role not in (Role.CONSTANT, Role.REMOTE):
        yield f"is loaded, {role_text}"
    if number in uses.kept and role not in (Role.STATE, Role.REMOTE):
        yield f"stays from run to run, {role_text}"
    if number in uses.filled and role not in (Role.PARAMETER, Role.BUFFER):
        yield f"is filled from the host, {role_text}"
    match role:
        case Role.CONSTANT if number not in uses.loaded:
            yield f"is not loaded, {role_text}"
        case Role.STATE if number not in uses.kept:
            yield f"does not stay from run to run, {role_text}"
        case Role.PARAMETER if number not in uses.filled:
            yield f"is not filled from the host, {role_text}"
        case Role.BUFFER if number not in uses.filled and number not in uses.drained:
            yield f"is neither filled from the host nor drained, {role_text}"
        case Role.REMOTE if number not in uses.remote:
            yield f"is not copied from or to the memory beside the IPU, {role_text}"
        case _:
            pass


def _buffer_faults(program: Program) -> Iterator[tuple[str, str]]:
    """Yield buffers of no queue, that steps compute on, or whose tiles others have.

    A loop fills and drains a queue's buffers beside computing: one element for each iteration. A
    parameter comes in once, before anything can be computed.
    """
    variables = program.variables
    buffers = [n for n, variable in enumerate(variables) if variable.role is Role.BUFFER]
    if not buffers:
        return
    first: dict[int, int] = {}
    for number in buffers:
        ipu, tiles = variables[number].ipu, variables[number].mapping.tiles
        first[ipu] = min(tiles.first, first.get(ipu, tiles.first))
    for variable in variables:
        if variable.role not in (
            Role.BUFFER,
            Role.REMOTE,
        ) and variable.mapping.tiles.last >= first.get(
            variable.ipu, variable.mapping.tiles.last + 1
        ):
            yield variable.name, "lies on tiles that are set apart for streams, or behind them"
    known = set(buffers)
    queued = {port.stream for queue in program.queues for port in queue.streams}
    for body in (program.body, *program.functions.values()):
        for step in steps_within(body, program):
            if isinstance(step, StreamIn | StreamOut):
                if step.variable in known and step.stream not in queued:
                    yield (
                        variables[step.variable].name,
                        f"is a buffer, and {step.stream} is not a stream of a queue",
                    )
            elif not isinstance(step, Exchange):
                for number in sorted(known & touched_by(step)):
                    yield (
                        variables[number].name,
                        "is a buffer of a stream, and a step computes on it",
                    )
