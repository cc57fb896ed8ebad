"""Pipelines written by hand whose middle stage adds in two branches at once, on IPUs of their own.

Of each micro-batch x the total gets (x + w) + (x + w + w + …), w added `more` times.
"""

from dataclasses import dataclass, field

import numpy as np

from hloipu_runtime.program.program import Array, Port, Program, Role, StatePort
from hloipu_runtime.program.steps import (
    Carried,
    Channel,
    Parallel,
    Pipeline,
    Sequence,
    Stage,
    Step,
    Sync,
)
from tests.support.barriers import with_barriers
from tests.support.program_builder import ProgramBuilder, rows

SHAPE = (6,)
ROWS = rows(2, 3)
WEIGHT = 3.0


@dataclass
class ConcurrentMaker:
    """Three positions: one hands on x, one has two branches, one adds up."""

    count: int
    interval: int = 1
    more: int = 3
    """Additions of the second branch; the first has one."""
    ipus: tuple[int, int, int, int] = (0, 1, 2, 3)
    """Of the first position, of both branches, of the last position."""
    at_once: bool = True
    """Whether branches are written to run at once, or one after the other."""
    make: ProgramBuilder = field(default_factory=ProgramBuilder)
    channels: list[Channel] = field(default_factory=list)

    def program(self) -> Program:
        make = self.make
        make.ipus = max(self.ipus) + 1
        first, a, b, last = self.ipus
        total = make.variable(SHAPE, ROWS, role=Role.STATE, ipu=last)
        initial, turn = make.value_like(total), make.value_like(total)
        x = make.variable(SHAPE, ROWS, ipu=first)
        with make.block() as begun:
            make.stream_in(x)
        with make.block() as middle:
            joined = self._both(x, (a, b))
        with make.block() as ended:
            came = self._channel(1, 2, joined, last)
            make.held[total] = turn
            make.add((total, came), total)
        final = make.value_like(total)
        carried = Carried(total, initial, turn, make.held[total], final)
        here = (a, b) if a != b else (a,)
        stages = tuple(
            Stage(f"p{n}", ipus, Sequence(tuple(steps)))
            for n, (ipus, steps) in enumerate([((first,), begun), (here, middle), ((last,), ended)])
        )
        make.emit(
            Pipeline(self.count, self.interval, stages, tuple(self.channels), (carried,), "pipe")
        )
        program = make.program()
        return with_barriers(
            Program(
            program.name, program.machine, program.ipus, program.variables, program.values,
            program.constants, program.body, parameters=(Port(f"in{x}", "f32", SHAPE),),
            state=(StatePort("total", total, initial, final),),
        )
        )  # fmt: skip

    def _both(self, x: int, ipus: tuple[int, int]) -> int:
        make = self.make
        made, branches = [], []
        came = [self._channel(0, 1, x, ipu) for ipu in ipus]
        for ipu, value, times in zip(ipus, came, (1, self.more), strict=True):
            weight = make.constant(SHAPE, ROWS, ipu)
            make.constants[weight] = (make.constants[weight][0], np.full(SHAPE, WEIGHT, np.float32))
            with make.block() as steps:
                for _ in range(times):
                    value = make.add((value, weight), make.variable(SHAPE, ROWS, ipu=ipu))
            made.append(value)
            branches.append(Sequence(tuple(steps)))
        if self.at_once:
            make.emit(Parallel(tuple(branches)))
        else:
            for step in (step for branch in branches for step in branch.steps):
                make.emit(step)
        if ipus[0] != ipus[1]:
            make.emit(Sync(2))
        brought = make.copy(made[1], make.variable(SHAPE, ROWS, ipu=ipus[0]))
        return make.add((made[0], brought), make.variable(SHAPE, ROWS, ipu=ipus[0]))

    def _channel(self, producer: int, consumer: int, source: int, ipu: int) -> int:
        make = self.make
        destination = make.variable(SHAPE, ROWS, ipu=ipu)
        value = make.held[destination] = make.held[source]
        self.channels.append(
            Channel(producer, consumer, source, (destination,), destination, value)
        )
        return destination

    def expected(self, inputs: list[Array]) -> Array:
        """Return the total, from zero."""
        total = sum((2 * x + (1 + self.more) * WEIGHT for x in inputs), np.zeros(SHAPE))
        return np.asarray(total, np.float32)


def pipeline_of(program: Program) -> Pipeline:
    """Return the pipeline that a program ends with."""
    step = program.body.steps[-1]
    assert isinstance(step, Pipeline)
    return step


def steps_of(program: Program, position: int) -> tuple[Step, ...]:
    """Return the steps of a position."""
    return pipeline_of(program).stages[position].body.steps
