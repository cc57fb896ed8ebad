"""Operands that follow some dimensions of a common space, as arrays that broadcast in it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Labels = Sequence[int]


def arranged(array: Array, labels: Labels, rank: int, axes: int) -> Array:
    """Return a view with `rank` dimensions behind `axes` grid axes, 1 where the operand has none.

    Dimension d of the operand follows dimension `labels[d]` of the space.
    """
    if tuple(labels) == tuple(range(rank)):
        return array
    order = sorted(range(len(labels)), key=labels.__getitem__)
    moved = array.transpose((*range(axes), *(axes + d for d in order)))
    kept = (slice(None),) * axes
    return moved[kept + tuple(slice(None) if d in labels else None for d in range(rank))]


def sizes_of(
    labels: Sequence[Labels], shapes: Sequence[Sequence[int]], rank: int
) -> tuple[int, ...]:
    """Return the sizes of the space's dimensions; 1 where no operand follows one."""
    sizes = [1] * rank
    for numbers, shape in zip(labels, shapes, strict=True):
        for d, size in zip(numbers, shape, strict=True):
            sizes[d] = size if sizes[d] == 1 else sizes[d]
    return tuple(sizes)
