"""Cycles of supersteps while levelling moves vertices and copies between them, from tile loads.

An item is what moves as one. Tiles with the same items in a stretch of steps are one column:
dozens in place of thousands. All steps that an item may go to are priced at once.
"""

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.costs.computing import group_cost, ipu_of
from hloipu_runtime.costs.exchanging import tile_loads
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.costs.loads import Load
from hloipu_runtime.machine.costs import TileTraffic, exchange_cycles
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.program import Program

Numbers = NDArray[np.int64]
Parts = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Item:
    """A vertex group, or what an exchange brings to one variable; else a step that stays."""

    step: int
    reads: frozenset[s.VariableId]
    writes: frozenset[s.VariableId]
    group: s.VertexGroup | None = None
    transfers: tuple[s.Transfer, ...] = ()
    definitions: tuple[s.Definition, ...] = ()
    loads: list["_Loads"] = field(default_factory=list)
    """One for each IPU."""
    priced: dict[int, "Priced"] = field(default_factory=dict)
    """By step: what it takes with the item; of its own step, what that takes without."""


class _Loads(NamedTuple):
    """What tiles have to do, a column of amounts for each range of them, `first` to before `end`.

    Ranges are those that no item of a stretch tells apart: dozens, not a tile each.
    """

    ipu: int
    first: int
    end: int
    amounts: Numbers


class Priced(NamedTuple):
    """What a step would take with an item, or without, if it has changed so often as it had."""

    changes: int
    cycles: int
    slowest: dict[int, Parts]
    """On the IPUs of the item."""


@dataclass(slots=True)
class Place:
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

    def priced(self, count: int, slowest: dict[int, Parts]) -> Priced:
        """Return what so many items take, on some IPUs with other slowest ones than now."""
        parts: Iterable[Parts] = zip(*(self.slowest | slowest).values(), strict=True)
        cycles = self.sync_cycles + sum(map(max, parts)) if count else 0
        return Priced(self.changes, cycles, slowest)

    def change(self, count: int, priced: Priced) -> None:
        """Have so many items, as they are priced."""
        self.slowest |= priced.slowest
        self.count, self.cycles = count, priced.cycles
        self.changes += 1


class Supersteps:
    """The steps of one sequence that items may be moved between."""

    def __init__(self, program: Program, machine: Machine, forms: Forms) -> None:
        self.program, self.machine, self.forms = program, machine, forms
        self.places: dict[int, Place] = {}
        """By number of the step."""
        self.of_kind: dict[str, list[int]] = {}
        """Numbers of the steps of each kind."""
        self.amounts: dict[tuple[str, int], Numbers] = {}
        """By kind and IPU: rows as those of items, of each step, by range of tiles."""

    def add(self, step: int, kind: str, stretch: int, sync_cycles: int) -> None:
        """Note a step that has no items yet."""
        alike = self.of_kind.setdefault(kind, [])
        self.places[step] = Place(kind, stretch, sync_cycles, len(alike))
        alike.append(step)

    def load(self, items: Iterable[Item]) -> None:
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
                    shape = len(amounts), len(self.of_kind[place.kind]), len(range_at[ipu]) - 1
                    self.amounts[place.kind, ipu] = np.zeros(shape, np.int64)
                self.amounts[place.kind, ipu][:, place.number, first:end] += amounts[:, 0]
        for (kind, ipu), of_steps in self.amounts.items():
            slowest = self._slowest(of_steps)
            for step, parts in zip(self.of_kind[kind], slowest, strict=True):
                self.places[step].slowest[ipu] = parts
        for kind in dict.fromkeys(self.places[item.step].kind for item, _ in loads):
            for step in self.of_kind[kind]:
                place = self.places[step]
                place.cycles = place.priced(place.count, {}).cycles

    def _loads_of(self, item: Item) -> Iterator[tuple[int, Load]]:
        """Yield what an item asks of the tiles of each IPU."""
        group = item.group
        if group is None:
            yield from tile_loads(self.program, item.transfers, self.machine, self.forms)
            return
        cycles = group_cost(self.program, group, self.machine).work.cycles
        yield ipu_of(self.program, group), Load(group.tiles.first, group.tiles.last, (cycles,))

    def put(self, item: Item, step: int) -> None:
        """Let an item that is in none be part of a step."""
        place = self.places[step]
        place.change(place.count + 1, self.priced_with(item, (step,))[step])
        for ipu, first, end, amounts in item.loads:
            self.amounts[place.kind, ipu][:, place.number, first:end] += amounts[:, 0]
        item.step = step

    def take(self, item: Item) -> None:
        """Take an item out of its step."""
        place = self.places[item.step]
        place.change(place.count - 1, self.priced_without(item))
        for ipu, first, end, amounts in item.loads:
            self.amounts[place.kind, ipu][:, place.number, first:end] -= amounts[:, 0]

    def priced_with(self, item: Item, steps: Iterable[int]) -> dict[int, Priced]:
        """Return what steps that have items take with one more; what is not known all at once."""
        priced, places, unknown = item.priced, list[Place](), list[int]()
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

    def priced_without(self, item: Item) -> Priced:
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
