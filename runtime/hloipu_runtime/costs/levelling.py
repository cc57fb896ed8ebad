"""Moves vertices and copies to supersteps where the slowest tile waits less for them.

Merging puts each step as early as it can go. But a compute set lasts as long as its slowest tile,
an exchange too, so that what nothing waits for, as a bias's gradient beside a chain of products,
had better go where another tile is slowest anyway: the levelling of resources in networks of
activities, one activity after the other from the last one on (Burgess and Killebrew 1962: Variation
in activity level on a cyclical arrow diagram, Journal of Industrial Engineering 13).

There are no more steps than before, and no stretch of tiles gets fuller than it was at its fullest.
Nothing moves past a loop or a branch.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.costs.supersteps import Item, Supersteps
from hloipu_runtime.machine.costs import beginning, sync
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

    return program.with_sequences(changed)


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
        self.program, self.machine, self.body = program, machine, body
        self.owned = owned
        self.supersteps = Supersteps(program, machine, forms)
        self.items: list[Item] = []
        self.readers: dict[s.VariableId, list[Item]] = {}
        self.writers: dict[s.VariableId, list[Item]] = {}
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
                self.supersteps.add(number, kind, stretch, cycles)
                self.items += self._items(number, step)
            else:
                if not isinstance(step, s.StreamIn | s.StreamOut | s.ComputeSet | s.Exchange):
                    stretch = number + 1
                touched, writes = used(step, self.program), written(step, self.program)
                self.items.append(Item(number, touched, writes))
            syncs.clear()
        for item in self.items:
            for variable in item.reads - item.writes:
                self.readers.setdefault(variable, []).append(item)
            for variable in item.writes:
                self.writers.setdefault(variable, []).append(item)

    def _items(self, number: int, step: s.Step) -> Iterator[Item]:
        if isinstance(step, s.ComputeSet):
            for group in step.groups:
                reads = frozenset(operand.variable for operand in group.inputs)
                writes = frozenset(operand.variable for operand in group.outputs)
                yield Item(number, reads, writes, group)
        elif isinstance(step, s.Exchange):
            transfers: dict[s.VariableId, list[s.Transfer]] = {}
            for transfer in step.transfers:
                transfers.setdefault(transfer.destination, []).append(transfer)
            definitions: dict[s.VariableId, list[s.Definition]] = {v: [] for v in transfers}
            for definition in step.definitions:
                definitions.setdefault(definition.variable, []).append(definition)
            for variable, defined in definitions.items():
                bringing = tuple(transfers.get(variable, ()))
                yield Item(
                    number,
                    frozenset(transfer.source for transfer in bringing),
                    frozenset((variable,)),
                    None,
                    bringing,
                    tuple(defined),
                )

    def sequence(self) -> s.Sequence:
        """Return the sequence with its items moved; the same one where no cycles are saved."""
        stretches: dict[int, list[Item]] = {}
        for item in self.items:
            place = self.supersteps.places.get(item.step)
            if place is not None and len(self.supersteps.of_kind[place.kind]) > 1:
                stretches.setdefault(place.stretch, []).append(item)
        changed = [self._level(items) for items in stretches.values()]
        return s.Sequence(tuple(self._written_out())) if any(changed) else self.body

    def _level(self, items: list[Item]) -> bool:
        """Move the items of a stretch; return whether that saves cycles."""
        movable = [item for item in items if self._may_move(item)]
        if not any(len(self._choices(item)) > 1 for item in movable):
            return False
        self.supersteps.load(items)
        places = [self.supersteps.places[number] for number in {item.step: None for item in items}]
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
        self.supersteps.amounts.clear()
        for item in items:
            item.loads.clear()
            item.priced.clear()
        return best != before

    def _may_move(self, item: Item) -> bool:
        """Whether an item takes nothing between IPUs, where links count too."""
        ipu_of_variable = self.program.variables
        return all(
            ipu_of_variable[x.source].ipu == ipu_of_variable[x.destination].ipu
            for x in item.transfers
        )

    # --- where an item may go

    def _choices(self, item: Item) -> list[int]:
        """Return the steps that an item may be part of, its own one among them."""
        here = item.step
        steps = self.supersteps.of_kind[self.supersteps.places[here].kind]
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

    def _ordered_with(self, item: Item) -> Iterator[Item]:
        """Yield what an item has to stay before or behind of."""
        for variable in item.reads:
            yield from (x for x in self.writers.get(variable, ()) if x is not item)
        for variable in item.writes:
            yield from self.readers.get(variable, ())
            yield from (x for x in self.writers[variable] if x is not item)

    def _move(self, item: Item, *, is_late: bool, may_cost: int = 0) -> None:
        """Move an item to where steps take least, if there is room; of equal ones to the latest.

        Not late: to the earliest. `may_cost`: cycles that count as none, so that what leads to the
        item may follow it.
        """
        choices = self._choices(item)
        if len(choices) < 2:
            return
        here = self.supersteps.places[item.step]
        saved = here.cycles - self.supersteps.priced_without(item).cycles
        sign = -1 if is_late else 1
        priced = self.supersteps.priced_with(item, choices)
        dearer = []
        room = [choices[0], choices[-1]]
        for number in reversed(choices) if is_late else choices:
            if not saved and sign * number > sign * item.step:
                return  # from here on none is better than its own
            place = self.supersteps.places[number]
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

    def _moved(self, item: Item, step: int, room: list[int]) -> bool:
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
        self.supersteps.take(item)
        self.supersteps.put(item, step)
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

    def _too_full_at(self, item: Item, step: int, *, is_sure: bool = False) -> int | None:
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
        items: dict[int, list[Item]] = {}
        for item in self.items:
            items.setdefault(item.step, []).append(item)
        syncs: list[s.Sync] = []
        for number, step in enumerate(self.body.steps):
            if isinstance(step, s.Sync):
                syncs.append(step)
                continue
            if number in self.supersteps.places and number not in items:
                syncs.clear()
                continue
            yield from syncs
            syncs.clear()
            yield self._step(step, items[number]) if number in self.supersteps.places else step
        yield from syncs

    @staticmethod
    def _step(step: s.Step, items: Iterable[Item]) -> s.Step:
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
