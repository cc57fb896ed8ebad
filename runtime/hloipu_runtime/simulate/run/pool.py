"""Memory for tile memories, used again for others once a variable has seen its last use."""

from bisect import bisect_left, insort
from collections.abc import Callable
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from hloipu_runtime.kernels.core.blocks import aligned_empty
from hloipu_runtime.program.program import Array

Take = Callable[[int], Array]
"""Returns that many bytes or more, as an array of them."""

_MOST_WASTE = 2
"""A piece of memory this many times as large as wanted, or larger, is left for others."""

_BYTES = np.dtype(np.uint8)


def fresh(size: int) -> Array:
    """Return new memory."""
    return aligned_empty((size,), _BYTES)


class MemoryPool:
    """Pieces of memory: the smallest free one that is large enough is used again."""

    def __init__(self) -> None:
        self.bytes = 0
        """Of all pieces, used and free."""
        self._free: list[Array] = []

    def take(self, size: int) -> Array:
        """Return `size` bytes or some more."""
        at = bisect_left(self._free, size, key=attrgetter("nbytes"))
        if at < len(self._free) and self._free[at].nbytes < _MOST_WASTE * size:
            return self._free.pop(at)
        self.bytes += size
        return fresh(size)

    def give_back(self, memory: Array) -> None:
        """Let others have what `take` returned."""
        insort(self._free, memory, key=attrgetter("nbytes"))


class Scratch:
    """Arrays that hold something within one call of a codelet; the next call has them again."""

    def __init__(self) -> None:
        self._pool = MemoryPool()
        self._taken: list[Array] = []

    @property
    def bytes(self) -> int:
        """Of all arrays."""
        return self._pool.bytes

    def take(self, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> Array:
        """Return an array that no other call in the making has."""
        size = prod(shape) * dtype.itemsize
        memory = self._pool.take(size)
        self._taken.append(memory)
        return memory[:size].view(dtype).reshape(shape)

    def next_call(self) -> None:
        """Let the next call have the arrays that were taken for the last one."""
        for memory in self._taken:
            self._pool.give_back(memory)
        self._taken.clear()
