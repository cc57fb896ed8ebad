"""Barriers for programs that tests write without: one before whatever leaves a tile or an IPU."""

from collections.abc import Iterator
from dataclasses import replace

from hloipu_runtime.program.collective import Collective
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.rebuilding import with_blocks
from hloipu_runtime.program.steps import (
    Exchange,
    Parallel,
    Pipeline,
    Sequence,
    Step,
    StreamIn,
    StreamOut,
    Sync,
    VariableId,
)
from hloipu_runtime.program.uses import touched_by, used


def with_barriers(program: Program) -> Program:
    """Return the program with a sync where none stands before what needs one."""
    writer = _Writer(program)
    functions = {
        name: writer.sequence(body, program.ipus) for name, body in program.functions.items()
    }
    return replace(program, body=writer.sequence(program.body, program.ipus), functions=functions)


class _Writer:
    def __init__(self, program: Program) -> None:
        self.program = program

    def sequence(self, body: Sequence, ipus: int) -> Sequence:
        return Sequence(tuple(self._steps(body, ipus)))

    def _steps(self, body: Sequence, ipus: int) -> Iterator[Step]:
        before: Step | None = None
        for step in body.steps:
            if isinstance(step, Exchange | StreamIn | StreamOut | Collective):
                if not isinstance(before, Sync):
                    yield Sync(ipus if len(self._places(touched_by(step))) > 1 else 1)
                yield step
            else:
                yield self._inside(step, ipus)
            before = step

    def _inside(self, step: Step, ipus: int) -> Step:
        match step:
            case Parallel():
                return Parallel(
                    tuple(
                        self.sequence(x, max(1, len(self._places(used(x, self.program)))))
                        for x in step.branches
                    )
                )
            case Pipeline():
                stages = tuple(
                    stage._replace(
                        body=self.sequence(stage.body, len(stage.ipus)),
                        first=self.sequence(stage.first, len(stage.ipus)),
                    )
                    for stage in step.stages
                )
                return replace(step, stages=stages)
            case _:
                return with_blocks(step, lambda block: self.sequence(block, ipus))

    def _places(self, variables: frozenset[VariableId]) -> set[int]:
        return {self.program.variables[v].ipu for v in variables}
