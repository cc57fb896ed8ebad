"""Live bytes at each step of a sequence that is being reordered.

Tiles of each IPU are looked at in stretches, each as full as if all its variables lay on one tile.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.program.mapping import Tiles
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import VariableId

STRETCHES = 64
"""Of one IPU. More cost time, fewer take narrow variables on different tiles for ones on the same.
"""
_MOST_STRETCHES = 2 * STRETCHES
"""Of several IPUs together, unless there are more of these."""

Numbers = NDArray[np.int64]


class Message(NamedTuple):
    """Memory that tiles of an IPU need for a transfer, while its exchange lasts."""

    ipu: int
    tiles: Tiles
    size_bytes: int


@dataclass(slots=True)
class LiveBytes:
    """Bytes by step and stretch of tiles: of the steps placed so far, and of what they leave."""

    born: list[list[VariableId]]
    """For each step, in the order before: variables that it is the first to touch."""
    dying: list[list[VariableId]]
    """Variables that it is the last to touch."""
    sizes: Mapping[VariableId, Numbers]
    most: Numbers
    """What each stretch may hold: as at its fullest in the order before, less what is spared."""
    steps: Numbers
    """Bytes at each step placed so far."""
    left: Numbers
    """Bytes that live on after these."""
    coming: Numbers
    """For each step, in the order before: bytes of what it is the first to touch."""
    going: Numbers
    """Bytes of what it is the last to touch."""
    passing: Numbers | None = None
    """Bytes of its messages; None: there are none."""
    stretches: Mapping[int, slice] = field(default_factory=dict)
    """Of each IPU."""
    count: int = 0

    def begun(self, spared: Mapping[int, int]) -> "LiveBytes":
        """Return the same with no step placed.

        `spared`: by IPU, by how many bytes other steps have to stay below the fullest.
        """
        most = self.most.copy()
        for ipu, stretches in self.stretches.items():
            most[stretches] -= spared.get(ipu, 0)
        steps, left = np.zeros_like(self.steps), np.zeros_like(self.left)
        return replace(self, most=most, steps=steps, left=left, count=0)

    def appended(self, number: int) -> None:
        """Place a step behind all others."""
        self.left += self.coming[number]
        self.steps[self.count] = self.left
        if self.passing is not None:
            self.steps[self.count] += self.passing[number]
        self.left -= self.going[number]
        self.count += 1

    def candidates(
        self, number: int, places: Sequence[int], touched: Mapping[VariableId, int]
    ) -> Sequence[int]:
        """Return the places, in order, from which on the step's results find room."""
        if not places or not self.born[number]:
            return places
        for begin, end, added in reversed(self._changes(number, places[0], touched)):
            grows = np.flatnonzero(added > 0)
            if not len(grows):
                continue
            low, high = int(grows[0]), int(grows[-1]) + 1
            live_before = self.steps[begin:end, low:high]
            limit = np.maximum(self.most[low:high], live_before)
            over = np.flatnonzero(np.any(live_before + added[low:high] > limit, axis=1))
            if len(over):
                last = begin + int(over[-1])
                return [place for place in places if place > last]
        return places

    def moved(self, number: int, place: int, touched: Mapping[VariableId, int]) -> bool:
        """Move a step to a candidate step, if there is room for that.

        At that one nothing has died yet, and messages pass.
        """
        live_before = self.steps[place]
        joined = live_before + self.coming[number]
        if self.passing is not None:
            joined += self.passing[number]
        if (joined > np.maximum(self.most, live_before)).any():
            return False
        for begin, end, added in self._changes(number, place, touched):
            self.steps[begin:end] += added
        self.steps[place] = joined
        self.left += self.coming[number] - self.going[number]
        return True

    def _changes(
        self, number: int, first: int, touched: Mapping[VariableId, int]
    ) -> list[tuple[int, int, Numbers]]:
        """Return first step, end and bytes that are added, for a step that joins the first one.

        A variable is free from the step on that touched it last, or that the step itself joins.
        """
        added = self.coming[number]
        changes: list[tuple[int, int, Numbers]] = []
        begin = first
        for variable in sorted(self.dying[number], key=touched.__getitem__):
            end = max(first, touched[variable]) + 1
            if end > begin:
                changes.append((begin, end, added))
                begin = end
            added = added - self.sizes[variable]
        if begin < self.count:
            changes.append((begin, self.count, added))
        return changes


def live_bytes_of(
    program: Program,
    touched: Sequence[frozenset[VariableId]],
    owned: frozenset[VariableId],
    tiles_per_ipu: int,
    messages: Sequence[Sequence[Message]] = (),
) -> LiveBytes:
    """Return the live bytes of a sequence of which no step has been placed.

    `touched`: by each step; `owned`: variables that take memory only within the sequence;
    `messages`: of each step.
    """
    first: dict[VariableId, int] = {}
    last: dict[VariableId, int] = {}
    for number, variables in enumerate(touched):
        for variable in variables & owned:
            first.setdefault(variable, number)
            last[variable] = number
    born: list[list[VariableId]] = [[] for _ in touched]
    dying: list[list[VariableId]] = [[] for _ in touched]
    passing_ipus = {message.ipu for step_messages in messages for message in step_messages}
    ipus = sorted(passing_ipus | {program.variables[variable].ipu for variable in first})
    stretches_per_ipu = min(STRETCHES, max(1, _MOST_STRETCHES // max(1, len(ipus))))
    begins = {ipu: n * stretches_per_ipu for n, ipu in enumerate(ipus)}
    count = stretches_per_ipu * max(1, len(ipus))
    sizes: dict[VariableId, Numbers] = {}
    kinds: dict[tuple[int, str, int], tuple[int, Numbers]] = {}
    """Sizes of variables that are alike, numbered: the places of a channel are many."""
    kind_of: list[int] = []
    for variable, number in first.items():
        record = program.variables[variable]
        key = id(record.mapping), record.element_type, record.ipu
        numbered = kinds.get(key)
        if numbered is None:
            filled = np.zeros(count, np.int64)
            low, high = _stretches(record.mapping.tiles, tiles_per_ipu, stretches_per_ipu)
            filled[begins[record.ipu] + low : begins[record.ipu] + high] = record.bytes_per_tile
            numbered = kinds[key] = len(kinds), filled
        kind_of.append(numbered[0])
        sizes[variable] = numbered[1]
        born[number].append(variable)
        dying[last[variable]].append(variable)
    every = [filled for _, filled in kinds.values()]
    coming = _summed(len(touched), count, list(first.values()), kind_of, every)
    going = _summed(len(touched), count, [last[v] for v in first], kind_of, every)
    live = coming.copy()
    live[1:] -= going[:-1]
    np.cumsum(live, axis=0, out=live)
    passing = np.zeros_like(live) if passing_ipus else None
    if passing is not None:
        for number, step_messages in enumerate(messages):
            for message in step_messages:
                low, high = _stretches(message.tiles, tiles_per_ipu, stretches_per_ipu)
                begin = begins[message.ipu]
                passing[number, begin + low : begin + high] += message.size_bytes
        live += passing
    most = live.max(axis=0, initial=0)
    stretches = {ipu: slice(begin, begin + stretches_per_ipu) for ipu, begin in begins.items()}
    steps = np.zeros((len(touched), count), np.int64)
    left = np.zeros(count, np.int64)
    return LiveBytes(born, dying, sizes, most, steps, left, coming, going, passing, stretches)


def _summed(
    steps: int, stretches: int, numbers: list[int], kind_of: list[int], kinds: list[Numbers]
) -> Numbers:
    """Return by step the bytes of variables, of which each has its step's number and a kind."""
    bytes_by_step = np.zeros((steps, stretches), np.int64)
    for (number, kind), times in Counter(zip(numbers, kind_of, strict=True)).items():
        bytes_by_step[number] += kinds[kind] if times == 1 else times * kinds[kind]
    return bytes_by_step


def _stretches(grid: Tiles, tiles_per_ipu: int, stretches: int) -> tuple[int, int]:
    first = grid.first * stretches // max(1, tiles_per_ipu)
    last = grid.last * stretches // max(1, tiles_per_ipu)
    return first, min(last + 1, stretches)
