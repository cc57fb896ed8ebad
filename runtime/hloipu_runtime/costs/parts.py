"""Parts of one dimension in closed form: the longest, their count, their owners.

A part is `[coordinate * step + offset, + size)`, cut off at the ends of a window `[low, high)`.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.program.mapping import Span

Array = NDArray[np.int64]


def longest(span: Span, extent: int, low: int, high: int) -> int:
    """Return the length of the longest part within a window.

    Between its ends the length is a concave function of the coordinate, so it is largest at a
    coordinate next to where one of the cuts sets in.
    """
    if high <= low:
        return 0
    axis, step, offset, size = span
    if low <= offset and offset + size <= high:
        return size  # of the first coordinate already
    if axis < 0 or step <= 0 or extent == 1:
        return max(0, min(offset + size, high) - max(offset, low))
    first_uncut, last_uncut = (low - offset) // step, (high - offset - size) // step
    best = 0
    for near in (first_uncut, first_uncut + 1, last_uncut, last_uncut + 1):
        start = min(max(near, 0), extent - 1) * step + offset
        best = max(best, min(start + size, high) - max(start, low))
    return best


def present(span: Span, extent: int, low: int, high: int) -> tuple[int, int]:
    """Return the first and the last coordinate whose part meets a window; (0, -1): none."""
    axis, step, offset, size = span
    if high <= low or size <= 0:
        return (0, -1)
    if axis < 0 or step <= 0 or extent == 1:
        return (0, extent - 1) if offset < high and offset + size > low else (0, -1)
    first = max(0, (low - offset - size) // step + 1)
    last = min(extent - 1, -(-(high - offset) // step) - 1)
    return (first, last) if first <= last else (0, -1)


@lru_cache(1 << 12)
def bounds(span: Span, extent: int, low: int, high: int) -> tuple[Array, Array]:
    """Return where the parts of all coordinates begin and end, cut off at a window's ends."""
    count = 1 if span.axis < 0 else extent
    starts = np.arange(count, dtype=np.int64) * span.step + span.offset
    return _cut(starts, low, high), _cut(starts + span.size, low, high)


def owners_met(span: Span, extent: int, starts: Array, ends: Array) -> Array:
    """Return from how many parts of a dimension each of some ranges is put together.

    Where parts overlap, an element is taken from the last one that holds it.
    """
    if span.axis < 0 or span.step <= 0 or extent == 1:
        return np.where(ends > starts, 1, 0)
    first = _cut((starts - span.offset) // span.step, 0, extent - 1)
    last = _cut((ends - 1 - span.offset) // span.step, 0, extent - 1)
    return np.where(ends > starts, last - first + 1, 0)


def _cut(values: Array, low: int, high: int) -> Array:
    """Return values cut off at both ends; numpy's own clip takes four times as long for a few."""
    return np.minimum(np.maximum(values, low), high)
