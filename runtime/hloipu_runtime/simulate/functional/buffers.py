"""Memory that values of a block lie in for a while, planned before anything runs."""

from math import prod
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.kernels.core.blocks import aligned_empty
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Array

MOST_BYTES = 1 << 27
"""Of all buffers of an engine, which keeps them between runs."""

SMALLEST_BYTES = 1 << 12
"""From here on memory that is at hand, and in cache, beats fresh memory.

A number's does too: a ufunc that is given none makes no array.
"""


class Buffer(NamedTuple):
    """A piece of memory as an array of the shape that a value has."""

    array: Array
    memory: int
    """Number of the piece."""


class Buffers:
    """Gives values memory that others have done with; pieces serve values of one type and size."""

    def __init__(self) -> None:
        self.bytes = 0
        self._pieces: list[Array] = []
        self._free: dict[tuple[np.dtype[Any], int], list[int]] = {}

    def take(self, shape: Sizes, dtype: np.dtype[Any]) -> Buffer | None:
        """Return memory for a value, or None where fresh memory is as good or too much is used."""
        elements = prod(shape)
        size = elements * dtype.itemsize
        if shape and size < SMALLEST_BYTES:
            return None
        free = self._free.get((dtype, elements))
        if free:
            number = free.pop()
        elif self.bytes + size > MOST_BYTES:
            return None
        else:
            self.bytes += size
            number = len(self._pieces)
            self._pieces.append(aligned_empty((elements,), dtype))
        return Buffer(self._pieces[number].reshape(shape), number)

    def give_back(self, buffer: Buffer) -> None:
        """Let others have a value's memory."""
        piece = self._pieces[buffer.memory]
        self._free.setdefault((piece.dtype, piece.size), []).append(buffer.memory)
