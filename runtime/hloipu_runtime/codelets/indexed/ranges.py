"""Places of run-time windows on tiles that hold ranges."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hloipu_runtime.codelets.core.tensors import Array, Block
from hloipu_runtime.kernels.core.movement import index_of
from hloipu_runtime.kernels.gather import clamp_starts


class Stretch(NamedTuple):
    """Tiles along one grid axis on which a window covers the same elements of their ranges."""

    coordinates: slice
    local: slice
    """Of each tile's range."""
    position: int
    """In the window, of the first of these elements on the first of these tiles."""
    step: int
    """By how much it is further on from one of these tiles to the next."""


def stretches(starts: Array, size: int, at: int, length: int) -> list[Stretch]:
    """Find what tiles hold of the window [at, at + length): their ranges start at `starts`.

    Ranges in order and equally far apart give three stretches at most: two that the window's ends
    cut, and all between.
    """
    first, count = int(starts[0]), len(starts)
    step = int(starts[1]) - first if count > 1 else size
    if size < 1 or length < 1:
        return []
    if step < size or (count > 2 and not (starts[1:] - starts[:-1] == step).all()):
        singles = (
            _stretch(n, n, int(start), 0, size, at, length) for n, start in enumerate(starts)
        )
        return [stretch for stretch in singles if stretch.local.start < stretch.local.stop]
    low = max(0, (at - size - first) // step + 1)
    high = min(count - 1, (at + length - 1 - first) // step)
    if low > high:
        return []
    begin, end = first + low * step, first + high * step
    cuts = [low]
    if low < high and begin < at:
        cuts.append(low + 1)
    if end + size > at + length and cuts[-1] < high:
        cuts.append(high)
    lasts = [*(cut - 1 for cut in cuts[1:]), high]
    return [
        _stretch(one, last, first + one * step, step, size, at, length)
        for one, last in zip(cuts, lasts, strict=True)
    ]


def _stretch(
    first: int, last: int, start: int, step: int, size: int, at: int, length: int
) -> Stretch:
    """Return the stretch of the tiles `first` to `last`, as what the first of them has says."""
    local = slice(max(0, at - start), min(size, at + length - start))
    return Stretch(slice(first, last + 1), local, start + local.start - at, step)


class Walk(NamedTuple):
    """How far a window of an array moves on, along one of its axes, per tile of a grid axis."""

    grid_axis: int
    axis: int
    step: int


def moving_window(
    x: Array, first: Sequence[int], shape: Sequence[int], walks: Sequence[Walk]
) -> Array:
    """Return a view of `shape` that begins at `first` and moves on with the grid's coordinates.

    Raises ValueError where it would not lie within `x`.
    """
    reach = [at + n for at, n in zip(first, shape, strict=True)]
    lowest = list(first)
    for walk in walks:
        distance = walk.step * (shape[walk.grid_axis] - 1)
        reach[walk.axis] += max(0, distance)
        lowest[walk.axis] += min(0, distance)
    if min(lowest, default=0) < 0 or any(r > n for r, n in zip(reach, x.shape, strict=True)):
        raise ValueError(f"a window from {lowest} to {reach} in an array of {x.shape}")
    corner = x[index_of(slice(at, None) for at in first)]
    strides = list(corner.strides)
    for walk in walks:
        strides[walk.grid_axis] += walk.step * corner.strides[walk.axis]
    return as_strided(corner, tuple(shape), strides, writeable=False)


def agreed_starts(
    scalars: Sequence[Block], wholes: Sequence[int], sizes: Sequence[int]
) -> list[int] | None:
    """Return a window's clamped place, a number per dimension; None where tiles disagree."""
    places = []
    for scalar, whole, size in zip(scalars, wholes, sizes, strict=True):
        data = scalar.data
        first = data[(0,) * data.ndim]
        if data.size > 1 and any(data.strides) and not (data == first).all():
            return None
        places.append(min(max(int(first), 0), whole - size))
    return places


def clamped(start: Array, whole: int, size: int) -> Array:
    """Return clamped starts of windows of `size` in a dimension, stored once if shared."""
    once = start[tuple(slice(0, 1) if step == 0 else slice(None) for step in start.strides)]
    return clamp_starts(np.atleast_1d(once), whole - size)
