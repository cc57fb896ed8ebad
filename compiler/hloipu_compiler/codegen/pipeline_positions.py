"""Lowers the positions of a pipeline: what each runs for a micro-batch, and what comes to it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from hloipu_compiler.codegen.control import brought_home
from hloipu_compiler.codegen.errors import CodegenError
from hloipu_compiler.codegen.gradient_sums import accumulated, averaged, counted
from hloipu_compiler.codegen.leaves import Held, Leaf
from hloipu_compiler.codegen.lowering import streamed_in
from hloipu_compiler.codegen.outfeed_sums import Sum, added
from hloipu_compiler.codegen.pipeline_making import Making
from hloipu_compiler.codegen.pipeline_results import Results
from hloipu_compiler.plan.pipelining import RUNNING_MEAN, Position
from hloipu_runtime.program import steps as s
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
    """Of a gradient: which result of the call; of state: the parameter; of a sum: its own."""
    call: str = ""
    """Of the position that makes it; empty for state."""


@dataclass
class Turning:
    """A variable that goes from micro-batch to micro-batch."""

    home: Held
    """Before the first one."""
    turn: Held
    """As one begins."""
    after: Held
    """As one ends: the same as `turn` until its position is written."""


Carried = dict[Key, Turning]


@dataclass
class _Place:
    """One position under construction."""

    number: int
    position: Position
    known: dict[ValueId, Held] = field(default_factory=dict)
    """Values of earlier positions that have come here."""


class Positions:
    """Writes the positions of a pipeline, one after the other."""

    def __init__(
        self, making: Making, results: Results, carried: Carried, sums: Sequence[Sum]
    ) -> None:
        self.making = making
        self.builder = making.builder
        self.results = results
        self.carried = carried
        self.sums = sums
        """That outfeeds take."""

    def stage(self, number: int, position: Position) -> s.Stage:
        """Write one position's body."""
        builder, making = self.builder, self.making
        if not position.call:
            return s.Stage(position.name, (position.ipu,), s.Sequence())
        place = _Place(number, position)
        with builder.block(turns=True) as scope:
            builder.ipu = position.ipu
            x = making.calls[position.call]
            mine = self._kept_by(position)
            scope.owned.update(self.carried[key].home.variable for key in mine)
            operands = [[self._read(i, place)] for i in x.operands]
            for element, leaf in enumerate(making.lower(x, operands, frozenset())):
                held = builder.brought_here(builder.held(leaf))
                if not isinstance(held, Held):
                    raise CodegenError("E0470", f"{position.call} hands out a token")
                making.made[(x.name, element)] = held
                making.maker.setdefault(held.value, (number, held))
            self.results.of_call(x.name)
            pairs = [(self._after_micro_batch(key), self.carried[key].turn) for key in mine]
            for key, value in zip(mine, brought_home(builder, pairs), strict=True):
                self.carried[key].after = replace(self.carried[key].turn, value=value)
            return s.Stage(position.name, (position.ipu,), s.Sequence(tuple(scope.steps)))

    def _kept_by(self, position: Position) -> list[Key]:
        """Return what a position leaves for the next micro-batch."""
        state = self.making.pipelining.per_micro_batch
        found = [key for key in self.carried if key.call == position.call]
        return found + [Key(Kind.STATE, p) for p, r in state if self._is_made_by(r, position)]

    def _read(self, position: int, place: _Place) -> Leaf:
        """Return a value of the entry where a position of the pipeline reads it."""
        making = self.making
        number = making.calls.parameter(position)
        if number is None:
            leaf = making.made[making.calls.element(position)]
        elif Key(Kind.STATE, number) in self.carried:
            leaf = self.carried[Key(Kind.STATE, number)].turn
            self._require_owner(number, place)
        elif number in making.given:
            leaf = making.given[number]
        else:
            leaf = self._next_element(number, place)
        if not isinstance(leaf, Held):
            return leaf
        made = making.maker.get(leaf.value)
        if made is None or made[0] == place.number:
            return self.builder.brought_here(leaf)
        return self._through_channel(*made, place)

    def _through_channel(self, producer: int, source: Held, place: _Place) -> Held:
        """Return what another position made, as it comes to this one."""
        builder = self.builder
        if source.value not in place.known:
            mapping = builder.variables[source.variable].mapping
            kind = (source.element_type, source.shape)
            builder.origin = builder.variables[source.variable].origin
            destination = builder.variable(*kind, mapping)
            timetable = self.making.pipelining.schedule.timetable
            count = timetable.held(producer, place.number)
            slots: tuple[int, ...] = (destination,)
            if count > 1:
                slots = tuple(builder.variable(*kind, mapping) for _ in range(count))
            builder.scope.owned.difference_update((destination, *slots))
            self.making.channels.append(
                s.Channel(producer, place.number, source.variable, slots, destination, source.value)
            )
            place.known[source.value] = replace(source, variable=destination)
        return place.known[source.value]

    def _next_element(self, number: int, place: _Place) -> Held:
        """Return what a queue feeds, taken in by the first position that reads it."""
        making = self.making
        if number not in making.fed:
            feed, k = next(
                (feed, feed.places.index(number))
                for feed in making.wrapping.feeds
                if number in feed.places
            )
            self.builder.origin = feed.name
            held = streamed_in(self.builder, f"{feed.name}.{k}", *making.calls.arrays[number])
            self.builder.scope.owned.discard(held.variable)
            making.fed[number] = held
            making.maker[held.value] = (place.number, held)
        return making.fed[number]

    def _require_owner(self, number: int, place: _Place) -> None:
        """Raise where a position reads state that another one makes anew."""
        result = dict(self.making.pipelining.per_micro_batch)[number]
        if not self._is_made_by(result, place.position):
            raise CodegenError(
                "E0508",
                f"{place.position.name} reads parameter {number}, which another stage makes anew "
                "for each micro-batch",
                hint="keep what reads and what makes that state in one stage",
            )

    def _is_made_by(self, result: int, position: Position) -> bool:
        calls = self.making.calls
        at = calls.result_positions[result]
        x = calls.entry.instructions[at]
        return x.opcode == "get-tuple-element" and calls.element(at)[0] == position.call

    def _after_micro_batch(self, key: Key) -> Held:
        """Return what goes on to the next micro-batch: a sum, or what the call made."""
        making, builder = self.making, self.builder
        total = self.carried[key].turn
        match key.kind:
            case Kind.COUNT:
                return counted(builder, total)
            case Kind.OUTFEED:
                item = self.sums[key.number]
                builder.origin = item.outfeed.name
                return added(builder, replace(item, turn=total), self._result(item.place))
            case Kind.STATE:
                return self._result(dict(making.pipelining.per_micro_batch)[key.number])
        plan = making.pipelining
        gradient = builder.held(making.made[(key.call, key.number)])
        if plan.reduction == RUNNING_MEAN:
            count = self.carried[Key(Kind.COUNT, 0, key.call)].turn
            return averaged(builder, total, gradient, count)
        return accumulated(builder, total, gradient, plan.reduction, plan.micro_batches)

    def _result(self, number: int) -> Held:
        """Return a result of the entry that a position makes."""
        calls = self.making.calls
        return self.builder.held(self.making.made[calls.element(calls.result_positions[number])])
