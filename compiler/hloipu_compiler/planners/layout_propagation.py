"""Propagates mappings through ops that only change a value's view.

A reshaped value keeps to its tiles if each tile's part, in row-major order, is a part of the new
shape as well. Grid axes are split or joined for that: 64 rows of 12 x 64 on 12 tiles a row are 768
columns in 12 parts, and 32 x 4 rows, a tile each, are 128 rows on the same tiles.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from hloipu_runtime.program.mapping import Mapping, Sizes, Span, Spans, Tiles, whole
from hloipu_runtime.program.relation import dimension_groups


class _Digit(NamedTuple):
    """One digit of a tile's place along dimensions that are split: its number of values."""

    extent: int
    stride: int
    """In tile numbers."""


def transposed(mapping: Mapping, permutation: Sequence[int]) -> Mapping:
    """Return where a transposed value lies, dimension d of which is `permutation[d]`."""
    return Mapping(mapping.tiles, tuple(mapping.spans[d] for d in permutation))


def untransposed(mapping: Mapping, permutation: Sequence[int]) -> Mapping:
    """Return where a value lies whose transposed one lies so."""
    spans = list(mapping.spans)
    for place, dimension in enumerate(permutation):
        spans[dimension] = mapping.spans[place]
    return Mapping(mapping.tiles, tuple(spans))


def made_whole(mapping: Mapping, shape: Sizes, dimensions: Sequence[int]) -> Mapping:
    """Return the mapping with some dimensions whole on every tile, on the tiles that remain."""
    return without_unused_axes(Mapping(mapping.tiles, spans_whole(mapping, shape, dimensions)))


def spans_whole(mapping: Mapping, shape: Sizes, dimensions: Sequence[int]) -> Spans:
    """Return the parts of a mapping, but of some dimensions all."""
    return tuple(
        whole(size) if d in dimensions else span
        for d, (span, size) in enumerate(zip(mapping.spans, shape, strict=True))
    )


def without_unused_axes(mapping: Mapping) -> Mapping:
    """Return the mapping on the first tiles only along axes that no dimension follows."""
    if not mapping.replicated_axes:
        return mapping
    kept = [a for a in range(len(mapping.tiles.extents)) if a not in mapping.replicated_axes]
    number = {axis: n for n, axis in enumerate(kept)}
    tiles = mapping.tiles
    return Mapping(
        Tiles(
            tuple(tiles.extents[a] for a in kept),
            tuple(tiles.strides[a] for a in kept),
            tiles.first,
        ),
        tuple(s._replace(axis=number[s.axis]) if s.axis >= 0 else s for s in mapping.spans),
    )


def reshaped(mapping: Mapping, shape: Sizes, new: Sizes) -> Mapping | None:
    """Return a mapping of the new shape with which every tile keeps its part; None without one."""
    if shape == new:
        return mapping
    if not mapping.is_partition or not prod(shape):
        return None
    for span, size in zip(mapping.spans, shape, strict=True):
        if span.axis >= 0 and size == 1:
            return None
    extents: list[int] = []
    strides: list[int] = []
    spans = [whole(size) for size in new]
    for places, sources in dimension_groups(new, shape):
        parts = [(mapping.spans[d], shape[d]) for d in sources]
        if all(span.axis < 0 for span, _ in parts):
            continue
        sizes = [new[d] for d in places]
        regrouped = _regrouped(mapping.tiles, parts, sizes)
        if regrouped is None:
            return None
        for place, part in zip(places, regrouped, strict=True):
            if part is not None:
                digit, block = part
                spans[place] = Span(len(extents), block, 0, block)
                extents.append(digit.extent)
                strides.append(digit.stride)
    for axis in mapping.replicated_axes:
        extents.append(mapping.tiles.extents[axis])
        strides.append(mapping.tiles.strides[axis])
    return Mapping(Tiles(tuple(extents), tuple(strides), mapping.tiles.first), tuple(spans))


_Part = tuple[_Digit, int] | None
"""How a dimension is split, and its block; None: it is whole."""


def _regrouped(
    tiles: Tiles, spans_and_sizes: Sequence[tuple[Span, int]], sizes: Sequence[int]
) -> list[_Part] | None:
    """Return how each of the new dimensions is split, if parts stay what they are."""
    if len(spans_and_sizes) == 1 and len(sizes) == 1:
        span = spans_and_sizes[0][0]
        return [(_Digit(tiles.extents[span.axis], tiles.strides[span.axis]), span.size)]
    run = _run_of(spans_and_sizes)
    if run is None:
        return None
    digits = [
        _Digit(tiles.extents[span.axis], tiles.strides[span.axis])
        for span, _ in spans_and_sizes
        if span.axis >= 0
    ]
    blocks = _blocks(sizes, run, prod(d.extent for d in digits))
    if blocks is None:
        return None
    parts_by_dimension: list[_Part] = [None] * len(sizes)
    rest = digits
    for place in reversed(range(len(sizes))):
        parts = -(-sizes[place] // blocks[place])
        if parts < 2:
            continue
        taken = _take_digit(rest, parts)
        if taken is None:
            return None
        digit, rest = taken
        parts_by_dimension[place] = digit, blocks[place]
    return None if any(d.extent > 1 for d in rest) else parts_by_dimension


def _run_of(spans_and_sizes: Sequence[tuple[Span, int]]) -> int | None:
    """Return the elements of a part, if parts follow each other in row-major order."""
    run = 1
    is_cut = False
    for place in reversed(range(len(spans_and_sizes))):
        span, size = spans_and_sizes[place]
        if is_cut:
            if span.axis < 0 and size > 1 and any(s.axis >= 0 for s, _ in spans_and_sizes[:place]):
                return None
            if span.axis < 0:
                # What lies before the first split dimension: only if that one is the very first.
                return None
            if span.size != 1:
                return None
        elif span.axis >= 0:
            is_cut = True
            if place and size % span.size:
                return None
            run *= span.size
        else:
            run *= size
    return run


def _blocks(sizes: Sequence[int], run: int, parts: int) -> list[int] | None:
    """Return the block of each new dimension whose parts are runs of so many elements."""
    blocks = list(sizes)
    inner = 1
    for place in reversed(range(len(sizes))):
        size = sizes[place]
        if run >= inner * size and place:
            inner *= size
            continue
        if run % inner:
            return None
        block = run // inner
        if block < 1 or (place and size % block):
            return None
        blocks[place] = block
        blocks[:place] = [1] * place
        break
    part_count = prod(-(-size // block) for size, block in zip(sizes, blocks, strict=True))
    return blocks if part_count == parts else None


def _take_digit(digits: Sequence[_Digit], parts: int) -> tuple[_Digit, list[_Digit]] | None:
    """Take one digit of so many values from the last ones; None where they do not make one."""
    rest = list(digits)
    extent, stride = 1, 0
    while extent < parts:
        if not rest:
            return None
        last = rest.pop()
        wanted = parts // extent
        if parts % extent or (extent > 1 and last.stride != extent * stride):
            return None
        if last.extent > wanted:
            if last.extent % wanted:
                return None
            rest.append(_Digit(last.extent // wanted, last.stride * wanted))
            last = _Digit(wanted, last.stride)
        stride = stride or last.stride
        extent *= last.extent
    return (_Digit(extent, stride), rest) if extent == parts else None


def reshaped_in_place(lying: Mapping, shape: Sizes, new: Sizes) -> Mapping | None:
    """Return a mapping of the new shape that moves nothing from its tile; None without one.

    What is spread over many tiles alone: a value on few tiles is better spread anew.
    """
    if lying.replicated_axes or not lying.tiles.extents:
        return None
    reshaped_mapping = reshaped(lying, shape, new)
    return None if reshaped_mapping is None else _with_axes_of(reshaped_mapping, lying.tiles)


def _with_axes_of(mapping: Mapping, tiles: Tiles) -> Mapping:
    """Return the mapping with its grid axes in the order of another grid, where they are alike."""
    here = mapping.tiles
    axes = list(zip(here.extents, here.strides, strict=True))
    wanted = list(zip(tiles.extents, tiles.strides, strict=True))
    if here == tiles or sorted(axes) != sorted(wanted) or len(set(axes)) != len(axes):
        return mapping
    place = {axis: wanted.index(pair) for axis, pair in enumerate(axes)}
    return Mapping(
        tiles, tuple(s._replace(axis=place[s.axis]) if s.axis >= 0 else s for s in mapping.spans)
    )
