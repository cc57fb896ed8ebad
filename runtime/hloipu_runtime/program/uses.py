"""Which variables a step reads and writes, inner steps included."""

from collections.abc import Iterator

from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import (
    Call,
    ComputeSet,
    Exchange,
    If,
    Pipeline,
    Repeat,
    RepeatWhile,
    Step,
    StreamIn,
    StreamOut,
    Switch,
    VariableId,
    inner_steps,
)


def written(step: Step, program: Program) -> frozenset[VariableId]:
    """Return the variables that a step may write."""
    return frozenset(v for each in _within(step, program, set()) for v in _writes(each))


def used(step: Step, program: Program) -> frozenset[VariableId]:
    """Return the variables that a step reads or writes."""
    return frozenset(
        v for each in _within(step, program, set()) for v in (*_writes(each), *_reads(each))
    )


def touched_by(step: Step) -> frozenset[VariableId]:
    """Return the variables that a step itself reads or writes, what is inside it left out."""
    return frozenset((*_writes(step), *_reads(step)))


def steps_within(step: Step, program: Program) -> Iterator[Step]:
    """Yield a step and all inside of it, those of the functions that it calls included."""
    return _within(step, program, set())


def _within(step: Step, program: Program, called: set[str]) -> Iterator[Step]:
    """Yield a step and all inside of it; functions in `called` were looked into already."""
    yield step
    inner = inner_steps(step)
    if isinstance(step, Call) and step.function in program.functions.keys() - called:
        called.add(step.function)
        inner = (program.functions[step.function],)
    for each in inner:
        yield from _within(each, program, called)


def _writes(step: Step) -> Iterator[VariableId]:
    """Yield what a step writes itself."""
    match step:
        case ComputeSet():
            for group in step.groups:
                yield from (operand.variable for operand in group.outputs)
        case Exchange():
            yield from (transfer.destination for transfer in step.transfers)
            yield from (definition.variable for definition in step.definitions)
        case StreamIn():
            yield step.variable
        case Collective():
            yield from (moved.variable for moved in step.outputs)
        case RemoteCopy():
            yield step.destination
        case Pipeline():
            for channel in step.channels:
                yield from channel.places
                yield channel.destination
        case _:
            pass


def _reads(step: Step) -> Iterator[VariableId]:
    """Yield what a step reads itself."""
    match step:
        case ComputeSet():
            for group in step.groups:
                yield from (operand.variable for operand in group.inputs)
        case Exchange():
            yield from (transfer.source for transfer in step.transfers)
        case StreamOut():
            yield step.variable
        case Collective():
            yield from (moved.variable for moved in step.inputs)
        case RemoteCopy():
            yield step.source
        case If():
            yield step.predicate
            yield from (item.variable for item in step.merged)
        case Switch():
            yield step.index
            yield from (item.variable for item in step.merged)
        case Repeat():
            yield from (item.variable for item in step.carried)
        case Pipeline():
            yield from (item.variable for item in step.carried)
            yield from (channel.source for channel in step.channels)
        case RepeatWhile():
            yield step.predicate
            yield from (item.variable for item in step.carried)
        case _:
            pass
