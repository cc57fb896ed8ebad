"""Moves vertices and copies to supersteps where the slowest tile waits less for them.

Merging puts each step as early as it can go. But a compute set lasts as long as its slowest tile,
an exchange too, so that what nothing waits for, as a bias's gradient beside a chain of products,
had better go where another tile is slowest anyway: the levelling of resources in networks of
activities, one activity after the other from the last one on (Burgess and Killebrew 1962: Variation
in activity level on a cyclical arrow diagram, Journal of Industrial Engineering 13).

There are no more steps than before, and no stretch of tiles gets fuller than it was at its fullest.
Nothing moves past a loop or a branch.
"""

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.costs.computing import group_cost, ipu_of
from hloipu_runtime.costs.exchanging import tile_loads
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.costs.loads import Load
from hloipu_runtime.machine.costs import TileTraffic, beginning, exchange_cycles, sync
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.live_bytes import LiveBytes, live_bytes_of
from hloipu_runtime.program.owners import owners
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.rebuilding import with_blocks
from hloipu_runtime.program.uses import used, written

_STRETCH = 512
"""Steps that are looked at together: the amounts of all their tiles are kept meanwhile. Assumed."""

Numbers = NDArray[np.int64]
Parts = tuple[int, ...]


def levelled(
    program: Program,
    machine: Machine,
    alone: frozenset[s.VariableId] = frozenset(),
    forms: Forms | None = None,
) -> Program:
    """Return a program whose steps last no longer, and some less; the same one where none does.

    `alone`: variables that are written in steps of their own, which stay as they are. `forms`:
    those of its exchanges, if they are known.
    """
    owned = owners(program)
    forms = forms or Forms(program, machine)

    def changed(body: s.Sequence) -> s.Sequence:
        steps = tuple(with_blocks(step, changed) for step in body.steps)
        is_same = all(a is b for a, b in zip(steps, body.steps, strict=True))
        outer = body if is_same else s.Sequence(steps)
        inside = owned.get(id(body), frozenset())
        return _Levelling(program, machine, forms, outer, inside, alone).sequence()

    body = changed(program.body)
    functions = {name: changed(block) for name, block in program.functions.items()}
    if body is program.body and all(functions[n] is f for n, f in program.functions.items()):
        return program
    return replace(program, body=body, functions=functions)


@dataclass(slots=True, eq=False)
class _Item:
    """A vertex group, or what an exchange brings to one variable; else a step that stays."""

    step: int
    reads: frozenset[s.VariableId]
    writes: frozenset[s.VariableId]
    group: s.VertexGroup | None = None
    transfers: tuple[s.Transfer, ...] = ()
    definitions: tuple[s.Definition, ...] = ()
    loads: list["_Loads"] = field(default_factory=list)
    """One for each IPU."""
    priced: dict[int, "_Priced"] = field(default_factory=dict)
    """By step: what it takes with the item; of its own step, what that takes without."""


class _Loads(NamedTuple):
    """What tiles have to do, a column of amounts for each range of them, `first` to before `end`.

    Ranges are those that no item of a stretch tells apart: dozens, not a tile each.
    """

    ipu: int
    first: int
    end: int
    amounts: Numbers


class _Priced(NamedTuple):
    """What a step would take with an item, or without, if it has changed so often as it had."""

    changes: int
    cycles: int
    slowest: dict[int, Parts]
    """On the IPUs of the item."""


@dataclass(slots=True)
class _Place:
    """A compute set or an exchange, with what its tiles have to do."""

    kind: str
    stretch: int
    """The first step of its stretch."""
    sync_cycles: int
    number: int
    """Among the steps of its kind."""
    count: int = 0
    """Of its items."""
    changes: int = 0
    """How often an item came or went."""
    slowest: dict[int, Parts] = field(default_factory=dict)
    """By IPU: what adds up to the step's cycles, each of its slowest tile."""
    cycles: int = 0
    """Of its items."""

    def priced(self, count: int, slowest: dict[int, Parts]) -> _Priced:
        """Return what so many items take, on some IPUs with other slowest ones than now."""
        parts: Iterable[Parts] = zip(*(self.slowest | slowest).values(), strict=True)
        cycles = self.sync_cycles + sum(map(max, parts)) if count else 0
        return _Priced(self.changes, cycles, slowest)

    def change(self, count: int, priced: _Priced) -> None:
        """Have so many items, as they are priced."""
        self.slowest |= priced.slowest
        self.count, self.cycles = count, priced.cycles
        self.changes += 1


class _Levelling:
    """Levels the steps of one sequence."""

    def __init__(
        self,
        program: Program,
        machine: Machine,
        forms: Forms,
        body: s.Sequence,
        owned: frozenset[s.VariableId],
        alone: frozenset[s.VariableId],
    ) -> None:
        self.program, self.machine, self.forms, self.body = program, machine, forms, body
        self.owned = owned
        self.places: dict[int, _Place] = {}
        self.items: list[_Item] = []
        self.steps_of: dict[str, list[int]] = {}
        """By kind of places."""
        self.readers: dict[s.VariableId, list[_Item]] = {}
        self.writers: dict[s.VariableId, list[_Item]] = {}
        self.amounts: dict[tuple[str, int], Numbers] = {}
        """By kind of places and IPU: rows as those of items, of each place, by range of tiles."""
        self._known_live: tuple[LiveBytes, Numbers] | None = None
        self._read_steps(alone)

    def _read_steps(self, alone: frozenset[s.VariableId]) -> None:
        syncs: list[s.Sync] = []
        stretch = 0
        for number, step in enumerate(self.body.steps):
            if isinstance(step, s.Sync):
                syncs.append(step)
                continue
            if number - stretch >= _STRETCH:
                stretch = number
            is_phase = isinstance(step, s.Exchange) or (
                isinstance(step, s.ComputeSet) and not syncs
            )
            if is_phase and alone.isdisjoint(written(step, self.program)):
                kind = f"{type(step).__name__} {stretch} {[barrier.ipus for barrier in syncs]}"
                cycles = sum(sync(self.machine, barrier.ipus).cycles for barrier in syncs)
                alike = self.steps_of.setdefault(kind, [])
                self.places[number] = _Place(kind, stretch, cycles, len(alike))
                alike.append(number)
                self.items += self._items(number, step)
            else:
                if not isinstance(step, s.StreamIn | s.StreamOut | s.ComputeSet | s.Exchange):
                    stretch = number + 1
                touched, writes = used(step, self.program), written(step, self.program)
                self.items.append(_Item(number, touched, writes))
            syncs.clear()
        for item in self.items:
            for variable in item.reads - item.writes:
                self.readers.setdefault(variable, []).append(item)
            for variable in item.writes:
                self.writers.setdefault(variable, []).append(item)

    def _items(self, number: int, step: s.Step) -> Iterator[_Item]:
        if isinstance(step, s.ComputeSet):
            for group in step.groups:
                reads = frozenset(operand.variable for operand in group.inputs)
                writes = frozenset(operand.variable for operand in group.outputs)
                yield _Item(number, reads, writes, group)
        elif isinstance(step, s.Exchange):
            transfers: dict[s.VariableId, list[s.Transfer]] = {}
            for transfer in step.transfers:
                transfers.setdefault(transfer.destination, []).append(transfer)
            definitions: dict[s.VariableId, list[s.Definition]] = {v: [] for v in transfers}
            for definition in step.definitions:
                definitions.setdefault(definition.variable, []).append(definition)
            for variable, defined in definitions.items():
                bringing = tuple(transfers.get(variable, ()))
                yield _Item(
                    number,
                    frozenset(transfer.source for transfer in bringing),
                    frozenset((variable,)),
                    None,
                    bringing,
                    tuple(defined),
                )

    def sequence(self) -> s.Sequence:
        """Return the sequence with its items moved; the same one where no cycles are saved."""
        stretches: dict[int, list[_Item]] = {}
        for item in self.items:
            place = self.places.get(item.step)
            if place is not None and len(self.steps_of[place.kind]) > 1:
                stretches.setdefault(place.stretch, []).append(item)
        changed = [self._level(items) for items in stretches.values()]
        return s.Sequence(tuple(self._written_out())) if any(changed) else self.body

    def _level(self, items: list[_Item]) -> bool:
        """Move the items of a stretch; return whether that saves cycles."""
        movable = [item for item in items if self._may_move(item)]
        if not any(len(self._choices(item)) > 1 for item in movable):
            return False
        self._load(items)
        places = [self.places[number] for number in {item.step: None for item in items}]
        before = best = [item.step for item in movable]
        least = sum(place.cycles for place in places)
        small = beginning(self.machine).cycles
        for is_late, may_cost in ((True, 0), (True, small), (True, 0), (False, 0)):
            for item in reversed(movable) if is_late else movable:
                self._move(item, is_late=is_late, may_cost=may_cost)
            total = sum(place.cycles for place in places)
            if total < least:
                least, best = total, [item.step for item in movable]
        for item, step in zip(movable, best, strict=True):
            if item.step != step:
                self._too_full_at(item, step, is_sure=True)
                item.step = step
        self.amounts.clear()
        return best != before

    def _may_move(self, item: _Item) -> bool:
        """Whether an item takes nothing between IPUs, where links count too."""
        ipu_of_variable = self.program.variables
        return all(
            ipu_of_variable[x.source].ipu == ipu_of_variable[x.destination].ipu
            for x in item.transfers
        )

    # --- what a step takes

    def _load(self, items: Iterable[_Item]) -> None:
        """Note what tiles have to do for the items of a stretch, and for its steps."""
        loads = [(item, list(self._loads_of(item))) for item in items]
        bounds: dict[int, set[int]] = {}
        for _, of_item in loads:
            for ipu, load in of_item:
                bounds.setdefault(ipu, set()).update((load.first, load.last + 1))
        range_at = {
            ipu: {tile: number for number, tile in enumerate(sorted(tiles))}
            for ipu, tiles in bounds.items()
        }
        for item, of_item in loads:
            place = self.places[item.step]
            place.count += 1
            for ipu in dict.fromkeys(ipu for ipu, _ in of_item):
                ranges = [
                    (range_at[ipu][load.first], range_at[ipu][load.last + 1], load.amounts)
                    for other, load in of_item
                    if other == ipu
                ]
                first, end = min(x[0] for x in ranges), max(x[1] for x in ranges)
                amounts = np.zeros((len(ranges[0][2]), 1, end - first), np.int64)
                for begin, until, column in ranges:
                    amounts[:, 0, begin - first : until - first] += np.array(column)[:, None]
                item.loads.append(_Loads(ipu, first, end, amounts))
                if (place.kind, ipu) not in self.amounts:
                    shape = len(amounts), len(self.steps_of[place.kind]), len(range_at[ipu]) - 1
                    self.amounts[place.kind, ipu] = np.zeros(shape, np.int64)
                self.amounts[place.kind, ipu][:, place.number, first:end] += amounts[:, 0]
        for (kind, ipu), of_steps in self.amounts.items():
            slowest = self._slowest(of_steps)
            for step, parts in zip(self.steps_of[kind], slowest, strict=True):
                self.places[step].slowest[ipu] = parts
        for kind in dict.fromkeys(self.places[item.step].kind for item, _ in loads):
            for step in self.steps_of[kind]:
                place = self.places[step]
                place.cycles = place.priced(place.count, {}).cycles

    def _loads_of(self, item: _Item) -> Iterator[tuple[int, Load]]:
        """Yield what an item asks of the tiles of each IPU."""
        group = item.group
        if group is None:
            yield from tile_loads(self.program, item.transfers, self.machine, self.forms)
            return
        cycles = group_cost(self.program, group, self.machine).work.cycles
        yield ipu_of(self.program, group), Load(group.tiles.first, group.tiles.last, (cycles,))

    def _put(self, item: _Item, step: int) -> None:
        place = self.places[step]
        place.change(place.count + 1, self._with(item, (step,))[step])
        for ipu, first, end, amounts in item.loads:
            self.amounts[place.kind, ipu][:, place.number, first:end] += amounts[:, 0]
        item.step = step

    def _take(self, item: _Item) -> None:
        place = self.places[item.step]
        place.change(place.count - 1, self._without(item))
        for ipu, first, end, amounts in item.loads:
            self.amounts[place.kind, ipu][:, place.number, first:end] -= amounts[:, 0]

    def _with(self, item: _Item, steps: Iterable[int]) -> dict[int, _Priced]:
        """Return what steps that have items take with one more; what is not known all at once."""
        priced, places, unknown = item.priced, list[_Place](), list[int]()
        for step in steps:
            place, known = self.places[step], priced.get(step)
            is_known = known is not None and known.changes == place.changes
            if place.count and not is_known and step != item.step:
                places.append(place)
                unknown.append(step)
        slowest: list[dict[int, Parts]] = [{} for _ in places]
        numbers = [place.number for place in places]
        for ipu, first, end, amounts in item.loads if places else ():
            before = self.amounts[places[0].kind, ipu][:, numbers, first:end]
            of_its_tiles = self._slowest(before + amounts)
            for place, parts, changed in zip(places, of_its_tiles, slowest, strict=True):
                changed[ipu] = tuple(map(max, parts, place.slowest[ipu]))
        for step, place, changed in zip(unknown, places, slowest, strict=True):
            priced[step] = place.priced(place.count + 1, changed)
        return priced

    def _without(self, item: _Item) -> _Priced:
        """Return what an item's step takes without it."""
        place, known = self.places[item.step], item.priced.get(item.step)
        if known is not None and known.changes == place.changes:
            return known
        slowest = {}
        for ipu, first, end, amounts in item.loads:
            before = self.amounts[place.kind, ipu][:, place.number : place.number + 1]
            (of_its_tiles,) = self._slowest(before[:, :, first:end])
            if any(map(operator.eq, of_its_tiles, place.slowest[ipu])):
                rest = before.copy()
                rest[:, :, first:end] -= amounts
                (slowest[ipu],) = self._slowest(rest)
        item.priced[item.step] = place.priced(place.count - 1, slowest)
        return item.priced[item.step]

    def _slowest(self, amounts: Numbers) -> list[Parts]:
        """Return what takes longest of the ranges of tiles in each step."""
        if len(amounts) == 1:
            return [(most,) for most in amounts[0].max(axis=1).tolist()]
        exchanging = np.asarray(exchange_cycles(self.machine, TileTraffic(*amounts[:-2])))
        copying = amounts[-2:].max(axis=2).tolist()
        return list(zip(exchanging.max(axis=1).tolist(), *copying, strict=True))

    # --- where an item may go

    def _choices(self, item: _Item) -> list[int]:
        """Return the steps that an item may be part of, its own one among them."""
        here = item.step
        steps = self.steps_of[self.places[here].kind]
        low, high = steps[0], steps[-1]
        for other in self._ordered_with(item):
            if other.step < here:
                low = max(low, other.step + 1)
            elif other.step > here:
                high = min(high, other.step - 1)
            else:
                return [here]
            if low == high:
                return [here]
        return steps[bisect_left(steps, low) : bisect_right(steps, high)]

    def _ordered_with(self, item: _Item) -> Iterator[_Item]:
        """Yield what an item has to stay before or behind of."""
        for variable in item.reads:
            yield from (x for x in self.writers.get(variable, ()) if x is not item)
        for variable in item.writes:
            yield from self.readers.get(variable, ())
            yield from (x for x in self.writers[variable] if x is not item)

    def _move(self, item: _Item, *, is_late: bool, may_cost: int = 0) -> None:
        """Move an item to where steps take least, if there is room; of equal ones to the latest.

        Not late: to the earliest. `may_cost`: cycles that count as none, so that what leads to the
        item may follow it.
        """
        choices = self._choices(item)
        if len(choices) < 2:
            return
        here = self.places[item.step]
        saved = here.cycles - self._without(item).cycles
        sign = -1 if is_late else 1
        priced = self._with(item, choices)
        dearer = []
        room = [choices[0], choices[-1]]
        for number in reversed(choices) if is_late else choices:
            if not saved and sign * number > sign * item.step:
                return  # from here on none is better than its own
            place = self.places[number]
            if number == item.step or not place.count or not room[0] <= number <= room[1]:
                continue
            added = priced[number].cycles - place.cycles
            change = 0 if 0 < added - saved <= may_cost else added - saved
            if change > -saved:
                dearer.append((change, sign * number))
            elif self._moved(item, number, room):  # no step takes less for it
                return
        for option in sorted(dearer):
            if option > (0, sign * item.step) or self._moved(item, sign * option[1], room):
                return

    def _moved(self, item: _Item, step: int, room: list[int]) -> bool:
        """Move an item to a step, unless there is no room.

        `room`: the first and last step that it may have room at. What is live at a step that it
        passes is the same however far it goes, so that it cannot pass where there is no room.
        """
        if not room[0] <= step <= room[1]:
            return False
        full = self._too_full_at(item, step)
        if full is not None:
            if full != step:
                room[step > item.step] = full
            return False
        self._take(item)
        self._put(item, step)
        return True

    # --- memory

    @property
    def live(self) -> tuple[LiveBytes, Numbers]:
        """What is live at each step, and what may be at most."""
        if self._known_live is None:
            touched = [
                frozenset[s.VariableId]() if isinstance(step, s.Sync) else used(step, self.program)
                for step in self.body.steps
            ]
            tiles = self.machine.chip.tiles_per_ipu
            known = live_bytes_of(self.program, touched, self.owned, tiles)
            live = known.coming.copy()
            live[1:] -= known.going[:-1]
            self._known_live = known, np.cumsum(live, axis=0)
        return self._known_live

    def _too_full_at(self, item: _Item, step: int, *, is_sure: bool = False) -> int | None:
        """Note what is live where an item goes to a step, unless a stretch of tiles gets too full.

        Returns the step where one does, the nearest to the item. `is_sure`: none does.
        """
        known, live = self.live
        changes = []
        for variable in (item.reads | item.writes) & self.owned:
            users = (*self.readers.get(variable, ()), *self.writers.get(variable, ()))
            steps = [x.step for x in users if x is not item]
            before = _live_range([*steps, item.step])
            after = _live_range([*steps, step])
            size = known.sizes[variable]
            changes += [(*steps, size) for steps in _without(after, before)]
            changes += [(*steps, -size) for steps in _without(before, after)]
        if not changes:
            return None
        low = min(begin for begin, _, _ in changes)
        high = max(end for _, end, _ in changes)
        live_before = live[low:high]
        live_after = live_before.copy()
        for begin, end, size in changes:
            live_after[begin - low : end - low] += size
        if not is_sure:
            over = np.flatnonzero((live_after > np.maximum(known.most, live_before)).any(axis=1))
            if len(over):
                return low + int(over[0 if step > item.step else -1])
        live[low:high] = live_after
        return None

    # --- the result

    def _written_out(self) -> Iterator[s.Step]:
        items: dict[int, list[_Item]] = {}
        for item in self.items:
            items.setdefault(item.step, []).append(item)
        syncs: list[s.Sync] = []
        for number, step in enumerate(self.body.steps):
            if isinstance(step, s.Sync):
                syncs.append(step)
                continue
            if number in self.places and number not in items:
                syncs.clear()
                continue
            yield from syncs
            syncs.clear()
            yield self._step(step, items[number]) if number in self.places else step
        yield from syncs

    @staticmethod
    def _step(step: s.Step, items: Iterable[_Item]) -> s.Step:
        if isinstance(step, s.ComputeSet):
            groups = tuple(item.group for item in items if item.group is not None)
            return step if groups == step.groups else s.ComputeSet(groups)
        assert isinstance(step, s.Exchange)
        transfers = tuple(t for item in items for t in item.transfers)
        definitions = tuple(d for item in items for d in item.definitions)
        return replace(step, transfers=transfers, definitions=definitions)


def _live_range(steps: list[int]) -> tuple[int, int]:
    """Return the first of some steps, and the step behind the last one."""
    return min(steps), max(steps) + 1


def _without(a: tuple[int, int], b: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield what an interval has beyond another one that meets it or lies beside it."""
    for begin, end in ((a[0], min(a[1], b[0])), (max(a[0], b[1]), a[1])):
        if begin < end:
            yield begin, end
