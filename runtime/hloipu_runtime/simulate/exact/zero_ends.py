"""Zeros in the unused ends of tiles' parts, for codelets to which they are as good as nothing.

Parts that go beyond an end of their variable, as those of padded windows do, make many size
classes. With zeros there, or another neutral element, all parts are alike, and one call computes on
all tiles.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hloipu_runtime.program.mapping import Span, extent_of
from hloipu_runtime.program.program import Array
from hloipu_runtime.simulate.exact.storage import TileStorage

Action = Callable[[], object]


def is_cut_off(storage: TileStorage, dimension: int) -> bool:
    """Whether some part of a dimension goes beyond an end of it."""
    low, high = _reach(storage, dimension)
    return low < 0 or high > storage.shape[dimension]


def with_zero_ends(
    storage: TileStorage, dimensions: Sequence[int], zero: Any
) -> tuple[Array, Sequence[Action]]:
    """Return the parts on all tiles, zero beyond the ends of some dimensions, and what makes them.

    Memory of the variable's own gets the zeros where it is. Parts that lie in another variable's
    memory, where neighbours stand beyond their ends, are seen in a copy of it with zeros around.
    """
    if storage.value is None:
        ends = [end for d in dimensions for end in _ends(storage, d)]
        return storage.tiles, [partial(end.fill, zero) for end in ends]
    value, spans, tiles = storage.value, storage.mapping.spans, storage.mapping.tiles
    reaches = [_reach(storage, d) for d in range(value.ndim)]
    lows = [max(0, -low) for low, _ in reaches]
    extents = [
        before + max(size, high)
        for before, size, (_, high) in zip(lows, value.shape, reaches, strict=True)
    ]
    padded = np.full(extents, zero, value.dtype)
    inner = padded[tuple(slice(n, n + size) for n, size in zip(lows, value.shape, strict=True))]
    axes, first = [0] * len(tiles.extents), 0
    for span, before, stride in zip(spans, lows, padded.strides, strict=True):
        first += (span.offset + before) * (stride // padded.itemsize)
        if span.axis >= 0:
            axes[span.axis] += span.step * stride
    parts = as_strided(
        padded.reshape(-1)[first:],
        storage.mapping.storage_shape,
        (*axes, *padded.strides),
        writeable=False,
    )
    if storage.moving is None:
        return parts, [partial(np.copyto, inner, value)]
    values = [value]
    storage.moving.follow(values, 0)
    return parts, [lambda: np.copyto(inner, values[0])]


def computed_share(storages: Sequence[TileStorage]) -> float:
    """Return how many times a tensor's elements its parts hold at most, unused ends included.

    Where parts overlap each element counts once.
    """
    return max(
        prod(_length(storage, span) for span in storage.mapping.spans) / max(1, prod(storage.shape))
        for storage in storages
    )


def _length(storage: TileStorage, span: Span) -> int:
    if span.axis < 0:
        return span.size
    return extent_of(storage.mapping.tiles, span) * min(span.size, abs(span.step))


def _reach(storage: TileStorage, dimension: int) -> tuple[int, int]:
    """Return the first element of all parts along a dimension, and the one behind the last."""
    span = storage.mapping.spans[dimension]
    distance = (extent_of(storage.mapping.tiles, span) - 1) * span.step
    low, high = span.offset + min(0, distance), span.offset + max(0, distance) + span.size
    return low, high


def _ends(storage: TileStorage, dimension: int) -> list[Array]:
    """Return the memory of all parts beyond the ends of a dimension, in few pieces."""
    span = storage.mapping.spans[dimension]
    coordinates = np.arange(extent_of(storage.mapping.tiles, span))
    elements = (coordinates[:, None] * span.step + span.offset + np.arange(span.size)).ravel()
    outside = (elements < 0) | (elements >= storage.shape[dimension])
    cuts = [0, *(np.flatnonzero(np.diff(outside)) + 1).tolist(), len(outside)]
    before = (slice(None),) * (len(storage.mapping.replicated_axes) + dimension)
    return [
        storage.merged[(*before, slice(low, high))] for low, high in pairwise(cuts) if outside[low]
    ]
