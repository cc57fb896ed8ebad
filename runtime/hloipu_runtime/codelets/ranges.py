"""Where a window lies whose place is known at run time only, on tiles that hold ranges."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hloipu_runtime.codelets.codelet import Array, Block
from hloipu_runtime.kernels.gather import clamp_starts
from hloipu_runtime.kernels.movement import index_of


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
    low = np.clip(at - starts, 0, size)
    high = np.clip(at + length - starts, 0, size)
    met = np.flatnonzero(high > low)
    found: list[Stretch] = []
    begin = 0
    while begin < met.size:
        end = _last_alike(met, starts, low, high, begin)
        first = int(met[begin])
        step = int(starts[met[end]] - starts[first]) // max(1, end - begin)
        local = slice(int(low[first]), int(high[first]))
        found.append(
            Stretch(
                slice(first, int(met[end]) + 1),
                local,
                int(starts[first]) + local.start - at,
                step,
            )
        )
        begin = end + 1
    return found


def _last_alike(met: Array, starts: Array, low: Array, high: Array, begin: int) -> int:
    """Return the last of the consecutive tiles that are cut alike and equally far apart."""
    rest = met[begin:]
    if rest.size < 2:
        return begin
    step = starts[rest[1]] - starts[rest[0]]
    alike = (low[rest[1:]] == low[rest[0]]) & (high[rest[1:]] == high[rest[0]])
    alike &= (np.diff(rest) == 1) & (np.diff(starts[rest]) == step)
    unlike = np.flatnonzero(~alike)
    return begin + (int(unlike[0]) if unlike.size else alike.size)


class Walk(NamedTuple):
    """How far a window of an array moves on, along one of its axes, per tile of a grid axis."""

    grid_axis: int
    axis: int
    step: int


def moving_window(
    x: Array, first: Sequence[int], shape: Sequence[int], walks: Sequence[Walk]
) -> Array:
    """Return a view of `shape` that begins at `first` and moves on with the grid's coordinates.

    The caller sees to it that all of it lies within `x`.
    """
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
        place = clamped(scalar.data, whole, size)
        first = int(place.flat[0])
        if place.size > 1 and not np.all(place == first):
            return None
        places.append(first)
    return places


def clamped(start: Array, whole: int, size: int) -> Array:
    """Return clamped starts of windows of `size` in a dimension, stored once if shared."""
    once = start[tuple(slice(0, 1) if step == 0 else slice(None) for step in start.strides)]
    return clamp_starts(np.atleast_1d(once), whole - size)
