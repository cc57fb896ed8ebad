"""Arrays that a program holds in pieces: numbering, cutting, joining; records of those in blocks.

A program numbers parameters and results with every piece as one; users count the whole array once.
Pieces of one array have neighbouring numbers, in the order of their rows.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program.mapping import Sizes

Array = np.ndarray[Any, Any]
PARAMETER, RESULT = "parameter", "result"
KINDS = (PARAMETER, RESULT)
STREAM = "stream"
"""Of a queue that neither feeds parameters nor takes results; all queues' streams are counted."""


@dataclass(frozen=True, slots=True)
class Stack:
    """One array in pieces."""

    name: str
    """As users call it."""
    kind: str
    """`parameter` or `result`."""
    first: int
    """Number of the first piece; those of the others follow."""
    axis: int
    """Along which it is cut."""
    sizes: Sizes
    """Of each piece, along that axis."""
    shape: Sizes
    """Of the whole array."""

    @property
    def numbers(self) -> range:
        """Return the numbers of the pieces."""
        return range(self.first, self.first + len(self.sizes))

    def piece_shape(self, place: int) -> Sizes:
        """Return the shape of a piece."""
        return (*self.shape[: self.axis], self.sizes[place], *self.shape[self.axis + 1 :])

    def pieces(self, array: Array) -> list[Array]:
        """Return the pieces of the whole array, row-major, each of its own memory."""
        bounds = [0, *accumulate(self.sizes)]
        ahead = (slice(None),) * self.axis
        return [array[(*ahead, slice(a, b))].copy() for a, b in pairwise(bounds)]

    def joined(self, pieces: Iterable[Array]) -> Array:
        """Return the array that the pieces make up."""
        joined_array: Array = np.concatenate(list(pieces), self.axis)
        return joined_array


@dataclass(frozen=True, slots=True)
class Divided:
    """A parameter, a result or what a stream carries, and the axes of the mesh that divide it."""

    kind: str
    """`parameter`, `result` or `stream`."""
    number: int
    shape: Sizes
    """Of the whole array."""
    axes: tuple[Sizes, ...]
    """For each dimension the numbers of the axes that divide it, major to minor."""


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Division of a partitioned program's parameters and results."""

    mesh: Sizes
    """Sizes of the axes, major to minor."""
    order: Sizes
    """The partition at each place of the mesh; empty: places are partitions."""
    arrays: tuple[Divided, ...]
    """All parameters, all results, then streams; those that are not divided have no axes."""


class Whole(NamedTuple):
    """One array as users count it: a place among others of which each may be in pieces."""

    number: int
    """The user's; -1 where the program's is."""
    places: tuple[int, ...]
    """Of its pieces, or the one place of an array that is in none."""
    stack: Stack | None


class Numbering:
    """The users' numbers of a program's parameters, or of its results."""

    def __init__(self, stacks: Iterable[Stack], kind: str) -> None:
        self.stacks = sorted((x for x in stacks if x.kind == kind), key=lambda x: x.first)
        self._of = {number: stack for stack in self.stacks for number in stack.numbers}
        self._firsts = [x.first for x in self.stacks]
        self._ahead = [0, *accumulate(len(x.sizes) - 1 for x in self.stacks)]

    def stack_of(self, number: int) -> Stack | None:
        """Return the stack that a program's number is a piece of."""
        return self._of.get(number)

    def users(self, number: int) -> int:
        """Return the user's number of a program's; -1 of -1."""
        if number < 0:
            return -1
        stack = self._of.get(number)
        number = number if stack is None else stack.first
        return number - self._ahead[bisect_left(self._firsts, number)]

    def wholes(self, numbers: Sequence[int]) -> Iterator[Whole]:
        """Yield the users' arrays of a row of program's numbers, pieces of one taken together.

        ValueError where the row has not all pieces of an array side by side.
        """
        place = 0
        while place < len(numbers):
            stack = self._of.get(numbers[place])
            count = 1 if stack is None else len(stack.sizes)
            row = tuple(range(place, place + count))
            if stack is not None and list(numbers[place : place + count]) != list(stack.numbers):
                raise ValueError(f"pieces of {stack.name} are missing, or out of order")
            yield Whole(self.users(numbers[place]), row, stack)
            place += count
