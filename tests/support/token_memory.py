"""Memory of tiles that holds tokens: each element of each value that a run makes has its own."""

from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.program.program import Program, Variable
from tests.support.counted_parts import Ranges, cut, part_of, tiles_of

Tokens = np.ndarray[Any, Any]

NOTHING = -1
"""Token of memory that was not written."""

UNMADE = -3
"""Stands for the elements of a value that was not made: no memory holds it."""

ON_NO_TILE = -2
"""Stands for elements that no tile holds."""

MOST_REPORTS = 50


class TokenMemory:
    """What every tile holds of every variable, and which tokens values have now."""

    def __init__(self, program: Program, strict: bool) -> None:
        self.program = program
        self.strict = strict
        self.reports: list[str] = []
        self.next = 0
        self.base: dict[int, int] = {}
        """First token of what a value is now."""
        self.memory: dict[tuple[int, int], tuple[Ranges, Tokens]] = {}
        """(variable, tile) -> the part that lies there, and its tokens."""
        for number, x in enumerate(program.variables):
            for coordinate, tile in tiles_of(x.mapping.tiles):
                box = part_of(x.mapping.spans, coordinate, x.shape)
                shape = [high - low for low, high in box]
                self.memory[number, tile] = (box, np.full(shape, NOTHING, np.int64))
        self._parts: dict[int, list[tuple[Ranges, Tokens]]] = {}

    def report(self, said: str) -> None:
        if len(self.reports) < MOST_REPORTS:
            self.reports.append(said)

    def fresh(self, value: int) -> None:
        """Give a value new tokens."""
        self.base[value] = self.next
        self.next += max(1, prod(self.program.values[value].shape))

    def tokens(self, value: int, box: Ranges | None = None) -> Tokens:
        """Return the tokens of a value's elements in a box, or of all."""
        shape = self.program.values[value].shape
        ranges = box if box is not None else tuple((0, n) for n in shape)
        base = self.base.get(value)
        if base is None:
            return np.full([high - low for low, high in ranges], UNMADE, np.int64)
        found = np.full((), base, np.int64)
        stride = prod(shape)
        for size, (low, high) in zip(shape, ranges, strict=True):
            stride //= max(size, 1)
            found = found[..., None] + np.arange(low, high, dtype=np.int64) * stride
        return found

    def parts(self, variable: int) -> list[tuple[Ranges, Tokens]]:
        """Return what all tiles hold; of tiles that hold the same the one that is read comes last.

        That is the tile with the lowest numbers along axes that replicate, and of parts that
        overlap the last.
        """
        if variable not in self._parts:
            x: Variable = self.program.variables[variable]
            split = {span.axis for span in x.mapping.spans}
            places = sorted(
                tiles_of(x.mapping.tiles),
                key=lambda place: [k if a in split else -k for a, k in enumerate(place[0])],
            )
            self._parts[variable] = [self.memory[variable, tile] for _, tile in places]
        return self._parts[variable]

    def fill(self, variable: int, value: int) -> None:
        """Put a new value on all tiles of a variable."""
        self.fresh(value)
        self.load(variable, value)

    def load(self, variable: int, value: int) -> None:
        """Put a value, a new one if there is none yet, on all tiles of a variable."""
        if value not in self.base:
            self.fresh(value)
        for box, array in self.parts(variable):
            array[...] = self.tokens(value, box)

    def wipe(self, variables: set[int]) -> None:
        for variable in variables:
            for _, array in self.parts(variable):
                array[...] = NOTHING

    def whole(self, variable: int, place: str) -> Tokens:
        """Return all elements of a variable, wherever they lie."""
        x = self.program.variables[variable]
        found = np.full(x.shape, ON_NO_TILE, np.int64)
        for box, array in self.parts(variable):
            found[cut(box)] = array
        if np.any(found == ON_NO_TILE):
            self.report(f"{place}: elements of {x.name} lie on no tile")
        return found

    def expect(self, variable: int, value: int, place: str) -> None:
        """Check a variable that is read as a whole."""
        if not np.array_equal(self.whole(variable, place), self.tokens(value)):
            name = self.program.variables[variable].name
            self.report(f"{place}: {name} does not hold value %{value}")
        elif self.strict:
            self.everywhere(variable, self.tokens(value), place)

    def everywhere(self, variable: int, expected: Tokens, place: str) -> None:
        """Check what all tiles hold, copies that nobody reads included."""
        for box, array in self.parts(variable):
            if not np.array_equal(array, expected[cut(box)]):
                name = self.program.variables[variable].name
                self.report(f"{place}: a tile's part of {name} is not what it should be")
                return
