"""Operands and results of codelets: types, shapes, and the arrays of their parts on tiles."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]


class Tensor(NamedTuple):
    """Type and size of an operand or a result, or of a tile's part of it."""

    element_type: str
    shape: Sizes

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


class Block(NamedTuple):
    """Parts of an operand or a result on all tiles of a class, which are of one size.

    `array` has the shape `grid + part`, in storage form. `starts` has, for each dimension, the
    index of the parts' first element in the whole: an array that broadcasts against `grid`, or a
    number.
    A whole tensor is a block with an empty grid.
    """

    array: Array | None
    """Of a result: where it may be written; None: the codelet makes an array."""
    grid: Sizes
    part: Sizes
    starts: tuple[Array | int, ...]
    whole: Sizes
    """Sizes of the whole tensor."""

    @property
    def data(self) -> Array:
        """The array of an operand."""
        if self.array is None:
            raise ValueError("a result's block has no data")
        return self.array


Bound = Callable[[Sequence[Array], Sequence[Array | None]], Sequence[Array]]
"""A codelet on blocks of known sizes: from operands, and places for results, to results."""


class OnArrays(NamedTuple):
    """A codelet on the arrays of blocks, to be called again and again."""

    run: Callable[[], object]
    arrays: list[Array]
    """Views that it reads and writes, anew in each call: they may be put elsewhere."""
    blocks: Sizes
    """Of each: the number of the block that it is a view of, results after operands."""


Tensors = Sequence[Tensor]
Blocks = Sequence[Block]
