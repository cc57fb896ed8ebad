"""Merges steps: independent vertices and transfers go together.

A compute set lasts as long as its fullest tile, an exchange too, and before each exchange stands a
sync. So a step joins an earlier one of its kind if nothing in between makes what it needs, or still
needs what it overwrites: the earliest that memory allows, so that what follows it can go as early;
what needs nothing, the latest, where memory lacks.
Steps of the host, loops and branches stay where they are; nothing moves past a loop or a branch.

Of memory is asked that no stretch of tiles ever holds more than it held at its fullest before.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hloipu_runtime.program import steps as s
from hloipu_runtime.program.live_bytes import LiveBytes, Message, live_bytes_of
from hloipu_runtime.program.mapping import volume
from hloipu_runtime.program.owners import owners
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.rebuilding import with_blocks
from hloipu_runtime.program.uses import used, written

_REACH = 256
"""How many steps back one may go: the work is linear in steps."""

_TRIES = 8
"""Steps that are looked at, of those that may be joined."""


def merged(
    program: Program,
    tiles_per_ipu: int,
    alone: frozenset[s.VariableId] = frozenset(),
    spared: Mapping[int, int] = MappingProxyType({}),
    messages: Callable[[s.Transfer], Iterable[Message]] | None = None,
) -> Program:
    """Return the program with as few steps as can be; the same one where none can go.

    What is computed, and the order of each host stream, stay the same. `alone`: variables that are
    written where they are, in steps of their own. `spared`: IPU -> bytes by which a stretch of its
    tiles stays below its fullest moment, but for what is fuller anyway. `messages`: those in which
    a transfer goes, as far as they are known.
    """
    return Merger(tiles_per_ipu, alone, messages).merged(program, spared)


@dataclass(slots=True)
class _Unit:
    """A step with the syncs before it, and what joined it."""

    steps: list[s.Step]
    syncs: tuple[s.Sync, ...]
    kind: str
    """`compute`, `exchange` with its syncs, `in`, `out`, `inner`, or `alone`."""
    touched: frozenset[s.VariableId] = frozenset()
    writes: frozenset[s.VariableId] = frozenset()

    def step(self) -> s.Step:
        if len(self.steps) == 1:
            return self.steps[0]
        if isinstance(self.steps[0], s.ComputeSet):
            return s.ComputeSet(
                tuple(g for x in self.steps if isinstance(x, s.ComputeSet) for g in x.groups)
            )
        exchanges = [x for x in self.steps if isinstance(x, s.Exchange)]
        return s.Exchange(
            tuple(t for x in exchanges for t in x.transfers),
            tuple(d for x in exchanges for d in x.definitions),
            max(exchanges, key=_elements).name,
        )


def _elements(step: s.Exchange) -> int:
    """Return how many elements an exchange brings to their places."""
    return sum(volume(transfer.box) for transfer in step.transfers)


@dataclass(slots=True, eq=False)
class _MergingFacts:
    """What merging the same steps again, with other bytes spared, has in common."""

    body: s.Sequence
    owned: frozenset[s.VariableId]
    units: list[_Unit]
    """As written, what is inside of them not merged."""
    live: LiveBytes
    """With nothing spared."""
    ipus: tuple[int, ...]
    outcomes: dict[tuple[int, ...] | None, s.Sequence] = field(default_factory=dict)
    """By bytes that are spared on these IPUs; None: memory does not lack."""


class Merger:
    """Merges steps as `merged` does, of programs that have sequences and variables in common."""

    def __init__(
        self,
        tiles_per_ipu: int,
        alone: frozenset[s.VariableId] = frozenset(),
        messages: Callable[[s.Transfer], Iterable[Message]] | None = None,
    ) -> None:
        self.tiles_per_ipu = tiles_per_ipu
        self.alone = alone
        self.messages = messages
        self._known: dict[int, _MergingFacts] = {}
        """By identity of a sequence, which is kept, so that it stays its own."""

    def merged(self, program: Program, spared: Mapping[int, int] = MappingProxyType({})) -> Program:
        """Return a program with as few steps as can be; the same one where none can go."""
        self.program: Program = program
        self.owners: dict[int, frozenset[s.VariableId]] = owners(program)
        self.spared: Mapping[int, int] = spared
        return program.with_sequences(self.sequence)

    def sequence(self, body: s.Sequence) -> s.Sequence:
        """Return a sequence with its steps merged; the same one where none can go."""
        known = self._of(body)
        spared = tuple(self.spared.get(ipu, 0) for ipu in known.ipus) if self.spared else None
        if spared not in known.outcomes:
            known.outcomes[spared] = self._written(known)
        return known.outcomes[spared]

    def _of(self, body: s.Sequence) -> _MergingFacts:
        owned = self.owners.get(id(body), frozenset())
        known = self._known.get(id(body))
        if known is None or known.owned != owned:
            units = list(self._units(body))
            touched = [unit.touched for unit in units]
            messages = [list(self._passing(unit)) for unit in units] if self.messages else ()
            live = live_bytes_of(self.program, touched, owned, self.tiles_per_ipu, messages)
            variables = frozenset[s.VariableId]().union(*touched)
            ipus = tuple(sorted({self.program.variables[v].ipu for v in variables}))
            known = self._known[id(body)] = _MergingFacts(body, owned, units, live, ipus)
        return known

    def _written(self, known: _MergingFacts) -> s.Sequence:
        units = [
            replace(
                unit,
                steps=[with_blocks(x, self.sequence) for x in unit.steps]
                if unit.kind == "inner"
                else list(unit.steps),
            )
            for unit in known.units
        ]
        merging = _Merging(units, known.live.begun(self.spared), bool(self.spared)).run()
        steps = tuple(_written_out(merging))
        before = known.body.steps
        if len(steps) == len(before) and all(a is b for a, b in zip(steps, before, strict=True)):
            return known.body
        return s.Sequence(steps)

    def _units(self, body: s.Sequence) -> Iterator[_Unit]:
        syncs: list[s.Sync] = []
        for step in body.steps:
            if isinstance(step, s.Sync):
                syncs.append(step)
                continue
            yield self._unit(step, tuple(syncs))
            syncs.clear()
        if syncs:
            yield _Unit([syncs[-1]], tuple(syncs[:-1]), "inner")

    def _passing(self, unit: _Unit) -> Iterator[Message]:
        for step in unit.steps:
            if self.messages is not None and isinstance(step, s.Exchange):
                for transfer in step.transfers:
                    yield from self.messages(transfer)

    def _unit(self, step: s.Step, syncs: tuple[s.Sync, ...]) -> _Unit:
        match step:
            case s.ComputeSet():
                kind = "inner" if syncs else "compute"
            case s.Exchange():
                kind = f"exchange {[sync.ipus for sync in syncs]}"
            case s.StreamIn():
                kind = f"in {[sync.ipus for sync in syncs]}"
            case s.StreamOut():
                kind = f"out {[sync.ipus for sync in syncs]}"
            case _:
                kind = "inner"
        touched, writes = used(step, self.program), written(step, self.program)
        if kind != "inner" and not self.alone.isdisjoint(writes):
            kind = "alone"
        return _Unit([step], syncs, kind, touched, writes)


@dataclass(slots=True)
class _Merging:
    """One sequence: units so far, and where each variable was last read and written."""

    units: list[_Unit]
    live: LiveBytes
    lacks_memory: bool
    merged: list[_Unit] = field(default_factory=list)
    last_read: dict[s.VariableId, int] = field(default_factory=dict)
    last_written: dict[s.VariableId, int] = field(default_factory=dict)
    places: dict[str, list[int]] = field(default_factory=dict)
    """Kind -> numbers of the units of that kind since the last loop or branch."""

    def run(self) -> list[_Unit]:
        for number, unit in enumerate(self.units):
            place = self._place(number, unit)
            if place == len(self.merged):
                self.merged.append(unit)
                self.places.setdefault(unit.kind, []).append(place)
            else:
                self.merged[place].steps += unit.steps
            for variable in unit.touched:
                self.last_read[variable] = max(place, self.last_read.get(variable, 0))
            for variable in unit.writes:
                self.last_written[variable] = place
            if unit.kind == "inner":
                self.places.clear()
        return self.merged

    def _place(self, number: int, unit: _Unit) -> int:
        """Return where a unit goes: the number of the one that it joins, or one more than all."""
        if unit.kind == "compute" or unit.kind.startswith("exchange"):
            free = self._free_from(unit)
            places = self.places.get(unit.kind, ())
            first = bisect_left(places, max(free, len(self.merged) - _REACH))
            touched = {
                v: max(self.last_read.get(v, -1), self.last_written.get(v, -1))
                for v in unit.touched
            }
            open_places = self.live.candidates(number, places[first:], touched)
            if self.lacks_memory and unit.touched == unit.writes:
                # What needs nothing, as zeros do, takes memory from where it goes on.
                open_places = open_places[::-1]
            for place in open_places[:_TRIES]:
                if self.live.moved(number, place, touched):
                    return place
        self.live.appended(number)
        return len(self.merged)

    def _free_from(self, unit: _Unit) -> int:
        """Return the first place where a unit finds all that it needs, and spoils nothing."""
        first = -1
        for variable in unit.touched:
            first = max(first, self.last_written.get(variable, -1))
        for variable in unit.writes:
            first = max(
                first, self.last_written.get(variable, -1), self.last_read.get(variable, -1)
            )
        return first + 1


def _written_out(units: list[_Unit]) -> Iterator[s.Step]:
    """Yield steps and their syncs; host streams in a row need one barrier."""
    before = ""
    for unit in units:
        if unit.kind == "inner" or unit.kind != before or unit.kind[:2] not in ("in", "ou"):
            yield from unit.syncs
        yield unit.step()
        before = unit.kind
