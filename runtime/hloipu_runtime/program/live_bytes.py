"""Bytes that are live at each step of a sequence, while its steps are being moved.

Tiles of each IPU are looked at in stretches, each as full as if all its variables lay on one tile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.program.program import Program, Variable
from hloipu_runtime.program.steps import VariableId

STRETCHES = 64
"""Of one IPU. More cost time, fewer take narrow variables on different tiles for ones on the same.
"""
_MOST_STRETCHES = 2 * STRETCHES
"""Of several IPUs together, unless there are more of these."""

Numbers = NDArray[np.int64]


@dataclass(slots=True)
class LiveBytes:
    """Bytes by step and stretch of tiles: of the steps placed so far, and of what they leave."""

    born: list[list[VariableId]]
    """For each step, in the order before: variables that it is the first to touch."""
    dying: list[list[VariableId]]
    """Variables that it is the last to touch."""
    sizes: Mapping[VariableId, Numbers]
    most: Numbers
    """What each stretch held at its fullest, in the order before."""
    steps: Numbers
    """Bytes at each step placed so far."""
    left: Numbers
    """Bytes that live on after these."""
    count: int = 0

    def appended(self, number: int) -> None:
        """Place a step behind all others."""
        self.left += self._sum(self.born[number])
        self.steps[self.count] = self.left
        self.left -= self._sum(self.dying[number])
        self.count += 1

    def candidates(
        self, number: int, places: Sequence[int], touched: Mapping[VariableId, int]
    ) -> Sequence[int]:
        """Return the places, in order, from which on the step's results find room."""
        if not places or not self.born[number]:
            return places
        first = places[0]
        fuller = self.steps[first : self.count] + self._sum(self.born[number])
        for variable in self.dying[number]:
            # Free from the step on that touched it last, or that the step itself joins.
            after = max(first, touched[variable]) + 1 - first
            fuller[after:] -= self.sizes[variable]
        over = np.flatnonzero(np.any(fuller > self.most, axis=1))
        if not len(over):
            return places
        last = first + int(over[-1])
        return [place for place in places if place > last]

    def moved(self, number: int, place: int, touched: Mapping[VariableId, int]) -> bool:
        """Let a step join another, if there is room for that."""
        changed = self.steps[place : self.count] + self._sum(self.born[number])
        for variable in self.dying[number]:
            changed[max(place, touched[variable]) + 1 - place :] -= self.sizes[variable]
        if (changed > self.most).any():
            return False
        self.steps[place : self.count] = changed
        self.left += self._sum(self.born[number]) - self._sum(self.dying[number])
        return True

    def _sum(self, variables: Sequence[VariableId]) -> Numbers:
        total = np.zeros(len(self.most), np.int64)
        for variable in variables:
            total += self.sizes[variable]
        return total


def live_bytes_of(
    program: Program,
    touched: Sequence[frozenset[VariableId]],
    owned: frozenset[VariableId],
    tiles_per_ipu: int,
) -> LiveBytes:
    """Return the live bytes of a sequence of which no step has been placed.

    `touched`: by each step; `owned`: variables that take memory only within the sequence.
    """
    first: dict[VariableId, int] = {}
    last: dict[VariableId, int] = {}
    for number, variables in enumerate(touched):
        for variable in variables & owned:
            first.setdefault(variable, number)
            last[variable] = number
    born: list[list[VariableId]] = [[] for _ in touched]
    dying: list[list[VariableId]] = [[] for _ in touched]
    ipus = sorted({program.variables[variable].ipu for variable in first})
    each = min(STRETCHES, max(1, _MOST_STRETCHES // max(1, len(ipus))))
    begins = {ipu: n * each for n, ipu in enumerate(ipus)}
    count = each * max(1, len(ipus))
    change = np.zeros((len(touched) + 1, count), np.int64)
    sizes: dict[VariableId, Numbers] = {}
    for variable in first:
        record = program.variables[variable]
        begin = begins[record.ipu]
        sizes[variable] = np.zeros(count, np.int64)
        sizes[variable][begin : begin + each] = _sizes(record, tiles_per_ipu, each)
        born[first[variable]].append(variable)
        dying[last[variable]].append(variable)
        change[first[variable]] += sizes[variable]
        change[last[variable] + 1] -= sizes[variable]
    most = np.cumsum(change, axis=0).max(axis=0)
    steps = np.zeros((len(touched), count), np.int64)
    return LiveBytes(born, dying, sizes, most, steps, np.zeros(count, np.int64))


def _sizes(record: Variable, tiles_per_ipu: int, stretches: int) -> Numbers:
    """Return the bytes of a variable on each stretch of its IPU's tiles that it touches."""
    grid = record.mapping.tiles
    found = np.zeros(stretches, np.int64)
    first = grid.first * stretches // max(1, tiles_per_ipu)
    last = grid.last * stretches // max(1, tiles_per_ipu)
    found[first : last + 1] = record.bytes_per_tile
    return found
