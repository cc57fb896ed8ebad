"""Pipelines written by hand: sums that go up the stages and come down again, added up on the way.

Forward stage s adds its weight to what comes from stage s - 1; backward stage s adds to what comes
from stage s + 1 what its forward stage made, and to a total. So that each total is known in closed
form, and stashes, copies between IPUs and accumulators are all there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from hloipu_runtime.program.collective import RemoteCopy
from hloipu_runtime.program.program import Array, Program, Role, StatePort
from hloipu_runtime.program.steps import (
    Carried,
    Channel,
    ComputeSet,
    Paged,
    Pipeline,
    Sequence,
    Stage,
    Step,
)
from tests.support.barriers import with_barriers
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
    group: int = 1
    """Micro-batches that a position does before the next one does."""
    offloaded: frozenset[str] = frozenset()
    """What lies in remote memory: `activations`, `weights`, `totals`; `pages`: totals that come to
    tiles for each group.
    """
    works_first: bool = False
    """Whether backward positions compute something before they read what their stage stashed."""
    shares_totals: bool = False
    """Whether stages of one IPU add to one total, that of the last of them."""
    make: ProgramBuilder = field(default_factory=ProgramBuilder)
    channels: list[Channel] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    bodies: list[Sequence] = field(default_factory=list)
    ports: list[StatePort] = field(default_factory=list)
    pages: dict[int, Paged] = field(default_factory=dict)
    """By position."""

    def program(self) -> Program:
        self.ipus = self.ipus or tuple(range(self.stages))
        make = self.make
        make.ipus = max(self.ipus) + 1
        made: list[int] = []
        back = -1
        for stage in range(self.stages):
            with make.block() as steps:
                weight = self._weight(stage)
                came = self._input(stage, made)
                made.append(make.add((came, weight), self._temporary(stage)))
            self.bodies.append(Sequence(tuple(steps)))
        for position in range(self.stages, 2 * self.stages):
            stage = 2 * self.stages - 1 - position
            with make.block() as steps:
                ahead = self._channel(stage, position, made[stage])
                if back >= 0:
                    came = self._channel(position - 1, position, back)
                    if self.works_first:
                        came = make.add((came,), self._temporary(stage))
                    ahead = make.add((ahead, came), self._temporary(stage))
                back = make.add((ahead,), self._temporary(stage))
                self._add_up(stage, back)
            self.bodies.append(Sequence(tuple(steps)))
        whole = [*range(self.stages), *reversed(range(self.stages))]
        stages = tuple(
            Stage(f"p{n}", (self.ipus[stage],), body)
            for n, (stage, body) in enumerate(zip(whole, self.bodies, strict=True))
        )
        if self.group > 1:
            stages = tuple(self._with_first(stage) for stage in stages)
        stages = tuple(
            stage._replace(paged=(self.pages[n],)) if n in self.pages else stage
            for n, stage in enumerate(stages)
        )
        step = Pipeline(
            self.count, self.interval, stages, tuple(self.channels), tuple(self.carried), "pipe",
            self.group,
        )  # fmt: skip
        make.emit(step)
        program = make.program()
        return with_barriers(
            Program(
            program.name, program.machine, program.ipus, program.variables, program.values,
            program.constants, program.body, state=tuple(self.ports),
        )
        )  # fmt: skip

    def _temporary(self, stage: int) -> int:
        return self.make.variable(SHAPE, ROWS, ipu=self.ipus[stage])

    def _remote(self, stage: int) -> int:
        return self.make.variable(SHAPE, ROWS, role=Role.REMOTE, ipu=self.ipus[stage])

    def _weight(self, stage: int) -> int:
        make = self.make
        variable = make.constant(SHAPE, ROWS, self.ipus[stage])
        value, _ = make.constants[variable]
        weight = np.full(SHAPE, 10.0**stage, np.float32)
        make.constants[variable] = (value, weight)
        if "weights" not in self.offloaded:
            return variable
        make.variables[variable] = replace(make.variables[variable], role=Role.REMOTE)
        here = self._temporary(stage)
        make.held[here] = value
        make.emit(RemoteCopy(variable, here, value))
        return here

    def _with_first(self, stage: Stage) -> Stage:
        """Return a stage that does before groups what it begins with: weights that come in."""
        copies = [x for x in stage.body.steps if self._brings_weight(x)]
        rest = [x for x in stage.body.steps if not self._brings_weight(x)]
        return stage._replace(body=Sequence(tuple(rest)), first=Sequence(tuple(copies)))

    def _brings_weight(self, step: Step) -> bool:
        return isinstance(step, RemoteCopy) and step.source in self.make.constants

    def _input(self, stage: int, made: list[int]) -> int:
        if stage:
            return self._channel(stage - 1, stage, made[-1])
        return self.make.stream_in(self._temporary(0))

    def _channel(self, producer: int, consumer: int, source: int) -> int:
        make = self.make
        waiting = self.group if self.group > 1 else -(-(consumer - producer) // self.interval)
        waiting = max(1, min(waiting, self.count))
        stage = consumer if consumer < self.stages else 2 * self.stages - 1 - consumer
        destination = self._temporary(stage)
        count = waiting + self.spare
        if "activations" in self.offloaded:
            places = tuple(self._remote(stage) for _ in range(count))
        elif count == 1:
            places = (destination,)
        else:
            places = tuple(self._temporary(stage) for _ in range(count))
        value = make.held[destination] = make.held[source]
        self.channels.append(Channel(producer, consumer, source, places, destination, value))
        return destination

    def _ipu(self, variable: int) -> int:
        return self.make.variables[variable].ipu

    def _add_up(self, stage: int, what: int) -> None:
        make = self.make
        shared = [
            n for n, x in enumerate(self.carried) if self._ipu(x.variable) == self.ipus[stage]
        ]
        if self.shares_totals and shared:
            item = self.carried[shared[0]]
            make.add((item.variable, what), item.variable)
            self.carried[shared[0]] = item._replace(following=make.held[item.variable])
            return
        paged = "pages" in self.offloaded
        remote = paged or "totals" in self.offloaded
        total = self._remote(stage) if remote else self._temporary(stage)
        if not remote:
            make.variables[total] = replace(make.variables[total], role=Role.STATE)
        initial, turn = make.value_like(total), make.value_like(total)
        make.held[total] = turn
        if remote:
            here = self._temporary(stage)
            make.held[here] = turn
            if not paged:
                make.emit(RemoteCopy(total, here, turn))
            make.add((here, what), here)
            if paged:
                self.pages[2 * self.stages - 1 - stage] = Paged(total, here)
            else:
                make.emit(RemoteCopy(here, total, make.held[here]))
            make.held[total] = make.held[here]
        else:
            make.add((total, what), total)
        final = make.value_like(total)
        self.carried.append(Carried(total, initial, turn, make.held[total], final))
        self.ports.append(StatePort(f"total{stage}", total, initial, final))


def read_where_made(program: Program, slots: int | None = None) -> Program:
    """Return a program in which consumers read on the producer's IPU what is at most so old.

    `slots`: from the producer's to the consumer's; None: until the next micro-batch.
    """
    pipe = next(step for step in program.body.steps if isinstance(step, Pipeline))
    ipu = {v: x.ipu for v, x in enumerate(program.variables)}
    most = pipe.interval if slots is None else slots
    direct = {
        c.destination: c.source
        for c in pipe.channels
        if ipu[c.source] == ipu[c.destination]
        and c.consumer - c.producer <= most
        and program.variables[c.places[0]].role is not Role.REMOTE
    }
    channels = tuple(c for c in pipe.channels if c.destination not in direct)
    stages = tuple(
        stage._replace(body=Sequence(tuple(_reading(x, direct) for x in stage.body.steps)))
        for stage in pipe.stages
    )
    changed = replace(pipe, stages=stages, channels=channels)
    steps = (changed if step is pipe else step for step in program.body.steps)
    return replace(program, body=Sequence(tuple(steps)))


def _reading(step: Step, instead: Mapping[int, int]) -> Step:
    if not isinstance(step, ComputeSet):
        return step
    groups = (
        replace(
            group,
            inputs=tuple(
                x._replace(variable=instead.get(x.variable, x.variable)) for x in group.inputs
            ),
        )
        for group in step.groups
    )
    return ComputeSet(tuple(groups))


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


class Feed:
    """Hands out the same numbers each time, in order."""

    def __init__(self, inputs: list[Array]) -> None:
        self.inputs = inputs
        self.taken = 0

    def take(self, stream: str) -> Array:
        self.taken += 1
        return self.inputs[self.taken - 1]

    def give(self, stream: str, value: Array) -> None:
        raise AssertionError(stream)
