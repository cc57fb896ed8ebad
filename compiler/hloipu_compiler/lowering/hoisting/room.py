"""Decides which copies are made before loops, and measures the room for them."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.lowering.hoisting.blocks import OUTSIDE, Blocks
from hloipu_compiler.lowering.hoisting.copies import Copy, copies_of
from hloipu_compiler.lowering.hoisting.sinking import Kept, Sunk, places_of, sunk
from hloipu_compiler.planners.hoisting import Item, chosen_items
from hloipu_compiler.planners.planned import HoistedCopy
from hloipu_runtime.element_types import shape_text
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.liveness import Liveness, liveness_of
from hloipu_runtime.memory.plan import MemoryPlan, available_bytes, kept_bytes
from hloipu_runtime.memory.regions import Region
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import VariableId
from hloipu_runtime.watching import telling

Numbers = NDArray[np.int64]
_TRIES = 3
"""Times that copies are chosen, each time for as much less room as the memory plan lacked."""
_MOST_MOMENTS = 1024
"""Of one IPU, to be told apart by the copies that are live: choosing takes time for each."""


class _Kept(NamedTuple):
    """A copy that is live throughout a loop, or loaded."""

    copy: Copy
    loops: tuple[int, ...]
    """That it is kept for: one, or all where it is loaded."""
    saved_cycles: int
    size_bytes: int
    within: frozenset[int]
    """These loops and those within them, but for loops that it is kept for already."""
    needs: tuple[int, ...]
    """Numbers of the same copy throughout the loops within it in which it is read."""


class _Moments(NamedTuple):
    """Points in one loop, outside of the loops within it, at which the same copies are live."""

    loop: int
    copies: frozenset[VariableId]


class Hoisting(NamedTuple):
    """A program with copies made before loops or in them."""

    program: Program
    """With its steps merged."""
    kept: Kept
    """Copies, and the loops that they are live throughout."""
    memory: MemoryPlan | None = None
    """Of the program, if it was asked for."""
    before: Program | None = None
    """The program before its steps were merged."""
    alone: frozenset[VariableId] = frozenset()
    """Variables that steps of their own write."""
    is_draft: bool = False
    """Whether copies that there may be room for are left in loops."""


class Draft(NamedTuple):
    """A program that lacks memory without copies before loops, and what makes others of it."""

    hoister: "Hoister"
    hoisting: Hoisting
    """With as few steps merged as memory asks for."""


class Hoister:
    """Makes copies of a lowered program before loops or in them.

    `computing` is the machine without the tiles of streams. `join` merges the steps of a program,
    but for those that write some variables; `plan` plans its memory then, without addresses, and
    may move what other steps do.
    """

    def __init__(
        self,
        program: Program,
        machine: Machine,
        computing: Machine,
        join: Callable[[Program, frozenset[VariableId]], Program],
        plan: Callable[[Program, frozenset[VariableId]], MemoryPlan],
    ) -> None:
        self.program = program
        self.machine = machine
        self.computing = computing
        self.join = join
        self.plan = plan
        self.available_bytes: int = available_bytes(machine)
        self.tile_count: int = machine.chip.tiles_per_ipu
        self.blocks: Blocks = Blocks(program)
        self.copies: list[Copy] = copies_of(program, computing, self.blocks)

    def by(self, option: str, *, is_draft: bool = False) -> Hoisting:
        """Return the program with copies as an option says: `all`, `none` or `auto`.

        A draft that lacks memory has none before loops.
        """
        match option:
            case "all":
                return self.all()
            case "none":
                return self.none()
            case _:
                return self.within_room(is_draft=is_draft)

    def all(self) -> Hoisting:
        """Return the program with every copy before the loops that do not change it."""
        every = {
            (copy.variable, loop)
            for copy in self.copies
            for loop in (*self.loops_of(copy), OUTSIDE)
        }
        return Hoisting(self.join(self.program, frozenset()), every, before=self.program)

    def none(self) -> Hoisting:
        """Return the program with every copy right before the ops that read it."""
        return self.with_kept(())

    @cached_property
    def planned_none(self) -> Hoisting:
        """The program with every copy right before the ops that read it, and its memory plan."""
        return self._planned(self.none())

    def within_room(self, *, is_draft: bool = False) -> Hoisting:
        """Return the program with as many copies before loops as there is room for.

        The one with all of them, if that fits. Else those go first that save most cycles for a
        free byte. Where the memory plan lacks bytes all the same, it is done again with so many
        less; at last no copy is made before loops.
        """
        options = self._options
        if not any(options):
            return self.all()
        if is_draft and self.planned_none.memory is not None and not self.planned_none.memory.fits:
            return self.planned_none._replace(is_draft=True)
        if self._may_fit(options):
            every = self._planned(self.all(), places_all=False)
            if every.memory is not None and every.memory.fits:
                return every
        return self.where_free()

    def where_free(self) -> Hoisting:
        """Return the same where all copies together have no room, as in a draft that lacks memory.

        A copy that may be kept takes more than the code to make it again.
        """
        options, none = self._options, self.planned_none
        needed = _needed_bytes(none)
        most = [max(self.available_bytes, int(of_tiles.max())) for of_tiles in needed]
        rooms = self._rooms(needed)
        for _ in range(_TRIES):
            kept = {
                (options[ipu][n].copy.variable, loop)
                for ipu, (moments, free) in enumerate(rooms)
                for n in chosen_items(list(self._items(options[ipu], moments)), free)
                for loop in options[ipu][n].loops
            }
            if not kept:
                break
            hoisting = self._planned(self.with_kept(kept))
            lacking = [
                np.maximum(0, of_tiles - limit)
                for of_tiles, limit in zip(_needed_bytes(hoisting), most, strict=True)
            ]
            if not any(map(np.any, lacking)):
                return hoisting
            for (_, free), missing in zip(rooms, lacking, strict=True):
                free -= missing
        return none

    def _may_fit(self, options: Sequence[Sequence[_Kept]]) -> bool:
        """Whether all copies alone that are live at once in a loop have room."""
        for kept in options:
            taken = np.zeros((len(self.blocks.loops) + 1, self.tile_count), np.int64)
            for x in kept:
                variable = self.program.variables[x.copy.variable]
                for loop in x.within:
                    taken[loop, variable.mapping.tiles.numbers] += variable.bytes_per_tile
            if taken.max() > self.available_bytes:
                return False
        return True

    def with_kept(self, kept: Kept) -> Hoisting:
        """Return the program with copies before the loops that they are kept for."""
        sunk = self._sunk(kept)
        alone = frozenset(sunk.copies)
        joined = self.join(sunk.program, alone)
        return Hoisting(joined, kept, before=sunk.program, alone=alone)

    def _sunk(self, kept: Kept) -> Sunk:
        return sunk(self.program, self.computing, self.blocks, self.copies, kept)

    def _planned(self, hoisting: Hoisting, *, places_all: bool = True) -> Hoisting:
        """Return the same with the memory plan; or addresses only where it may fit."""
        telling("room for copies before loops")
        memory = self.plan(hoisting.program, hoisting.alone)
        if places_all or memory.fits:
            memory = memory.placed()
        return hoisting._replace(program=memory.program, memory=memory)

    def loops_of(self, copy: Copy) -> list[int]:
        """Return the loops that a copy could be kept for, inner ones first.

        OUTSIDE, the last one, stands for the whole program, with which it is loaded.
        """
        loops = {
            loop for place in copy.readers for loop in self.blocks.loops_between(copy.block, place)
        }
        return sorted(loops, reverse=True) + [OUTSIDE] * (copy.block == OUTSIDE)

    @cached_property
    def _options(self) -> list[list[_Kept]]:
        return [list(self._options_on(ipu)) for ipu in range(self.program.ipus)]

    def _options_on(self, ipu: int) -> Iterator[_Kept]:
        """Yield what could be kept on an IPU, in an order in which inner loops come first."""
        number, blocks = 0, self.blocks
        for copy in self.copies:
            variable = self.program.variables[copy.variable]
            if variable.ipu != ipu:
                continue
            size, loops = kept_bytes(variable, self.machine), self.loops_of(copy)
            if copy.block == OUTSIDE:
                saved = copy.cycles * self._readings(copy)
                everywhere = frozenset(blocks.within(OUTSIDE))
                size = max(0, size - copy.code_bytes)
                yield _Kept(copy, tuple(loops), saved, size, everywhere, ())
                number += 1
                continue
            numbers: dict[int, int] = {}
            for loop in loops:
                inner = [x for x in numbers if blocks.loops[x].around == loop]
                executions = sum(blocks.entries(x) for x in inner) + sum(
                    blocks.blocks[place.block].executions
                    for place in copy.readers
                    if blocks.blocks[place.block].loop == loop
                )
                saved = copy.cycles * (executions - blocks.entries(loop))
                within = frozenset(blocks.within(loop)).difference(*map(blocks.within, inner))
                yield _Kept(copy, (loop,), saved, size, within, tuple(numbers[x] for x in inner))
                numbers[loop] = number
                number += 1

    def _readings(self, copy: Copy) -> int:
        return sum(self.blocks.blocks[place.block].executions for place in copy.readers)

    def _items(self, options: Sequence[_Kept], moments: Sequence[_Moments]) -> Iterator[Item]:
        """Yield what could be kept, and at which moments it takes memory that it did not take."""
        for x in options:
            variable = self.program.variables[x.copy.variable]
            yield Item(
                x.saved_cycles,
                x.size_bytes,
                variable.mapping.tiles.numbers.ravel(),
                tuple(
                    n
                    for n, at in enumerate(moments)
                    if at.loop in x.within and x.copy.variable not in at.copies
                ),
                x.needs,
            )

    def _rooms(self, needed: Sequence[Numbers]) -> list[tuple[list[_Moments], Numbers]]:
        """Return what is free on each IPU if all copies are made where they are read.

        By moments and tile. `needed`: bytes of each tile in all; what is not live variables, that
        is code and gaps between variables, is never free.
        """
        sunk = self._sunk(())
        liveness = liveness_of(sunk.program)
        spans = _spans(sunk.program, liveness)
        rooms = []
        for ipu, taken in enumerate(needed):
            fullest = _fullest(sunk, self.machine, ipu, liveness, spans)
            live = np.array(list(fullest.values()))
            free = self.available_bytes - live - np.maximum(0, taken - live.max(axis=0))
            rooms.append((list(fullest), free))
        return rooms

    def records(self, hoisting: Hoisting) -> list[HoistedCopy]:
        """Return what was decided of each copy, for people."""
        records = []
        for copy in self.copies:
            variable = self.program.variables[copy.variable]
            records.append(
                HoistedCopy(
                    self.program.values[copy.value].origin,
                    variable.origin,
                    shape_text(variable.element_type, variable.shape),
                    variable.mapping.tiles.count,
                    variable.bytes_per_tile,
                    self._readings(copy),
                    copy.cycles,
                    not places_of(copy, self.blocks, hoisting.kept),
                )
            )
        return records

    def summary(self, hoisting: Hoisting) -> dict[str, int]:
        """Return how much of the copies is made before loops; nothing where all of it is.

        Bytes are those of the fullest tile, if all of them were live at once.
        """
        tiles = np.zeros((2, self.program.ipus, self.tile_count), np.int64)
        records = self.records(hoisting)
        for copy, record in zip(self.copies, records, strict=True):
            variable = self.program.variables[copy.variable]
            for row in (0, 1) if record.is_hoisted else (0,):
                tiles[row, variable.ipu, variable.mapping.tiles.numbers] += record.bytes_per_tile
        hoisted = sum(x.is_hoisted for x in records)
        if hoisted == len(records):
            return {}
        return {
            "copies": len(records),
            "hoisted": hoisted,
            "bytes_per_tile": int(tiles[0].max()),
            "hoisted_bytes_per_tile": int(tiles[1].max()),
        }


def _needed_bytes(hoisting: Hoisting) -> list[Numbers]:
    ipus = hoisting.memory.ipus if hoisting.memory is not None else ()
    return [ipu.needed_bytes[ipu.classes.of_tile] for ipu in ipus]


def _fullest(
    sunk: Sunk,
    machine: Machine,
    ipu: int,
    liveness: Liveness,
    spans: Sequence[tuple[int, int, int]],
) -> dict[_Moments, Numbers]:
    """Return the most bytes of an IPU's variables that are live at once, by tile."""
    changes: dict[int, list[tuple[VariableId, int]]] = {0: []}
    variables = sunk.program.variables
    for number, variable in enumerate(variables):
        if variable.ipu == ipu:
            for first, last in liveness.ranges[number]:
                changes.setdefault(first, []).append((number, 1))
                changes.setdefault(last + 1, []).append((number, -1))
    for first, last, _ in spans:
        changes.setdefault(first, [])
        changes.setdefault(last + 1, [])
    live = np.zeros(machine.chip.tiles_per_ipu, np.int64)
    most: dict[_Moments, Numbers] = {}
    copies: set[VariableId] = set()
    innermost = _Innermost(spans)
    for point in sorted(changes):
        for number, sign in changes[point]:
            variable = variables[number]
            live[variable.mapping.tiles.numbers] += sign * kept_bytes(variable, machine)
            if sunk.copies.get(number) is not None:
                copies ^= {number}
        if point < liveness.points:
            kept_copies = frozenset(sunk.copies[x] for x in copies)
            at = _Moments(innermost.at(point), kept_copies)
            most[at] = np.maximum(most[at], live) if at in most else live.copy()
    return most if len(most) <= _MOST_MOMENTS else _by_loop(most)


def _by_loop(moments: Mapping[_Moments, Numbers]) -> dict[_Moments, Numbers]:
    """Return the most bytes of all moments of each loop together."""
    most: dict[_Moments, Numbers] = {}
    for (loop, _), live in moments.items():
        at = _Moments(loop, frozenset())
        most[at] = np.maximum(most[at], live) if at in most else live
    return most


class _Innermost:
    """Tells in which loop a point is."""

    def __init__(self, spans: Sequence[tuple[int, int, int]]) -> None:
        self.starts: list[int] = []
        self.loops: list[int] = []
        open_ones: list[tuple[int, int]] = []
        for first, last, loop in sorted(spans, key=lambda x: (x[0], -x[1])):
            self._close(open_ones, first)
            self._add(first, loop)
            open_ones.append((last, loop))
        self._close(open_ones, None)

    def _close(self, open_ones: list[tuple[int, int]], point: int | None) -> None:
        while open_ones and (point is None or open_ones[-1][0] < point):
            last, _ = open_ones.pop()
            self._add(last + 1, open_ones[-1][1] if open_ones else OUTSIDE)

    def _add(self, point: int, loop: int) -> None:
        self.starts.append(point)
        self.loops.append(loop)

    def at(self, point: int) -> int:
        """Return the innermost loop at a point, OUTSIDE where there is none."""
        number = bisect_right(self.starts, point) - 1
        return self.loops[number] if number >= 0 else OUTSIDE


def _spans(program: Program, liveness: Liveness) -> list[tuple[int, int, int]]:
    """Return first and last point and number of each loop."""
    numbers = {id(loop.step): n for n, loop in enumerate(Blocks(program).loops)}
    return list(_spans_within(liveness.region, numbers, 0))


def _spans_within(
    region: Region, numbers: Mapping[int, int], base: int
) -> Iterator[tuple[int, int, int]]:
    for item in region.items:
        inner = dict(numbers)
        point = base + item.offset
        loop = inner.pop(id(item.step), None) if item.children else None
        if loop is not None:
            yield point, point + item.length - 1, loop
        for _, child in item.children:
            yield from _spans_within(child, inner, point)
            point += child.length
