"""Pipelines in profiles: slots, costs of positions, stashes."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from hloipu_runtime.costs.costs import Costs, Loop, Pipelined, Together, blocks_inside
from hloipu_runtime.costs.counting import BlockCounts, cycles_of_blocks
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.program.channels import is_offloaded, read_where_made
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import VariableId


class ShareRow(NamedTuple):
    """A position's work on one of its IPUs."""

    ipu: int
    cycles: int
    """In which this IPU works on a micro-batch, what it waits for other branches left out."""
    host_cycles: int
    """Of transfers between its tiles set apart and the host, beside a micro-batch."""
    stash_bytes: int
    received_bytes: int
    remote_bytes: int


class PositionRow(NamedTuple):
    """One position of a pipeline: a stage's forward or backward part."""

    name: str
    ipu: int
    """The first of them, where branches run on several at once."""
    cycles: int
    """Of one micro-batch, with what it takes from its channels; of branches the slowest's."""
    host_cycles: int
    """Of transfers between tiles set apart and the host, beside a micro-batch, of all its IPUs."""
    stash_bytes: int
    """Of all micro-batches whose activations wait for it on the IPU that made them."""
    received_bytes: int
    """Of the places for what other IPUs send it."""
    remote_bytes: int
    """Of what waits for it beside the IPU, in remote memory."""
    depth: int
    """Micro-batches of a value that wait for it at most, the one that it works on included."""
    shares: tuple[ShareRow, ...]
    """Of each of its IPUs."""


class PipelineRow(NamedTuple):
    """One pipeline of the program; cycles are of one time through it."""

    path: str
    name: str
    micro_batches: int
    interval: int
    """Slots from one micro-batch to the next."""
    group: int
    """Micro-batches that a position does before the next position does."""
    slots: int
    entered: int
    """How often the program goes through it."""
    cycles: int
    """Sum over the slots of the slowest IPU, and of their ends, and of what is before groups."""
    slot_end_cycles: int
    """Of these, copies between positions and meetings of the IPUs at the ends of slots."""
    group_cycles: int
    """Of these, what positions bring in before each group of micro-batches."""
    bubble: float
    """Share of the IPUs' cycles in slots in which they wait for slower ones, or have no work."""
    positions: tuple[PositionRow, ...]

    def record(self) -> dict[str, Any]:
        """Return it as JSON data."""
        rows = [
            row._asdict() | {"shares": [share._asdict() for share in row.shares]}
            for row in self.positions
        ]
        return self._asdict() | {"positions": rows}


def pipeline_rows(costs: Costs, counts: BlockCounts) -> tuple[PipelineRow, ...]:
    """Return a program's pipelines in the order of their paths, counted as a profile counts."""
    pipelines = list(_pipelines(costs))
    if not pipelines:
        return ()
    times = [
        round(total / max(count, 1))
        for total, count in zip(cycles_of_blocks(costs, counts), counts.counts, strict=True)
    ]
    return tuple(sorted(_row(costs, n, inner, times, counts.counts[n]) for n, inner in pipelines))


def blocks_apart(costs: Costs) -> frozenset[int]:
    """Return the blocks of what tiles set apart do beside positions of pipelines."""
    return frozenset(apart.block for _, inner in _pipelines(costs) for apart in inner.apart)


def waits_for_transfers(costs: Costs, counts: BlockCounts) -> dict[int, int]:
    """Return how long IPUs wait in slots until their own transfers beside them are through."""
    cycles_by_ipu: dict[int, int] = {}
    if not blocks_apart(costs):
        return cycles_by_ipu
    cycles = cycles_of_blocks(costs, counts)
    for number, inner in _pipelines(costs):
        body_cycles = [cycles[b] / max(counts.counts[b], 1) for b in inner.bodies]
        cycles_apart = [
            cycles[apart.block] / max(counts.counts[apart.block], 1) for apart in inner.apart
        ]
        for ipu in frozenset().union(*(costs.blocks[apart.block].ipus for apart in inner.apart)):
            for pattern in inner.patterns:
                busy = sum(body_cycles[n] for n in pattern.positions if ipu in inner.ipus[n])
                needed = sum(
                    cost
                    for apart, cost in zip(inner.apart, cycles_apart, strict=True)
                    if ipu in costs.blocks[apart.block].ipus and apart.position in pattern.positions
                )
                waited = round(counts.counts[number] * pattern.slots * max(0, needed - busy))
                cycles_by_ipu[ipu] = cycles_by_ipu.get(ipu, 0) + waited
    return cycles_by_ipu


def _pipelines(costs: Costs) -> Iterator[tuple[int, Pipelined]]:
    for number, block in enumerate(costs.blocks):
        for inner in block.inner:
            if isinstance(inner, Pipelined):
                yield number, inner


def _row(
    costs: Costs, around: int, inner: Pipelined, times: Sequence[int], entered: int
) -> PipelineRow:
    """Return one pipeline in a block; `times`: cycles of one execution of each block."""
    step, block = inner.step, costs.blocks[around]
    body_cycles = [times[b] for b in blocks_inside(inner)]
    span = sum(slots * sum(body_cycles[n] for n in on) for slots, on in inner.slowest(body_cycles))
    ends = sum(
        costs.steps[n].spent.total.cycles
        for n in block.steps
        if costs.steps[n].path in (f"{inner.path}/slots", f"{inner.path}/stored")
    )
    firsts = {f"{inner.path}/repeat/{n}/groups" for n in range(len(step.stages))}
    before = sum(
        loop.iterations * times[loop.body]
        for loop in block.inner
        if isinstance(loop, Loop) and loop.path in firsts
    )
    available_cycles = len({ipu for ipus in inner.ipus for ipu in ipus}) * span
    positions = tuple(_position(costs, inner, n, times) for n in range(len(step.stages)))
    work = inner.iterations * sum(
        share.cycles for position in positions for share in position.shares
    )
    bubble = 1 - work / available_cycles if available_cycles else 0.0
    slots = step.timetable.slots
    return PipelineRow(inner.path, inner.name, inner.iterations, step.interval, step.group, slots,
                       entered, span + ends + before, ends, before, bubble, positions)  # fmt: skip


def _position(costs: Costs, inner: Pipelined, number: int, times: Sequence[int]) -> PositionRow:
    program, step, block = costs.program, inner.step, inner.bodies[number]
    stage = step.stages[number]
    sizes = {(ipu, at_home): 0 for ipu in stage.ipus for at_home in (True, False)}
    remote = dict.fromkeys(stage.ipus, 0)
    depth = 0
    for channel in step.channels:
        if channel.consumer == number:
            consumer_ipu, producer_ipu = (
                program.variables[v].ipu for v in (channel.destination, channel.source)
            )
            waiting = sum(_bytes(program, v) for v in channel.places)
            if is_offloaded(program, channel):
                remote[consumer_ipu] += waiting
            else:
                sizes[consumer_ipu, consumer_ipu == producer_ipu] += waiting
            depth = max(depth, len(channel.places))
    for consumer, variable in read_where_made(program, step):
        if consumer == number:
            sizes[program.variables[variable].ipu, True] += _bytes(program, variable)
            depth = max(depth, 1)
    alone = len(stage.ipus) == 1
    shares = tuple(
        ShareRow(
            ipu,
            times[block] if alone else _worked(costs, times, block, ipu),
            _transferred(costs, inner, number, ipu),
            sizes[ipu, True],
            sizes[ipu, False],
            remote[ipu],
        )
        for ipu in stage.ipus
    )
    return PositionRow(
        stage.name,
        stage.ipus[0],
        times[block],
        sum(share.host_cycles for share in shares),
        sum(share.stash_bytes for share in shares),
        sum(share.received_bytes for share in shares),
        sum(share.remote_bytes for share in shares),
        depth,
        shares,
    )


def _worked(costs: Costs, times: Sequence[int], block: int, ipu: int) -> int:
    cycles = 0
    for n in costs.blocks[block].steps:
        step = costs.steps[n]
        if not step.ipus or ipu in step.ipus:
            cycles += step.spent.total.cycles
    for inner in costs.blocks[block].inner:
        if isinstance(inner, Together):
            cycles += sum(times[b] for b in inner.branches if ipu in costs.blocks[b].ipus)
        elif any(ipu in costs.blocks[b].ipus for b in blocks_inside(inner)):
            iterations = inner.iterations if isinstance(inner, Loop) else 1
            cycles += iterations * sum(times[b] for b in blocks_inside(inner))
    return cycles


def _transferred(costs: Costs, inner: Pipelined, position: int, ipu: int) -> int:
    """Return the cycles of an IPU's transfers beside a position, without what is handed over."""
    blocks = [costs.blocks[apart.block] for apart in inner.apart if apart.position == position]
    steps = [costs.steps[n] for block in blocks for n in block.steps[:-1]]
    return sum(step.spent.total.cycles for step in steps if ipu in step.ipus)


def _bytes(program: Program, variable: VariableId) -> int:
    record = program.variables[variable]
    return (prod(record.shape) * ELEMENT_TYPES[record.element_type].bits + 7) // 8
