"""Cut steps with tiles set apart for queues, and their slots walked one by one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import hloipu
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.machine.costs import sync
from hloipu_runtime.program.channels import popped, pushed
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import Exchange, Pipeline, Repeat, Step, StreamIn, StreamOut, Sync
from hloipu_runtime.program.steps import Sequence as Steps
from tests.support.pipeline_trials import Cut, compiled

SLOW_HOST = (("host.to_device_bytes_per_second", "2000000"),)
"""So slow that transfers are what slots wait for."""
UPDATES = 3
IPUS = 4
"""Of a chassis, which share the lines to the host."""


def built(cut: Cut, **options: Any) -> CompiledProgram:
    return compiled(replace(cut, io_tiles=1, offload="off"), **options)


CUTS = [
    Cut("mlp_adam", stages, schedule, k, loop=UPDATES, map=where, replicas=replicas)
    for stages, schedule, k, where, replicas in (
        (1, "grouped", 4, "", 1), (2, "grouped", 3, "", 2), (2, "interleaved", 5, "shared", 1),
        (3, "sequential", 3, "back", 1), (2, "sequential/2", 5, "", 1),
    )
]  # fmt: skip


NORMED = """
HloModule step, input_output_alias={ {0}: (0, {}, may-alias) }

plus {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  w = f32[8,4] parameter(0)
  x = f32[6,8] parameter(1)
  zero = f32[] constant(0)
  y = f32[6,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  yy = f32[6,4] multiply(y, y)
  loss = f32[] reduce(yy, zero), dimensions={0,1}, to_apply=plus
  dy = f32[6,4] add(y, y)
  g = f32[8,4] dot(x, dy), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  gg = f32[8,4] multiply(g, g)
  norm = f32[] reduce(gg, zero), dimensions={0,1}, to_apply=plus
  rate = f32[] constant(0.0009765625)
  rates = f32[8,4] broadcast(rate), dimensions={}
  d = f32[8,4] multiply(rates, g)
  new = f32[8,4] subtract(w, d)
  ROOT out = (f32[8,4], f32[], f32[]) tuple(new, loss, norm)
}
"""


def normed(rate: str = "") -> CompiledProgram:
    machine = (("host.from_device_bytes_per_second", rate),) if rate else ()
    return hloipu.compile(
        NORMED, target="tiny", set=machine, micro_batches=3, loop=UPDATES, io_tiles=1,
        feed={"data": (1,)}, outfeed=["loss=1", "norm=2"], cache=False,
    )  # fmt: skip


class Slots(NamedTuple):
    """What a position does for a micro-batch, by what it can go on beside."""

    own: list[Step]
    """What is handed over among it."""
    handing: list[Step]
    transfers: list[Step]


def apart(steps: Sequence[Step], program: Program) -> Slots:
    """Return the steps of a body, barriers with what follows them."""
    buffers = {n for n, v in enumerate(program.variables) if v.role is Role.BUFFER}
    found = Slots([], [], [])
    before: list[Step] = []
    for step in steps:
        before.append(step)
        if isinstance(step, Sync):
            continue
        if isinstance(step, StreamIn | StreamOut):
            assert step.variable in buffers
            found.transfers.extend(before)
        else:
            found.own.extend(before)
            if isinstance(step, Exchange):
                moved = {v for x in step.transfers for v in (x.source, x.destination)}
                found.handing.extend(before if moved & buffers else ())
        before = []
    return found


def loop_of(program: Program) -> Repeat:
    (loop,) = (x for x in program.body.steps if isinstance(x, Repeat))
    return loop


def pipeline_of(program: Program) -> Pipeline:
    (step,) = (x for x in loop_of(program).body.steps if isinstance(x, Pipeline))
    return step


class Walk:
    """The slots of a program, each part of which is costed as a plain sequence."""

    def __init__(self, built: CompiledProgram) -> None:
        self.program, self.machine = built.program, built.machine
        self.start = self._total([])
        self._positions: list[tuple[int, int, int]] = []

    def _total(self, steps: Sequence[Step]) -> int:
        found = estimate(replace(self.program, body=Steps(tuple(steps))), self.machine)
        assert found.total_cycles is not None
        return found.total_cycles

    def cycles(self, steps: Sequence[Step]) -> int:
        return self._total(steps) - self.start

    def positions(self, step: Pipeline) -> list[tuple[int, int, int]]:
        """Return of each position its own cycles, those of handing over, and of transfers."""
        if self._positions:
            return self._positions
        found = self._positions
        for number, stage in enumerate(step.stages):
            parts = apart(stage.body.steps, self.program)
            taken = popped(self.program, [c for c in step.channels if c.consumer == number])
            own = self.cycles([taken, *parts.own])
            found.append((own, self.cycles(parts.handing), self.cycles(parts.transfers)))
        return found

    def pipeline(self, step: Pipeline, *, beside: bool = True) -> int:
        """Return the sum over slots of the slowest IPU, transfers of all on one line beside it."""
        parts = self.positions(step)
        place = [stage.ipus[0] for stage in step.stages]
        meeting = sync(self.machine, len(set(place))).cycles
        meeting += self.machine.tile.supervisor_branch_cycles
        table, total = step.timetable, 0
        for slot in range(table.slots):
            active = table.active(slot)
            busy, host = dict.fromkeys(place, 0), [0] * self.program.ipus
            for n in active:
                own, handing, transfers = parts[n]
                busy[place[n]] += own
                host[place[n] // IPUS] += handing + transfers if transfers else 0
            slowest = max(busy.values())
            total += max(slowest, *host) if beside else slowest
            sent = [c for c in step.channels if c.producer in active]
            total += self.cycles([pushed(self.program, sent)]) + meeting
        return total

    def turn(self) -> int:
        """Return the cycles of an update."""
        steps = loop_of(self.program).body.steps
        total = self.machine.tile.supervisor_branch_cycles
        place = steps.index(pipeline_of(self.program))
        total += self.cycles(steps[:place]) + self.cycles(steps[place + 1 :])
        return total + self.pipeline(pipeline_of(self.program))

    def around(self) -> int:
        """Return the cycles of transfers before the first slot and after the last."""
        step = pipeline_of(self.program)
        found = [0] * self.program.ipus
        for stage, (*_, transfers) in zip(step.stages, self.positions(step), strict=True):
            found[stage.ipus[0] // IPUS] += transfers
        return max(found)
