"""Arrays that users see whole and of which a program has pieces: how they are numbered and put together.

A program numbers parameters and results with every piece as one; users count the whole array once.
Pieces of one array have neighbouring numbers, in the order of their rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Array

PARAMETER, RESULT = "parameter", "result"
KINDS = (PARAMETER, RESULT)


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

    def pieces(self, array: Array) -> list[Array]:
        """Return the pieces of the whole array, each of its own memory."""
        bounds = [0, *accumulate(self.sizes)]
        ahead = (slice(None),) * self.axis
        return [array[(*ahead, slice(a, b))].copy() for a, b in pairwise(bounds)]

    def joined(self, pieces: Iterable[Array]) -> Array:
        """Return the array that the pieces make up."""
        found: Array = np.concatenate(list(pieces), self.axis)
        return found
