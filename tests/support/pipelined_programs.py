"""Pipelines written by hand: sums that go up the stages and come down again, added up on the way.

Forward stage s adds its weight to what comes from stage s - 1; backward stage s adds to what comes
from stage s + 1 what its forward stage made, and to a total. So that each total is known in closed
form, and stashes, copies between IPUs and accumulators are all there.
"""

from dataclasses import dataclass, field

import numpy as np

from hloipu_runtime.program.program import Program, Role, StatePort
from hloipu_runtime.program.steps import Carried, Channel, Pipeline, Sequence, Stage
from tests.support.program_builder import ProgramBuilder, rows

SHAPE = (6,)
ROWS = rows(2, 3)


@dataclass
class PipelineMaker:
    """A pipeline of so many stages, one IPU each unless `ipus` says otherwise."""

    stages: int
    interval: int
    count: int
    ipus: tuple[int, ...] = ()
    spare: int = 0
    """Places of each channel beyond those that it needs."""
    make: ProgramBuilder = field(default_factory=ProgramBuilder)
    channels: list[Channel] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    bodies: list[Sequence] = field(default_factory=list)
    ports: list[StatePort] = field(default_factory=list)

    def program(self) -> Program:
        self.ipus = self.ipus or tuple(range(self.stages))
        make = self.make
        make.ipus = max(self.ipus) + 1
        made: list[int] = []
        back = -1
        for stage in range(self.stages):
            with make.block() as steps:
                came = self._input(stage, made)
                made.append(make.add((came, self._weight(stage)), self._temporary(stage)))
            self.bodies.append(Sequence(tuple(steps)))
        for position in range(self.stages, 2 * self.stages):
            stage = 2 * self.stages - 1 - position
            with make.block() as steps:
                ahead = self._channel(stage, position, made[stage])
                if back >= 0:
                    came = self._channel(position - 1, position, back)
                    ahead = make.add((ahead, came), self._temporary(stage))
                back = make.add((ahead,), self._temporary(stage))
                self._add_up(stage, back)
            self.bodies.append(Sequence(tuple(steps)))
        whole = [*range(self.stages), *reversed(range(self.stages))]
        stages = tuple(
            Stage(f"p{n}", self.ipus[stage], body)
            for n, (stage, body) in enumerate(zip(whole, self.bodies, strict=True))
        )
        step = Pipeline(
            self.count, self.interval, stages, tuple(self.channels), tuple(self.carried), "pipe"
        )
        make.emit(step)
        program = make.program()
        return Program(
            program.name, program.machine, program.ipus, program.variables, program.values,
            program.constants, program.body, state=tuple(self.ports),
        )  # fmt: skip

    def _temporary(self, stage: int) -> int:
        return self.make.variable(SHAPE, ROWS, ipu=self.ipus[stage])

    def _weight(self, stage: int) -> int:
        variable = self.make.constant(SHAPE, ROWS, self.ipus[stage])
        value, _ = self.make.constants[variable]
        weight = np.full(SHAPE, 10.0**stage, np.float32)
        self.make.constants[variable] = (value, weight)
        return variable

    def _input(self, stage: int, made: list[int]) -> int:
        if stage:
            return self._channel(stage - 1, stage, made[-1])
        return self.make.stream_in(self._temporary(0))

    def _channel(self, producer: int, consumer: int, source: int) -> int:
        make, table_places = self.make, -(-(consumer - producer) // self.interval)
        stage = consumer if consumer < self.stages else 2 * self.stages - 1 - consumer
        destination = self._temporary(stage)
        count = table_places + self.spare
        places = (
            (destination,) if count == 1 else tuple(self._temporary(stage) for _ in range(count))
        )
        value = make.held[destination] = make.held[source]
        self.channels.append(Channel(producer, consumer, source, places, destination, value))
        return destination

    def _add_up(self, stage: int, what: int) -> None:
        make = self.make
        total = make.variable(SHAPE, ROWS, role=Role.STATE, ipu=self.ipus[stage])
        initial, turn = make.value_like(total), make.value_like(total)
        make.held[total] = turn
        make.add((total, what), total)
        final = make.value_like(total)
        self.carried.append(Carried(total, initial, turn, make.held[total], final))
        self.ports.append(StatePort(f"total{stage}", total, initial, final))


def expected_totals(stages: int, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Return what the totals are after micro-batches of these inputs, from zero."""
    totals = [np.zeros(SHAPE) for _ in range(stages)]
    for x in inputs:
        forward = []
        for stage in range(stages):
            x = x + 10.0**stage
            forward.append(x)
        back = np.zeros(SHAPE)
        for stage in reversed(range(stages)):
            back = back + forward[stage]
            totals[stage] += back
    return totals
