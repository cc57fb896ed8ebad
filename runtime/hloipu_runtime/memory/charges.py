"""Memory besides variables: code, exchange code, vertex state."""

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloipu_runtime.costs.exchange_form import REARRANGING_CODE_BYTES, Way
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.costs.vertex_bytes import vertex_call_bytes
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.channels import fetched, popped, pushed, stored, taken_before
from hloipu_runtime.program.collective import OWN_PART, Collective, RemoteCopy
from hloipu_runtime.program.live_bytes import Message
from hloipu_runtime.program.mapping import Box, Mapping, Sizes, Tiles
from hloipu_runtime.program.program import Program, Role, Variable


@dataclass
class Charges:
    """Bytes on one IPU: by grid of tiles, and on all tiles alike."""

    vertex_code: dict[tuple[Hashable, Tiles], int] = field(default_factory=dict)
    """By what the code is and where it is; on a tile, each code counts once."""
    assumed_code: set[Hashable] = field(default_factory=set)
    """Of these, codes whose size nobody has counted."""
    assumed_state: Counter[Tiles] = field(default_factory=Counter)
    """Of the vertices' state below, what rests on no source."""
    vertex_state: Counter[Tiles] = field(default_factory=Counter)
    rooms: dict[int, Counter[Tiles]] = field(default_factory=dict)
    """By number of the compute set: what vertices need while they run. All share one room."""
    exchange_code: Counter[Tiles] = field(default_factory=Counter)
    exchanges: list[tuple[str, Tiles, int]] = field(default_factory=list)
    """What the exchange code consists of: instruction, grid and bytes."""
    messages: list[tuple[s.Exchange | Collective, Tiles, int, s.VariableId]] = field(
        default_factory=list
    )
    """Bytes of messages at one end of a transfer, while the exchange lasts, and the variable
    that they go to."""
    control_code: dict[tuple[Hashable, Tiles], int] = field(default_factory=dict)
    """By number of the exchange, or of the compute set and the vertex, and by tiles that take part;
    on a tile, each counts once."""
    common_code_bytes: int = 0
    """Control code that every tile has: syncs, loops, branches and calls."""

    def grids(self) -> Iterator[Tiles]:
        """Yield the grids that something is charged on."""
        yield from (tiles for _, tiles in self.vertex_code)
        yield from self.vertex_state
        yield from self.exchange_code
        yield from (tiles for _, tiles in self.control_code)
        yield from (tiles for _, tiles, _, _ in self.messages)


_REARRANGING = "rearranging copy"
"""Key of the code that rearranges messages."""


class ProgramCharges(NamedTuple):
    """Bytes charged on each IPU, and the variables that are exchange buffers."""

    ipus: tuple[Charges, ...]
    buffers: frozenset[s.VariableId]


def charges_of(program: Program, machine: Machine, forms: Forms | None = None) -> ProgramCharges:
    """Return the charges of a program; a loop's or a function's steps count once.

    `forms`: those of its transfers, where they are known already.
    """
    walker = _Walker(program, machine, forms or Forms(program, machine))
    everywhere = frozenset(range(program.ipus))
    for step in (program.body, *program.functions.values()):
        walker.walk(step, everywhere)
    return ProgramCharges(walker.charges, frozenset(walker.received - walker.computed))


class _Walker:
    """Counts while it walks the tree."""

    def __init__(self, program: Program, machine: Machine, forms: Forms) -> None:
        self.program = program
        self.machine = machine
        self.forms = forms
        self.charges = tuple(Charges() for _ in range(program.ipus))
        self.step_number = 0
        """Of the leaf at hand."""
        self.received: set[s.VariableId] = set()
        self.computed: set[s.VariableId] = set()

    def walk(self, step: s.Step, ipus: frozenset[int]) -> None:
        """Count a step that runs where the tiles of `ipus` take part."""
        match step:
            case s.Sequence():
                for inner in step.steps:
                    self.walk(inner, ipus)
                return
            case s.ComputeSet():
                self._compute_set(step)
                return
            case s.Exchange():
                self._exchange(step)
                return
            case s.StreamIn() | s.StreamOut():
                self._stream(step)
                return
            case Collective():
                self._collective(step)
                return
            case RemoteCopy():
                for variable in (step.source, step.destination):
                    if self.program.variables[variable].role is not Role.REMOTE:
                        self._packets(variable, step.source == variable, "remote copy")
                return
            case s.Sync():
                self._everywhere(ipus, self.machine.memory.instruction_bytes)
                return
            case s.Repeat():
                self.walk(step.body, ipus)
            case s.Pipeline():
                for stage in step.stages:
                    for block in stage.blocks:
                        self.walk(block, frozenset(stage.ipus))
                self._exchange(pushed(self.program, step.channels, name=step.name))
                for position in range(len(step.stages)):
                    for channels in taken_before(self.program, step, position).values():
                        self._exchange(popped(self.program, channels, name=step.name))
                for copy in stored(self.program, step.channels):
                    self._packets(copy.source, True, "remote copy")
                for copy in fetched(self.program, step.channels):
                    self._packets(copy.destination, False, "remote copy")
                for page in (page for stage in step.stages for page in stage.paged):
                    self._packets(page.here, False, "remote copy")
                    self._packets(page.here, True, "remote copy")
            case s.RepeatWhile():
                self.walk(step.condition, ipus)
                self.walk(step.body, ipus)
            case s.If() | s.Switch():
                for branch in step.branches:
                    self.walk(branch, ipus)
            case s.Parallel():
                for branch in step.branches:
                    self.walk(branch, self._ipus(_used(branch)) or ipus)
                return
            case _:
                pass
        self._everywhere(ipus, self.machine.memory.step_code_bytes)

    def _everywhere(self, ipus: frozenset[int], code_bytes: int) -> None:
        for ipu in ipus:
            self.charges[ipu].common_code_bytes += code_bytes

    def _taking_part(self, ipu: int, tiles: Tiles) -> None:
        """Count the control code of the step at hand on the tiles that take part in it."""
        code_bytes = self.machine.memory.step_code_bytes
        self.charges[ipu].control_code[(self.step_number, tiles)] = code_bytes

    def _stream(self, step: s.StreamIn | s.StreamOut) -> None:
        """Count a stream: assumed, each packet takes as much code as a message between tiles."""
        self._packets(step.variable, isinstance(step, s.StreamOut), step.stream)

    def _packets(self, number: s.VariableId, leaves: bool, name: str) -> None:
        """Count what a tile needs to send or receive a variable in packets."""
        variable = self.program.variables[number]
        host, tiles = self.machine.host, variable.mapping.tiles
        packet_bytes = host.from_device_packet_bytes if leaves else host.to_device_packet_bytes
        size_bytes = over(variable.bytes_per_tile, packet_bytes)
        size_bytes *= self.machine.memory.exchange_fragment_code_bytes
        self.step_number += 1
        self._taking_part(variable.ipu, tiles)
        charges = self.charges[variable.ipu]
        charges.exchange_code[tiles] += size_bytes
        charges.exchanges.append((name, tiles, size_bytes))

    def _collective(self, step: Collective) -> None:
        """Count both ends of a collective as packets, and the part that comes in for each operand.

        Assumed: a part waits beside the operand that it is added to, or goes on to the next member.
        """
        for moved in step.inputs:
            self._packets(moved.variable, True, step.name)
            if step.form.kind == OWN_PART:
                continue  # exchanged on the chip, straight from place to place
            variable = self.program.variables[moved.variable]
            part = over(variable.bytes_per_tile, step.form.group_size)
            message = step, variable.mapping.tiles, part, moved.variable
            self.charges[variable.ipu].messages.append(message)
        for moved in step.outputs:
            self._packets(moved.variable, False, step.name)

    def _ipus(self, variables: Iterator[s.VariableId] | tuple[s.VariableId, ...]) -> frozenset[int]:
        return frozenset(self.program.variables[v].ipu for v in variables)

    def _compute_set(self, step: s.ComputeSet) -> None:
        variables = self.program.variables
        self.step_number += 1
        call_bytes = vertex_call_bytes(self.machine)
        for number, group in enumerate(step.groups):
            every = (*group.inputs, *group.outputs)
            self.computed.update(operand.variable for operand in group.outputs)
            ipu = variables[every[0].variable].ipu if every else 0
            code, (state_bytes, room_bytes) = self.forms.vertex_bytes(group)
            charges = self.charges[ipu]
            charges.vertex_code[(code.key, group.tiles)] = code.size
            charges.vertex_state[group.tiles] += state_bytes
            if room_bytes:
                charges.rooms.setdefault(self.step_number, Counter())[group.tiles] += room_bytes
            if code.is_assumed:
                charges.assumed_code.add(code.key)
                charges.assumed_state[group.tiles] += state_bytes
            elif self.machine.rests_on_assumption("memory.vertex_fixed_bytes"):
                charges.assumed_state[group.tiles] += self.machine.memory.vertex_fixed_bytes
            charges.control_code[((self.step_number, number), group.tiles)] = call_bytes

    def _exchange(self, step: s.Exchange) -> None:
        variables = self.program.variables
        self.step_number += 1
        for transfer in step.transfers:
            source, destination = variables[transfer.source], variables[transfer.destination]
            self.received.add(transfer.destination)
            carried = self.forms.of(transfer)
            if carried is None:
                continue
            receiving = receivers(transfer, destination)
            self._taking_part(destination.ipu, receiving)
            if carried.traffic.received_bytes:
                sending = senders(transfer, source)
                self._taking_part(source.ipu, sending)
                into = transfer.destination
                self._end(step, source.ipu, sending, carried.form.sending, into)
                self._end(step, destination.ipu, receiving, carried.form.receiving, into)

    def _end(self, step: s.Exchange, ipu: int, tiles: Tiles, end: Way, into: s.VariableId) -> None:
        """Count what one end of a transfer takes, besides control code."""
        charges = self.charges[ipu]
        charges.exchange_code[tiles] += end.code_bytes
        charges.exchanges.append((step.name, tiles, end.kept_bytes))
        if end.buffer_bytes:
            charges.messages.append((step, tiles, end.buffer_bytes, into))
            charges.vertex_state[tiles] += end.state_bytes
            charges.assumed_state[tiles] += end.state_bytes
            charges.assumed_code.add(_REARRANGING)
            charges.vertex_code[(_REARRANGING, tiles)] = REARRANGING_CODE_BYTES


def messages_of(program: Program, forms: Forms, transfer: s.Transfer) -> Iterator[Message]:
    """Yield the messages at both ends of a transfer."""
    source, destination = (program.variables[v] for v in (transfer.source, transfer.destination))
    carried = forms.of(transfer)
    if carried is None or not carried.traffic.received_bytes:
        return
    sending, receiving = carried.form.sending, carried.form.receiving
    if sending.buffer_bytes:
        yield Message(source.ipu, senders(transfer, source), sending.buffer_bytes)
    if receiving.buffer_bytes:
        yield Message(destination.ipu, receivers(transfer, destination), receiving.buffer_bytes)


def _used(step: s.Step) -> Iterator[s.VariableId]:
    """Yield the variables that the leaves of a step touch; functions called are not looked into."""
    match step:
        case s.Sequence():
            for inner in step.steps:
                yield from _used(inner)
        case s.ComputeSet():
            for group in step.groups:
                yield from (operand.variable for operand in (*group.inputs, *group.outputs))
        case s.Exchange():
            for transfer in step.transfers:
                yield from (transfer.source, transfer.destination)
        case s.StreamIn() | s.StreamOut():
            yield step.variable
        case Collective():
            yield from (moved.variable for moved in (*step.inputs, *step.outputs))
        case RemoteCopy():
            yield from (step.source, step.destination)
        case s.Repeat():
            yield from _used(step.body)
        case s.RepeatWhile():
            yield from _used(step.condition)
            yield from _used(step.body)
        case s.If() | s.Switch() | s.Parallel():
            for branch in step.branches:
                yield from _used(branch)
        case _:
            pass


def receivers(transfer: s.Transfer, destination: Variable) -> Tiles:
    """Return the tiles that receive."""
    return _within(destination.mapping, transfer.box, once=False)


def senders(transfer: s.Transfer, source: Variable) -> Tiles:
    """Return the tiles that send; of those that hold the same, one."""
    box, shift, view = transfer.box, transfer.shift, transfer.view
    if view == source.shape:
        box = tuple((low + by, high + by) for (low, high), by in zip(box, shift, strict=True))
    else:
        box = _covering(view, box, shift, source.shape)
    return _within(source.mapping, box, once=True)


def _covering(view: Sizes, box: Box, shift: Sizes, shape: Sizes) -> Box:
    """Return a box of the source that has all elements of a box of its view."""
    if not shape:
        return ()
    first = last = 0
    for size, (low, high), moved in zip(view, box, shift, strict=True):
        first = first * size + low + moved
        last = last * size + high - 1 + moved
    row = prod(shape[1:])
    return ((first // row, last // row + 1), *((0, size) for size in shape[1:]))


@lru_cache(1 << 14)
def _within(mapping: Mapping, box: Box, *, once: bool) -> Tiles:
    """Return the tiles whose parts meet a box; `once`: one of those that hold the same."""
    low = [0] * len(mapping.tiles.extents)
    high = list(mapping.tiles.extents)
    for span, (begin, end) in zip(mapping.spans, box, strict=True):
        if span.axis < 0 or span.step <= 0:
            continue
        first = max(0, (begin - span.offset - span.size) // span.step + 1)
        low[span.axis] = min(first, high[span.axis] - 1)
        last = min(high[span.axis], -(-(end - span.offset) // span.step))
        high[span.axis] = max(last, low[span.axis] + 1)
    if once:
        for axis in mapping.replicated_axes:
            high[axis] = 1
    return _part(mapping.tiles, low, high)


def _part(tiles: Tiles, low: list[int], high: list[int]) -> Tiles:
    """Return the part of a grid between coordinates, without axes of one tile."""
    first = tiles.first + sum(n * stride for n, stride in zip(low, tiles.strides, strict=True))
    remaining_axes = [
        (end - begin, stride)
        for begin, end, stride in zip(low, high, tiles.strides, strict=True)
        if end - begin != 1
    ]
    return Tiles(
        tuple(n for n, _ in remaining_axes), tuple(stride for _, stride in remaining_axes), first
    )
