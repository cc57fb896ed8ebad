"""Which variables a step reads and writes, inner steps included."""

from collections.abc import Iterator

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import (
    Call,
    ComputeSet,
    Exchange,
    If,
    Parallel,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    StreamIn,
    StreamOut,
    Switch,
    VariableId,
)


def written(step: Step, program: Program) -> frozenset[VariableId]:
    """Return the variables that a step may write."""
    return frozenset(_written(step, program, set()))


def _written(step: Step, program: Program, called: set[str]) -> Iterator[VariableId]:
    """Yield what is written; functions in `called` were looked into already."""
    match step:
        case Sequence():
            for inner in step.steps:
                yield from _written(inner, program, called)
        case ComputeSet():
            for group in step.groups:
                yield from (operand.variable for operand in group.outputs)
        case Exchange():
            yield from (transfer.destination for transfer in step.transfers)
            yield from (definition.variable for definition in step.definitions)
        case StreamIn():
            yield step.variable
        case Parallel() | If() | Switch():
            for branch in step.branches:
                yield from _written(branch, program, called)
        case Repeat():
            yield from _written(step.body, program, called)
        case RepeatWhile():
            yield from _written(step.condition, program, called)
            yield from _written(step.body, program, called)
        case Call():
            if step.function in program.functions and step.function not in called:
                called.add(step.function)
                yield from _written(program.functions[step.function], program, called)
        case _:
            pass


def used(step: Step, program: Program) -> frozenset[VariableId]:
    """Return the variables that a step reads or writes."""
    return frozenset((*_written(step, program, set()), *_read(step, program, set())))


def _read(step: Step, program: Program, called: set[str]) -> Iterator[VariableId]:
    """Yield what is read; functions in `called` were looked into already."""
    match step:
        case Sequence():
            for inner in step.steps:
                yield from _read(inner, program, called)
        case ComputeSet():
            for group in step.groups:
                yield from (operand.variable for operand in group.inputs)
        case Exchange():
            yield from (transfer.source for transfer in step.transfers)
        case StreamOut():
            yield step.variable
        case Parallel() | If() | Switch():
            if isinstance(step, If):
                yield step.predicate
                yield from (item.variable for item in step.merged)
            elif isinstance(step, Switch):
                yield step.index
                yield from (item.variable for item in step.merged)
            for branch in step.branches:
                yield from _read(branch, program, called)
        case Repeat():
            yield from (item.variable for item in step.carried)
            yield from _read(step.body, program, called)
        case RepeatWhile():
            yield step.predicate
            yield from (item.variable for item in step.carried)
            yield from _read(step.condition, program, called)
            yield from _read(step.body, program, called)
        case Call():
            if step.function in program.functions and step.function not in called:
                called.add(step.function)
                yield from _read(program.functions[step.function], program, called)
        case _:
            pass
