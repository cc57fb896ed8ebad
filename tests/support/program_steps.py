"""What the slow referee of programs asks of steps: branches, and variables read and written."""

from collections.abc import Iterator

from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import (
    Call,
    ComputeSet,
    Exchange,
    If,
    Parallel,
    Pipeline,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    StreamIn,
    StreamOut,
    Switch,
)


def most_branches(step: Step) -> int:
    """Return the largest number of branches that a step chooses from, inner steps included."""
    match step:
        case Sequence():
            return max(map(most_branches, step.steps), default=1)
        case If() | Switch():
            return max(len(step.branches), *map(most_branches, step.branches))
        case Parallel():
            return max(map(most_branches, step.branches), default=1)
        case Repeat():
            return most_branches(step.body)
        case RepeatWhile():
            return max(most_branches(step.condition), most_branches(step.body))
        case Pipeline():
            bodies = (block for stage in step.stages for block in (stage.first, stage.body))
            return max(map(most_branches, bodies), default=1)
        case _:
            return 1


def writes(program: Program, step: Step) -> Iterator[int]:
    """Yield the variables that a step may change."""
    match step:
        case ComputeSet():
            yield from (x.variable for group in step.groups for x in group.outputs)
        case Exchange():
            yield from (x.destination for x in step.transfers)
            yield from (x.variable for x in step.definitions)
        case StreamIn():
            yield step.variable
        case Collective():
            yield from (x.variable for x in step.outputs)
        case RemoteCopy():
            yield step.destination
        case Sequence():
            yield from (v for inner in step.steps for v in writes(program, inner))
        case If() | Switch() | Parallel():
            yield from (v for inner in step.branches for v in writes(program, inner))
        case Repeat():
            yield from writes(program, step.body)
        case RepeatWhile():
            yield from writes(program, step.condition)
            yield from writes(program, step.body)
        case Pipeline():
            for stage in step.stages:
                yield from writes(program, stage.first)
                yield from writes(program, stage.body)
                yield from (v for page in stage.paged for v in page)
            for channel in step.channels:
                yield from (*channel.places, channel.destination)
        case Call():
            yield from writes(program, program.functions[step.function])
        case _:
            pass


def reads(program: Program, step: Step) -> Iterator[int]:
    """Yield the variables that a step may read."""
    match step:
        case ComputeSet():
            yield from (x.variable for group in step.groups for x in group.inputs)
        case Exchange():
            yield from (x.source for x in step.transfers)
        case StreamOut():
            yield step.variable
        case Collective():
            yield from (x.variable for x in step.inputs)
        case RemoteCopy():
            yield step.source
        case Sequence():
            yield from (v for inner in step.steps for v in reads(program, inner))
        case If():
            yield step.predicate
            yield from (v for inner in step.branches for v in reads(program, inner))
        case Switch():
            yield step.index
            yield from (v for inner in step.branches for v in reads(program, inner))
        case Parallel():
            yield from (v for inner in step.branches for v in reads(program, inner))
        case Repeat():
            yield from reads(program, step.body)
        case RepeatWhile():
            yield step.predicate
            yield from reads(program, step.condition)
            yield from reads(program, step.body)
        case Call():
            yield from reads(program, program.functions[step.function])
        case _:
            pass
