"""The slow referee of memory plans: runs programs tile by tile and byte by byte.

Nothing of the planner is used: loops are unrolled, branches are chosen at random, and every byte
remembers which variable was written to it. A read that finds another owner's byte is a fault.
"""

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from math import prod
from random import Random
from typing import NamedTuple

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.messages import Message
from hloipu_runtime.memory.plan import NO_ADDRESS, MemoryPlan, plan_memory
from hloipu_runtime.memory.report import memory_report
from hloipu_runtime.program.channels import taken_before
from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.mapping import Mapping
from hloipu_runtime.program.program import Program, Role, Variable
from hloipu_runtime.program.steps import (
    Call,
    Channel,
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


class Moment(NamedTuple):
    """One executed leaf step: its place in the tree, and the variables that it touches."""

    path: str
    reads: frozenset[int]
    writes: frozenset[int]
    step: Exchange | None = None


def trace(program: Program, step: Step, draw: Random, path: str = "body") -> Iterator[Moment]:
    """Yield the leaf steps of one run; loops turn up to three times, as drawn."""
    match step:
        case Sequence():
            for number, inner in enumerate(step.steps):
                yield from trace(program, inner, draw, f"{path}/{number}")
        case ComputeSet():
            groups = step.groups
            yield Moment(
                path,
                frozenset(x.variable for group in groups for x in group.inputs),
                frozenset(x.variable for group in groups for x in group.outputs),
            )
        case Exchange():
            under = {d.variable for d in step.definitions if d.base is not None}
            yield Moment(
                path,
                frozenset({t.source for t in step.transfers} | under),
                frozenset(d.variable for d in step.definitions),
                step,
            )
        case StreamIn():
            yield Moment(path, frozenset(), frozenset((step.variable,)))
        case StreamOut():
            yield Moment(path, frozenset((step.variable,)), frozenset())
        case Collective():
            yield Moment(
                path,
                frozenset(x.variable for x in step.inputs),
                frozenset(x.variable for x in step.outputs),
            )
        case RemoteCopy():
            here = {v for v in (step.source, step.destination)
                    if program.variables[v].role is not Role.REMOTE}  # fmt: skip
            yield Moment(
                path,
                frozenset(here & {step.source}),
                frozenset(here & {step.destination}),
            )
        case Pipeline():
            yield from _slot_by_slot(program, step, draw, path)
        case Repeat():
            for _ in range(min(step.count, 3)):
                yield from trace(program, step.body, draw, f"{path}/repeat")
        case RepeatWhile():
            for turn in range(draw.randint(1, 4)):
                if turn:
                    yield from trace(program, step.body, draw, f"{path}/while")
                yield from trace(program, step.condition, draw, f"{path}/condition")
                yield Moment(path, frozenset((step.predicate,)), frozenset())
        case If() | Switch():
            chooser = step.predicate if isinstance(step, If) else step.index
            yield Moment(path, frozenset((chooser,)), frozenset())
            number = draw.randrange(len(step.branches))
            yield from trace(program, step.branches[number], draw, f"{path}?{number}")
        case Parallel():
            yield from _interleaved(program, step, draw, path)
        case Call():
            body = program.functions[step.function]
            yield from trace(program, body, draw, f"{path}/{step.function}")
        case _:
            pass


def _slot_by_slot(program: Program, step: Pipeline, draw: Random, path: str) -> Iterator[Moment]:
    """Yield what positions do with the first micro-batches, in slots as a machine has them.

    In a slot, later positions take their turn first; what they hand on is copied at its end.
    """
    turns = range(min(step.count, 2 * step.group + 1))
    slots: dict[int, list[tuple[int, int]]] = {}
    for position in range(len(step.stages)):
        for turn in turns:
            slot = step.timetable.slot(position, turn)
            slots.setdefault(slot, []).append((position, turn))
    for slot in sorted(slots):
        for position, turn in sorted(slots[slot], reverse=True):
            stage, here = step.stages[position], f"{path}/repeat/{position}"
            if turn % step.group == 0:
                yield from trace(program, stage.first, draw, f"{here}/first")
                for page in stage.paged:
                    yield Moment(path, frozenset(), frozenset((page.here,)))
            late = taken_before(program, step, position)
            taken_late = {channel for channels in late.values() for channel in channels}
            for channel in step.channels:
                if channel.consumer == position and channel not in taken_late:
                    yield _taken(program, channel, turn, path)
            for number, inner in enumerate(stage.body.steps):
                for channel in late.get(number, ()):
                    yield _taken(program, channel, turn, path)
                yield from trace(program, inner, draw, f"{here}/{number}")
            if not stage.body.steps:
                for channel in late.get(0, ()):
                    yield _taken(program, channel, turn, path)
            if turn % step.group == step.group - 1 or turn == turns[-1]:
                for page in stage.paged:
                    yield Moment(path, frozenset((page.here,)), frozenset())
        for position, turn in sorted(slots[slot]):
            for channel in step.channels:
                if channel.producer == position:
                    yield from _handed_on(program, channel, turn, path)


def _taken(program: Program, channel: Channel, turn: int, path: str) -> Moment:
    place = _on_tiles(program, channel.places[turn % len(channel.places)])
    return Moment(path, place, frozenset((channel.destination,)) - place)


def _handed_on(program: Program, channel: Channel, turn: int, path: str) -> Iterator[Moment]:
    place = _on_tiles(program, channel.places[turn % len(channel.places)])
    source = frozenset((channel.source,))
    ends = {program.variables[v].ipu for v in (channel.source, channel.destination)}
    if not place and len(ends) > 1:
        landed = frozenset((channel.destination,))
        yield Moment(path, source, landed)
        yield Moment(path, landed, frozenset())
    else:
        yield Moment(path, source, place)


def _on_tiles(program: Program, variable: int) -> frozenset[int]:
    remote = program.variables[variable].role is Role.REMOTE
    return frozenset() if remote else frozenset((variable,))


def _interleaved(program: Program, step: Parallel, draw: Random, path: str) -> Iterator[Moment]:
    """Yield the steps of branches in a random order that keeps each branch's own."""
    waiting = [
        list(trace(program, branch, draw, f"{path}|{n}")) for n, branch in enumerate(step.branches)
    ]
    while any(waiting):
        yield draw.choice([moments for moments in waiting if moments]).pop(0)


def tiles_of(mapping: Mapping) -> list[int]:
    """Return the tiles of a mapping, counted one by one."""
    found = [mapping.tiles.first]
    for extent, stride in zip(mapping.tiles.extents, mapping.tiles.strides, strict=True):
        found = [tile + k * stride for tile in found for k in range(extent)]
    return found


def bytes_of(variable: Variable) -> int:
    """Return the bytes of a variable's largest part."""
    bits = ELEMENT_TYPES[variable.element_type].bits
    return -(-prod(span.size for span in variable.mapping.spans) * bits // 8)


class Owners:
    """Which variable each byte of each tile belongs to, as a run goes on."""

    def __init__(self, program: Program, addresses: SequenceOf[int]) -> None:
        self.program = program
        self.addresses = addresses
        self.tiles = [tiles_of(x.mapping) for x in program.variables]
        self.ends = [
            address + bytes_of(x) for x, address in zip(program.variables, addresses, strict=True)
        ]
        self.memory: dict[tuple[int, int], np.ndarray] = {}
        self.faults: list[str] = []

    def places(self, number: int) -> Iterator[np.ndarray]:
        """Yield the bytes of a variable on each of its tiles."""
        ipu = self.program.variables[number].ipu
        for tile in self.tiles[number]:
            if (ipu, tile) not in self.memory:
                self.memory[ipu, tile] = np.full(max(self.ends), -1, np.int32)
            yield self.memory[ipu, tile][self.addresses[number] : self.ends[number]]

    def write(self, number: int) -> None:
        for place in self.places(number):
            place[:] = number

    def exchange(self, step: Exchange, messages: SequenceOf[tuple[int, Message]]) -> None:
        """Let the messages of an exchange take their bytes; no two may have one in common."""
        here: list[tuple[int, np.ndarray]] = []
        for ipu, message in messages:
            if message.step is not step:
                continue
            for tile in tiles_of(Mapping(message.tiles, ())):
                if (ipu, tile) in self.memory:
                    memory = self.memory[ipu, tile]
                    place = memory[message.address : message.address + message.size_bytes]
                    here.append((-2 - len(here), place))
                    place[:] = here[-1][0]
        if any((place != owner).any() for owner, place in here):
            self.faults.append(f"{step.name}: two messages have one place")

    def read(self, number: int, path: str) -> None:
        for tile, place in zip(self.tiles[number], self.places(number), strict=True):
            others = place[place != number]
            if others.size or len(place) != self.ends[number] - self.addresses[number]:
                found = (
                    "nobody or a message"
                    if others[0] < 0
                    else self.program.variables[others[0]].name
                )
                name = self.program.variables[number].name
                self.faults.append(f"{path}: {name} on tile {tile} now belongs to {found}")
                return


def overlaps(
    program: Program,
    addresses: SequenceOf[int],
    draw: Random,
    runs: int = 4,
    messages: SequenceOf[tuple[int, Message]] = (),
) -> list[str]:
    """Return what is found broken when the program runs some times, with state kept between.

    `messages` are those of exchanges, each with its IPU.
    """
    owners = Owners(program, addresses)
    lasting = [n for n, v in enumerate(program.variables) if v.role is Role.CONSTANT]
    kept = [port.variable for port in program.state]
    lasting += [n for n in kept if program.variables[n].role is Role.STATE]
    for number in lasting:
        owners.write(number)
    written: set[int] = set(lasting)
    for _ in range(runs):
        for moment in trace(program, program.body, draw):
            for number in moment.writes:
                owners.write(number)
            if moment.step is not None:
                owners.exchange(moment.step, messages)
            written |= moment.writes
            for number in moment.reads | moment.writes:
                owners.read(number, moment.path)
        for number in written:
            if program.variables[number].role in (Role.CONSTANT, Role.STATE):
                owners.read(number, "end of the run")
    return owners.faults


def most_live(program: Program, machine: Machine, draw: Random) -> dict[tuple[int, int], int]:
    """Return for each tile the most bytes that one run needs at a time, rounded up to the grain."""
    moments = list(trace(program, program.body, draw))
    grain = machine.memory.allocation_grain_bytes
    needed: list[set[int]] = [set(m.reads | m.writes) for m in moments] or [set()]
    for number, variable in enumerate(program.variables):
        if variable.role in (Role.CONSTANT, Role.STATE):
            for live in needed:
                live.add(number)
        last_write = 0
        for when, moment in enumerate(moments):
            if number in moment.reads:
                for between in range(last_write, when):
                    needed[between].add(number)
            if number in moment.writes:
                last_write = when
    most: dict[tuple[int, int], int] = {}
    for live in needed:
        now: dict[tuple[int, int], int] = {}
        for number in live:
            variable = program.variables[number]
            for tile in tiles_of(variable.mapping):
                place = (variable.ipu, tile)
                size = -(-bytes_of(variable) // grain) * grain
                now[place] = now.get(place, 0) + size
        for place, size in now.items():
            most[place] = max(most.get(place, 0), size)
    return most


def messages_of(plan: MemoryPlan) -> list[tuple[int, Message]]:
    """Return the messages of exchanges, each with its IPU."""
    return [(memory.ipu, message) for memory in plan.ipus for message in memory.messages]


def misplaced(program: Program, plan: MemoryPlan, addresses: SequenceOf[int]) -> list[str]:
    """Return which variables lie in code, past the end of what there is, or not at whole grains."""
    grain = plan.machine.memory.allocation_grain_bytes
    faults = []
    for variable, address in zip(program.variables, addresses, strict=True):
        if address == NO_ADDRESS:
            continue
        memory = plan.ipus[variable.ipu]
        if address % grain:
            faults.append(f"{variable.name} lies at {address}, no multiple of {grain}")
        if plan.fits and address + bytes_of(variable) > plan.available_bytes:
            faults.append(f"{variable.name} ends past {plan.available_bytes}")
        for tile in tiles_of(variable.mapping):
            if address < memory.floor[memory.classes.of_tile[tile]]:
                faults.append(f"{variable.name} lies in code on tile {tile}")
    return faults


def check_memory(program: Program, machine: Machine, seed: int = 0) -> None:
    """Plan a program's memory and assert that it serves, wastes little, and is counted in full."""
    plan = plan_memory(program, machine)
    assert overlaps(program, plan.addresses, Random(seed), 2, messages_of(plan)) == []
    for (ipu, tile), size in most_live(program, machine, Random(seed)).items():
        memory = plan.ipus[ipu]
        assert memory.live.most_bytes[memory.classes.of_tile[tile]] >= size
    report = memory_report(plan)
    assert sum(report.parts.values()) == report.total_bytes
    assert sum(report.peak.parts.values()) == report.peak.total_bytes
    assert min(report.parts.values()) >= 0
    assert misplaced(program, plan, plan.addresses) == []
