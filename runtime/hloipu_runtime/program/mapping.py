"""Mappings: a grid of tiles, and the span of each dimension.

A mapping is a few numbers whatever the number of tiles: all questions are answered in closed form,
one dimension at a time.
"""

from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.frozen import dataclass, fields_of

Sizes = tuple[int, ...]
Box = tuple[tuple[int, int], ...]
"""For each dimension, first index and the one after the last."""


@dataclass(frozen=True)
class Tiles:
    """A grid of tiles on one IPU; its axes all have an extent above 1, no axes: one tile."""

    extents: Sizes = ()
    strides: Sizes = ()
    """Step in tile number along each axis."""
    first: int = 0

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without the numbers of tiles and the hash."""
        return fields_of(self)

    def __hash__(self) -> int:
        """Return the hash, which is computed once: grids are keys again and again."""
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = hash((self.extents, self.strides, self.first))
        return known

    @property
    def count(self) -> int:
        """Number of tiles."""
        return prod(self.extents)

    @property
    def last(self) -> int:
        """Highest tile number, for strides that are not negative."""
        return self.first + sum(
            (n - 1) * s for n, s in zip(self.extents, self.strides, strict=True)
        )

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """Tile numbers, one for each grid coordinate; the array has the grid's shape."""
        numbers = np.full(self.extents, self.first, np.int64)
        for axis, (extent, stride) in enumerate(zip(self.extents, self.strides, strict=True)):
            shape = [1] * len(self.extents)
            shape[axis] = extent
            numbers += (np.arange(extent) * stride).reshape(shape)
        return numbers


class Span(NamedTuple):
    """Part of a dimension on a tile: `size` elements from `coordinate * step + offset`.

    Parts are cut off at both ends of the dimension, so the last one may be shorter.
    """

    axis: int
    """Grid axis whose coordinate counts; -1: every tile has the same part."""
    step: int
    offset: int
    size: int


Spans = tuple[Span, ...]


def whole(size: int) -> Span:
    """Return the span of a dimension that every tile has all of."""
    return Span(-1, 0, 0, size)


@dataclass(frozen=True)
class Mapping:
    """A grid of tiles, and what part of each dimension each of its tiles holds.

    A grid axis that no span names replicates: its tiles hold the same part.
    """

    tiles: Tiles
    spans: Spans

    def __hash__(self) -> int:
        """Return the hash, which is computed once: mappings are keys again and again."""
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = hash((self.tiles, self.spans))
        return known

    @cached_property
    def block(self) -> Sizes:
        """Size of the largest part along each dimension."""
        return tuple(span.size for span in self.spans)

    @cached_property
    def replicated_axes(self) -> tuple[int, ...]:
        """Grid axes along which all tiles hold the same."""
        used = {span.axis for span in self.spans}
        return tuple(axis for axis in range(len(self.tiles.extents)) if axis not in used)

    @cached_property
    def is_partition(self) -> bool:
        """Whether parts lie side by side: each element once, replicated axes apart."""
        return all(s.axis < 0 or (s.step == s.size and s.offset == 0) for s in self.spans)

    @cached_property
    def storage_shape(self) -> Sizes:
        """Grid extents followed by the block's sizes."""
        return self.tiles.extents + self.block


def extent_of(tiles: Tiles, span: Span) -> int:
    """Return the number of coordinates that a span counts."""
    return 1 if span.axis < 0 else tiles.extents[span.axis]


def contains(outer: Span, inner: Span, extent: int, size: int) -> bool:
    """Whether on every tile the part `inner` lies within the part `outer`.

    Both spans count the same grid. Parts are affine in the coordinate but for the cut at the ends,
    so it is enough to look at each end where it is not cut.
    """
    if outer == inner or (
        outer.axis < 0 and outer.offset <= 0 and outer.size + outer.offset >= size
    ):
        return True
    if inner.axis >= 0 and outer.axis >= 0 and inner.axis != outer.axis:
        return False
    axis = max(inner.axis, outer.axis)
    coordinates = np.arange(extent if axis >= 0 else 1, dtype=np.int64)
    inner_start = coordinates * (inner.step if inner.axis >= 0 else 0) + inner.offset
    outer_start = coordinates * (outer.step if outer.axis >= 0 else 0) + outer.offset
    low = np.minimum(np.maximum(inner_start, 0), size)
    high = np.minimum(np.maximum(inner_start + inner.size, 0), size)
    fits = (outer_start <= low) & (high <= outer_start + outer.size)
    return bool(np.all(fits | (low >= high)))


def covers(tiles: Tiles, span: Span, size: int) -> bool:
    """Whether the parts of all coordinates together make the whole dimension."""
    if span.axis < 0:
        return span.offset <= 0 and span.offset + span.size >= size
    extent = tiles.extents[span.axis]
    no_gaps = 0 < span.step <= span.size or extent == 1
    return (
        span.offset <= 0 and no_gaps and (extent - 1) * span.step + span.offset + span.size >= size
    )


def intersect(a: Box, b: Box) -> Box:
    """Return the box that two boxes share; empty dimensions have their end at their start."""
    return tuple(
        (max(low, other_low), max(max(low, other_low), min(high, other_high)))
        for (low, high), (other_low, other_high) in zip(a, b, strict=True)
    )


def whole_box(shape: Sizes) -> Box:
    """Return the box of all elements."""
    return tuple((0, size) for size in shape)


def volume(box: Box) -> int:
    """Return the number of elements of a box."""
    return prod(max(0, high - low) for low, high in box)
