"""Lowers pipeline positions: their ops for a micro-batch, their inputs and queue elements."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby
from typing import NamedTuple

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.io_tiles import IoTiles, taken_in
from hloipu_compiler.lowering.core.late_copies import early_parts, late_copies
from hloipu_compiler.lowering.core.lowering import streamed_in
from hloipu_compiler.lowering.core.offloading import fetched, is_large, remote_variable, stored
from hloipu_compiler.lowering.core.values import TileTensor, Value
from hloipu_compiler.lowering.pipelines.draft import Making
from hloipu_compiler.lowering.pipelines.gradient_sums import accumulated, averaged, counted
from hloipu_compiler.lowering.pipelines.results import Results, Sum, added
from hloipu_compiler.lowering.regions.control import copied_to_storage
from hloipu_compiler.plan.pipelining import RUNNING_MEAN, Part, Position
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.program import Port, Role
from hloipu_runtime.program.steps import ValueId


class Kind(Enum):
    """What goes from micro-batch to micro-batch."""

    GRADIENT = "gradient"
    COUNT = "count of micro-batches"
    STATE = "state"
    OUTFEED = "sum that an outfeed takes"


class Key(NamedTuple):
    """One array that goes from micro-batch to micro-batch."""

    kind: Kind
    number: int = 0
    """Of a gradient: which result of the call; of a count: the IPU that has it; of state: the
    parameter; of a sum: its own."""
    call: str = ""
    """That makes it; empty for state."""


@dataclass
class CarriedTensor:
    """A variable that goes from micro-batch to micro-batch."""

    storage: TileTensor
    """Before the first one."""
    in_loop: TileTensor
    """As one begins."""
    after: TileTensor
    """As one ends: the same as `in_loop` until its position is written, and what it is after the
    first of several positions that add to it until the next one is."""


Carried = dict[Key, CarriedTensor]


@dataclass
class _Place:
    """One position under construction."""

    number: int
    position: Position
    known: dict[tuple[ValueId, int], TileTensor] = field(default_factory=dict)
    """Values of earlier positions that have come here, by the IPU that they came to."""
    after: dict[Key, TileTensor] = field(default_factory=dict)
    """What goes on to the next micro-batch."""
    paged: dict[Key, TileTensor] = field(default_factory=dict)
    """What of it lies in remote memory between groups: as a micro-batch begins, on tiles."""

    def pages(self, carried: Carried) -> tuple[s.Paged, ...]:
        """Return where what lies in remote memory is brought to for a group."""
        return tuple(
            s.Paged(carried[key].storage.variable, here.variable)
            for key, here in self.paged.items()
        )


class Positions:
    """Writes the positions of a pipeline, one after the other."""

    def __init__(
        self,
        making: Making,
        results: Results,
        carried: Carried,
        sums: Sequence[Sum],
        joined: Mapping[Key, Key],
    ) -> None:
        self.making = making
        self.builder = making.builder
        self.results = results
        self.carried = carried
        self.state_variables = {
            item.in_loop.variable for key, item in carried.items() if key.kind is Kind.STATE
        }
        self.sums = sums
        """That outfeeds take."""
        self.joined = joined
        """Gradients that are added to what another one is added to, and that one."""
        self.feeds = Feeds(making)
        self.is_grouped = making.pipelining.schedule.group > 1

    def stage(self, number: int, position: Position) -> s.Stage:
        """Write one position's body."""
        builder = self.builder
        if not position.parts:
            return s.Stage(position.name, position.ipus, s.Sequence())
        place = _Place(number, position)
        ipus = len(position.ipus)
        with ExitStack() as blocks:
            first = None
            if self.is_grouped:
                first = blocks.enter_context(builder.block(repeats=True, ipus=ipus))
            scope = blocks.enter_context(builder.block(repeats=True, ipus=ipus))
            for key in (key for part in position.parts for key in self._kept_by(part)):
                item = self.carried[self.joined.get(key, key)]
                scope.owned.add(item.storage.variable)
                builder.made_here(item.after.value)
            self.feeds.begin(number, position)
            for _, parts in groupby(position.parts, key=lambda part: part.level):
                self._level(tuple(parts), place)
            pairs = [
                (tensor, place.paged.get(key, self.carried[key].after))
                for key, tensor in place.after.items()
            ]
            for key, value in zip(place.after, copied_to_storage(builder, pairs), strict=True):
                self.carried[key].after = replace(self.carried[key].in_loop, value=value)
            steps = late_copies(scope.steps, builder.variables, builder.machine)
            body = s.Sequence(tuple(steps))
            before = s.Sequence(tuple(first.steps) if first else ())
            pages = place.pages(self.carried)
            return s.Stage(position.name, position.ipus, body, before, pages)

    def _level(self, parts: Sequence[Part], place: _Place) -> None:
        """Write calls that do not need each other, those of each IPU beside those of others."""
        builder = self.builder
        outer = builder.scope
        operands = {part: self._operands(part, place) for part in parts}
        if len(operands) == 1:
            self._part(parts[0], operands[parts[0]], place)
            return
        branches = []
        for ipu in dict.fromkeys(part.ipu for part in parts):
            with builder.block(repeats=True, ipus=1) as scope:
                scope.owned |= {v for v in outer.owned if builder.variables[v].ipu == ipu}
                for part in parts:
                    if part.ipu == ipu:
                        self._part(part, operands[part], place)
                steps = late_copies(scope.steps, builder.variables, builder.machine)
                branches.append(s.Sequence(tuple(steps)))
        branches = [branch for branch in branches if branch.steps]
        if len(branches) > 1:
            builder.emit(s.Parallel(tuple(branches)))
        else:
            outer.steps += [step for branch in branches for step in branch.steps]

    def _operands(self, part: Part, place: _Place) -> list[list[Value]]:
        """Return what a call reads, where its ops take it from."""
        operands: list[list[Value]] = []
        for i in self.making.calls[part.call].operands:
            self.builder.ipu = self.making.ipu_for(part, i)
            operands.append([self._read(i, place)])
        return operands

    def _part(self, part: Part, operands: Sequence[Sequence[Value]], place: _Place) -> None:
        """Write a call, and what of it goes out or on to the next micro-batch."""
        builder, making = self.builder, self.making
        builder.ipu = part.ipu
        instruction = making.calls[part.call]
        builder.alive_bytes = making.standing_bytes(place.number)
        builder.standing = self._standing(operands)
        for element, leaf in enumerate(making.lower(instruction, operands, frozenset())):
            builder.ipu = making.ipu_of(part.call, element)
            tensor = builder.brought_here(builder.tile_tensor(leaf))
            if not isinstance(tensor, TileTensor):
                raise CodegenError("E0470", f"{part.call} hands out a token")
            if (tensor.value, builder.ipu) not in making.maker:
                came = (tensor.value, builder.ipu) in place.known
                if came or tensor.variable in self.state_variables:
                    tensor = self._passed_on(tensor)
                making.maker[tensor.value, builder.ipu] = (place.number, tensor)
            making.made[(part.call, element)] = tensor
        builder.alive_bytes = 0
        self.results.of_call(part.call)
        steps, additions = builder.scope.steps, []
        for key in self._kept_by(part):
            home = self.joined.get(key, key)
            item = self.carried[home]
            is_remote = builder.variables[item.storage.variable].role is Role.REMOTE
            begin = len(steps)
            if is_remote and self.is_grouped:
                place.paged[key] = here = self._on_tiles(item.in_loop)
                place.after[key] = self._after_micro_batch(key, here)
                continue
            if is_remote:
                after = self._after_micro_batch(key, fetched(builder, item.in_loop))
                item.after = replace(item.in_loop, value=stored(builder, after, item.in_loop))
            else:
                before = place.after.get(home, item.after)
                place.after[home] = self._after_micro_batch(key, before)
            additions.append(range(begin, len(steps)))
        # Gradients are added up as soon as they are there, and do not wait for each other.
        steps[:] = early_parts(steps, additions)

    def _standing(self, operands: Sequence[Sequence[Value]]) -> frozenset[int]:
        standing = frozenset(self.making.standing)
        return frozenset(
            number
            for number, leaves in enumerate(operands)
            if any(isinstance(x, TileTensor) and x.variable in standing for x in leaves)
        )

    def _passed_on(self, leaf: TileTensor) -> TileTensor:
        """Return a copy of state, or of what came from another IPU: the next takes its place."""
        mapping = self.builder.variables[leaf.variable].mapping
        self.builder.origin = self.builder.variables[leaf.variable].origin
        variable = self.builder.variable(leaf.element_type, leaf.shape, mapping)
        transfer, definition = self.builder.plain_copy(leaf, variable)
        self.builder.exchange([transfer], [definition])
        return replace(leaf, variable=variable)

    def _on_tiles(self, there: TileTensor) -> TileTensor:
        """Return a place on tiles for what lies in remote memory, and is brought there."""
        kind = (there.element_type, there.shape)
        record = self.builder.variables[there.variable]
        self.builder.origin, self.builder.ipu = record.origin, record.ipu
        return replace(
            there, variable=self.builder.variable(*kind, self.builder.default_mapping(*kind))
        )

    def _kept_by(self, part: Part) -> list[Key]:
        """Return what a call leaves for the next micro-batch."""
        state = self.making.pipelining.per_micro_batch
        keys = [key for key in (*self.carried, *self.joined) if key.call == part.call]
        return keys + [Key(Kind.STATE, p) for p, r in state if self._is_made_by(r, (part.call,))]

    def _read(self, position: int, place: _Place) -> Value:
        """Return a value of the entry where a position of the pipeline reads it."""
        making = self.making
        number = making.calls.parameter(position)
        if number is None:
            element = making.calls.element(position)
            there = making.cast.get(element, {}).get(self.builder.ipu)
            leaf = making.made[element] if there is None else self._fetched(there, place)
        elif Key(Kind.STATE, number) in self.carried:
            leaf = self.carried[Key(Kind.STATE, number)].in_loop
            self._require_owner(number, place)
        elif self.builder.ipu in making.remote.get(number, ()):
            leaf = self._fetched(making.remote[number][self.builder.ipu], place)
        elif number in making.given:
            leaf = making.given[number]
        else:
            leaf = self.feeds.element(number, place.number)
        if not isinstance(leaf, TileTensor):
            return leaf
        producer = making.maker.get((leaf.value, self.builder.variables[leaf.variable].ipu))
        if producer is None or producer[0] == place.number:
            return self.builder.brought_here(leaf)
        return self._through_channel(*producer, place)

    def _through_channel(self, producer: int, source: TileTensor, place: _Place) -> TileTensor:
        """Return what another position made, as it comes to this one.

        It is read where it is made if that is on this IPU and still there.
        """
        builder = self.builder
        key = (source.value, builder.ipu)
        if key not in place.known:
            lying = builder.variables[source.variable]
            mapping, kind = lying.mapping, (source.element_type, source.shape)
            timetable = self.making.pipelining.schedule.timetable
            count = timetable.micro_batches_waiting(producer, place.number)
            waits = timetable.slot(place.number, 0) - timetable.slot(producer, 0) > 1
            leaves = self.making.offloads.activations and waits and is_large(kind)
            if count == 1 and lying.ipu == builder.ipu and not leaves:
                return source
            builder.origin = lying.origin
            destination = builder.variable(*kind, mapping)
            slots: tuple[int, ...] = (destination,)
            if leaves:
                slots = tuple(remote_variable(builder, kind) for _ in range(count))
            elif count > 1:
                slots = tuple(builder.variable(*kind, mapping) for _ in range(count))
            builder.scope.owned.difference_update((destination, *slots))
            self.making.channels.append(
                s.Channel(producer, place.number, source.variable, slots, destination, source.value)
            )
            place.known[key] = replace(source, variable=destination)
        return place.known[key]

    def _fetched(self, there: TileTensor, place: _Place) -> TileTensor:
        """Return a weight that lies in remote memory, brought in once where a position begins."""
        key = (there.value, self.builder.ipu)
        if key not in place.known:
            self.builder.origin = self.builder.variables[there.variable].origin
            depth = -2 if self.is_grouped else -1
            place.known[key] = fetched(self.builder, there, depth)
        return place.known[key]

    def _require_owner(self, number: int, place: _Place) -> None:
        """Raise where a position reads state that another one makes anew."""
        result = dict(self.making.pipelining.per_micro_batch)[number]
        if not self._is_made_by(result, place.position.calls):
            entry = self.making.module.entry
            name = entry.instructions[entry.parameters[number]].name
            raise CodegenError(
                "E0508",
                f"{place.position.name} reads {name!r}, parameter {number}, which another stage "
                "makes anew for each micro-batch",
                hint="keep what reads and what makes that state in one stage (ipu_stage), or take "
                "fewer stages",
            )

    def _is_made_by(self, result: int, makers: Collection[str]) -> bool:
        calls = self.making.calls
        at = calls.result_positions[result]
        instruction = calls.entry.instructions[at]
        return instruction.opcode == "get-tuple-element" and calls.element(at)[0] in makers

    def _after_micro_batch(self, key: Key, total: TileTensor) -> TileTensor:
        """Return what goes on to the next micro-batch: a sum, or what the call made."""
        making, builder = self.making, self.builder
        builder.ipu = builder.variables[total.variable].ipu
        match key.kind:
            case Kind.COUNT:
                return counted(builder, total)
            case Kind.OUTFEED:
                item = self.sums[key.number]
                builder.origin = item.outfeed.name
                return added(builder, replace(item, in_loop=total), self._result(item.place))
            case Kind.STATE:
                return self._result(dict(making.pipelining.per_micro_batch)[key.number])
        plan = making.pipelining
        gradient = builder.tile_tensor(making.made[(key.call, key.number)])
        if plan.reduction == RUNNING_MEAN:
            count = self.carried[Key(Kind.COUNT, builder.ipu, key.call)].in_loop
            return averaged(builder, total, gradient, count)
        return accumulated(builder, total, gradient, plan.reduction, plan.micro_batches)

    def _result(self, number: int) -> TileTensor:
        calls = self.making.calls
        return self.builder.tile_tensor(
            self.making.made[calls.element(calls.result_positions[number])]
        )


class Feeds:
    """The arrays of all feeds, as positions come to read them."""

    def __init__(self, making: Making) -> None:
        self.making = making
        self.streams = {
            number: (feed.name, f"{feed.name}.{k}")
            for feed in making.wrapping.feeds
            for k, number in enumerate(feed.places)
        }
        """Array of the parameters -> its queue and its stream."""

    def begin(self, number: int, position: Position) -> None:
        """Write how a position takes its elements, all at once, from tiles that are set apart."""
        apart = self.making.apart
        if apart is None:
            return
        by_ipu: dict[int, list[int]] = {}
        for part in position.parts:
            for fed in self._read_by(part):
                if not any(fed in taken for taken in by_ipu.values()):
                    at = self.making.module.entry.parameters[fed]
                    by_ipu.setdefault(self.making.ipu_for(part, at), []).append(fed)
        builder = self.making.builder
        for ipu, numbers in by_ipu.items():
            builder.ipu = ipu
            for fed, tensor in zip(
                numbers, self._handed_over(builder, apart, numbers), strict=True
            ):
                self._note_fed(fed, tensor, number)

    def element(self, number: int, position: int) -> TileTensor:
        """Return an array of an element, taken in where it is not there yet."""
        making = self.making
        if number not in making.fed:
            making.builder.origin, stream = self.streams[number]
            fed = streamed_in(making.builder, stream, *making.calls.arrays[number])
            self._note_fed(number, fed, position)
        return making.fed[number]

    def _handed_over(
        self, builder: Builder, apart: IoTiles, numbers: list[int]
    ) -> list[TileTensor]:
        builder.origin = self.streams[numbers[0]][0]
        ports = [Port(self.streams[n][1], *self.making.calls.arrays[n]) for n in numbers]
        return taken_in(builder, apart, ports, [None] * len(ports))

    def _note_fed(self, number: int, fed: TileTensor, position: int) -> None:
        self.making.builder.scope.owned.discard(fed.variable)
        self.making.fed[number] = fed
        ipu = self.making.builder.variables[fed.variable].ipu
        self.making.maker[fed.value, ipu] = (position, fed)

    def _read_by(self, part: Part) -> Iterator[int]:
        """Yield what a call reads of feeds that no position has taken in."""
        making = self.making
        for operand in making.calls[part.call].operands:
            number = making.calls.parameter(operand)
            if number is not None and number in self.streams and number not in making.fed:
                yield number
