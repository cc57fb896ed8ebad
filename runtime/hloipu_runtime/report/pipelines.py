"""What a profile says of pipelines: slots, what each position costs, what waits between them."""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from hloipu_runtime.costing.costs import BlockCost, Costs, Pipelined
from hloipu_runtime.costing.counting import BlockCounts, cycles_of_blocks
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Pipeline, VariableId


class PositionRow(NamedTuple):
    """One position of a pipeline: a stage's forward or backward part."""

    name: str
    ipu: int
    cycles: int
    """Of one micro-batch, with what it takes from its channels."""
    stash_bytes: int
    """Of all micro-batches whose activations wait for it on the IPU that made them."""
    received_bytes: int
    """Of the places for what other IPUs send it."""
    depth: int
    """Micro-batches of a value that wait for it at most, the one that it works on included."""


class PipelineRow(NamedTuple):
    """One pipeline of the program; cycles are of one time through it."""

    path: str
    name: str
    micro_batches: int
    interval: int
    """Slots from one micro-batch to the next."""
    slots: int
    entered: int
    """How often the program goes through it."""
    cycles: int
    """Sum over the slots of the slowest IPU, and of their ends."""
    slot_end_cycles: int
    """Of these, copies between positions and meetings of the IPUs at the ends of slots."""
    bubble: float
    """Share of the IPUs' cycles in slots in which they wait for slower ones, or have no work."""
    positions: tuple[PositionRow, ...]

    def record(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return self._asdict() | {"positions": [row._asdict() for row in self.positions]}


def pipeline_rows(costs: Costs, counts: BlockCounts) -> tuple[PipelineRow, ...]:
    """Return a program's pipelines in the order of their paths, counted as a profile counts."""
    if not any(isinstance(inner, Pipelined) for b in costs.blocks for inner in b.inner):
        return ()
    cycles = cycles_of_blocks(costs, counts)
    rows = []
    for number, block in enumerate(costs.blocks):
        for inner in block.inner:
            if isinstance(inner, Pipelined):
                each = [round(cycles[b] / max(counts.counts[b], 1)) for b in inner.bodies]
                rows.append(_row(costs, block, inner, each, counts.counts[number]))
    return tuple(sorted(rows))


def _row(
    costs: Costs, block: BlockCost, inner: Pipelined, each: Sequence[int], entered: int
) -> PipelineRow:
    step = inner.step
    span = sum(slots * sum(each[n] for n in on) for slots, on in inner.slowest(each))
    ends = sum(
        costs.steps[n].spent.total.cycles
        for n in block.steps
        if costs.steps[n].path == f"{inner.path}/slots"
    )
    whole = len(set(inner.ipus)) * span
    bubble = 1 - inner.turns * sum(each) / whole if whole else 0.0
    positions = tuple(_position(costs.program, step, n, each[n]) for n in range(len(step.stages)))
    slots = step.timetable.slots
    return PipelineRow(inner.path, inner.name, inner.turns, step.interval, slots, entered,
                       span + ends, ends, bubble, positions)  # fmt: skip


def _position(program: Program, step: Pipeline, number: int, cycles: int) -> PositionRow:
    stage = step.stages[number]
    sizes = {True: 0, False: 0}
    depth = 0
    for channel in step.channels:
        if channel.consumer == number:
            at_home = step.stages[channel.producer].ipu == stage.ipu
            sizes[at_home] += sum(_bytes(program, v) for v in channel.places)
            depth = max(depth, len(channel.places))
    return PositionRow(stage.name, stage.ipu, cycles, sizes[True], sizes[False], depth)


def _bytes(program: Program, variable: VariableId) -> int:
    found = program.variables[variable]
    return (prod(found.shape) * ELEMENT_TYPES[found.element_type].bits + 7) // 8
