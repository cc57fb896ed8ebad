"""Grids: how a codelet's indices split into parts on tiles."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from hloipu_runtime.codelets.core.codelet import Index, Indexing
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.machine.charges import over
from hloipu_runtime.program.law import label_span, span_of
from hloipu_runtime.program.mapping import Mapping, Sizes, Span, Spans, Tiles, whole

MINIMUM_BYTES = 128
"""Least data of a tile's part of a result (graphcore/poplibs: lib/poputil/TileMapping.cpp)."""

GRAIN_BYTES = 8
"""Parts of the innermost dimension are multiples of this, the width of a load."""


@dataclass(frozen=True)
class Placement:
    """A grid, and the part of each label that its tiles work on."""

    tiles: Tiles
    labels: tuple[tuple[int, Span], ...]
    """Labels that are split; all others are whole on every tile."""

    def spans(self, indices: Sequence[Index], shape: Sizes) -> Spans:
        """Return the parts of an operand or result whose dimensions follow these indices."""
        along = dict(self.labels)
        return tuple(
            span_of(index, along, size) for index, size in zip(indices, shape, strict=True)
        )

    def mapping(self, shape: Sizes) -> Mapping:
        """Return the mapping of an array whose dimensions are the labels."""
        along = dict(self.labels)
        return Mapping(self.tiles, tuple(along.get(d, whole(n)) for d, n in enumerate(shape)))


def row_major(extents: Sequence[int], first: int) -> Tiles:
    """Return a grid on consecutive tiles, the last axis fastest."""
    strides: list[int] = []
    step = 1
    for extent in reversed(extents):
        strides.insert(0, step)
        step *= extent
    return Tiles(tuple(extents), tuple(strides), first)


def in_blocks(shape: Sizes, blocks: Sequence[int], first: int) -> Mapping:
    """Return the mapping of an array in blocks of given sizes, a tile each, from a tile on."""
    extents: list[int] = []
    spans: list[Span] = []
    for size, block in zip(shape, blocks, strict=True):
        count = over(size, block) if block else 1
        if count < 2:
            spans.append(whole(size))
            continue
        spans.append(Span(len(extents), block, 0, block))
        extents.append(count)
    return Mapping(row_major(extents, first), tuple(spans))


@lru_cache(1 << 14)
def split(sizes: Sizes, weights: Sizes, grains: Sizes, parts: int) -> Placement:
    """Split indices into at most `parts` equal parts, the first indices first.

    `sizes` are those of the labels, `weights` 0 for those that must stay whole, `grains` the
    multiples that blocks come in. All blocks of an index but the last are of one size.
    """
    extents: list[int] = []
    labels: list[tuple[int, Span]] = []
    left = max(1, parts)
    behind = prod(size for size, weight in zip(sizes, weights, strict=True) if weight)
    for label, (size, weight, grain) in enumerate(zip(sizes, weights, grains, strict=True)):
        if not weight or size < 2:
            continue
        behind //= size
        if left < 2:
            continue
        finest = _FINEST if label == len(sizes) - 2 and grains[-1] > 1 else 1
        block = _block(size, grain, left, behind, finest)
        count = -(-size // block)
        if count < 2:
            continue
        labels.append((label, Span(len(extents), block, 0, block)))
        extents.append(count)
        left //= count
    return Placement(row_major(extents, 0), tuple(labels))


_FINEST = 4
"""Elements of 8 bytes of f16, in whose multiples the last blocks of any type are counted."""

_TRIED = 16
"""Multiples of the smallest block that are looked at."""


def _block(size: int, grain: int, left: int, behind: int, finest: int) -> int:
    """Return the block of one index that leaves least on a tile, with the indices behind it.

    Of 768 rows on 1,472 tiles the smallest blocks leave half of the tiles idle: larger ones leave
    parts over for columns. If only the last index is behind, its blocks come in multiples of
    `finest`: of blocks that leave the same then, the smallest keep most of a row together.
    """
    smallest = -(-size // left)
    smallest = -(-smallest // grain) * grain
    if behind < 2:
        return smallest
    tried: list[tuple[int, int, int]] = []
    for times in range(1, _TRIED + 1):
        block = times * smallest
        piece = over(behind, max(1, left // over(size, block)))
        tried.append((block * piece, block * over(piece, finest) * finest, block))
        if block >= size:
            break
    least = min(tried, key=lambda one: one[0])
    return next(block for _, in_grains, block in tried if in_grains == least[1])


def mapping_of(shape: Sizes, element_bits: int, tiles: int) -> Mapping:
    """Return the default mapping: blocks of rows, not less than 128 bytes on a tile."""
    return default_placement(shape, prod(shape), element_bits, tiles).mapping(shape)


def default_placement(sizes: Sizes, elements: int, element_bits: int, tiles: int) -> Placement:
    """Return blocks of rows for labels of these sizes, behind which are `elements` of data."""
    least = max(1, MINIMUM_BYTES * 8 // element_bits)
    parts = min(tiles, max(1, elements // least))
    grains = [1] * len(sizes)
    if sizes and sizes[-1] > 1:
        grains[-1] = max(1, GRAIN_BYTES * 8 // element_bits)
    return split(sizes, (1,) * len(sizes), tuple(grains), parts)


def moved(placement: Placement, first: int, tiles: int) -> Placement:
    """Return the same grid from another tile on, as far as it fits there."""
    spare_tiles = tiles - placement.tiles.count
    grid = placement.tiles
    start = first % (spare_tiles + 1) if spare_tiles > 0 else 0
    return Placement(Tiles(grid.extents, grid.strides, start), placement.labels)


def followed(indexing: Indexing, indices: Sequence[Index], mapping: Mapping) -> Placement | None:
    """Return the placement in which an operand is already where it is needed, or None.

    Only where its mapping splits labels, each once and side by side, and replicates nothing.
    """
    if mapping.replicated_axes or not mapping.is_partition:
        return None
    labels: list[tuple[int, Span]] = []
    for index, span in zip(indices, mapping.spans, strict=True):
        if span.axis < 0:
            continue
        along = label_span(index, span) if index.label >= 0 else None
        if along is None or along.step != along.size or along.offset:
            return None
        # An operand may have fewer elements than its index counts, as where windows reach beyond.
        if mapping.tiles.extents[span.axis] * along.size < indexing.sizes[index.label]:
            return None
        labels.append((index.label, along))
    shown = {index.label for indices in indexing.results for index in indices}
    if any(label not in shown for label, _ in labels) or len(dict(labels)) != len(labels):
        return None
    return Placement(mapping.tiles, tuple(sorted(labels)))


def grid(counts: Sequence[tuple[int, int, int]], sizes: Sizes, first: int = 0) -> Placement:
    """Return a placement from (label, parts, grain); parts are cut to what blocks need."""
    extents: list[int] = []
    labels: list[tuple[int, Span]] = []
    for label, parts, grain in counts:
        block = max(1, -(-sizes[label] // max(1, parts)))
        block = -(-block // grain) * grain
        count = -(-sizes[label] // block)
        if count > 1:
            labels.append((label, Span(len(extents), block, 0, block)))
            extents.append(count)
    return Placement(row_major(extents, first), tuple(labels))


def gathered(mapping: Mapping, shape: Sizes) -> Placement | None:
    """Return where to combine partial results that lie so, counted by their leading dimensions.

    The tiles that have pieces of a block share out the block, along its first dimension that is
    long enough: each takes in few and long runs. Where no dimension of a block is whole, the blocks
    of the first are cut further. None where that cannot be.
    """
    if mapping.replicated_axes or not mapping.is_partition:
        return None
    leading = len(mapping.spans) - len(shape)
    joined = _one_axis(mapping.tiles, [x.axis for x in mapping.spans[:leading] if x.axis >= 0])
    if joined is None:
        return None
    tiles, axis, moved_to = joined
    others = [
        span._replace(axis=moved_to[span.axis]) if span.axis >= 0 else span
        for span in mapping.spans[leading:]
    ]
    labels = [(d, span) for d, span in enumerate(others) if span.axis >= 0]
    if axis >= 0:
        count = tiles.extents[axis]
        free = [d for d, span in enumerate(others) if span.axis < 0 and shape[d] > 1]
        # Parts of the innermost dimension alone are short runs, each a piece to be exchanged.
        chosen = next((d for d in free if shape[d] >= count and d < len(others) - 1), -1)
        finer = _finer(tiles, others, shape, count) if chosen < 0 else None
        if finer is not None:
            return finer
        if chosen < 0:
            if not free:
                return None
            chosen = max(free, key=lambda d: shape[d])
        block = -(-shape[chosen] // count)
        labels.append((chosen, Span(axis, block, 0, block)))
    return Placement(tiles, tuple(sorted(labels)))


def _one_axis(tiles: Tiles, axes: Sequence[int]) -> tuple[Tiles, int, dict[int, int]] | None:
    """Return a grid whose given axes are one, that axis or -1, and where each old axis went.

    None where their tiles are not evenly apart in any order.
    """
    if len(axes) < 2:
        return tiles, axes[0] if axes else -1, {n: n for n in range(len(tiles.extents))}
    inner = sorted(axes, key=lambda n: tiles.strides[n])
    step = tiles.strides[inner[0]]
    for n in inner:
        if tiles.strides[n] != step:
            return None
        step *= tiles.extents[n]
    kept = [n for n in range(len(tiles.extents)) if n not in axes]
    extents = (prod(tiles.extents[n] for n in axes), *(tiles.extents[n] for n in kept))
    strides = (tiles.strides[inner[0]], *(tiles.strides[n] for n in kept))
    places = {n: 1 + place for place, n in enumerate(kept)}
    return Tiles(extents, strides, tiles.first), 0, {**dict.fromkeys(axes, 0), **places}


def _finer(tiles: Tiles, spans: Sequence[Span], shape: Sizes, count: int) -> Placement | None:
    """Return blocks of which `count` make one block of pieces, on as many tiles as the pieces.

    The first dimensions are cut first, down to single elements. Blocks along others stay as they
    are: those that end elsewhere would take a run of each row from two of them.
    """
    parts: list[tuple[int, int, int]] = []
    for d, (span, size) in enumerate(zip(spans, shape, strict=True)):
        block = min(span.size, size)
        cut = min(count, max(1, block))
        extent = tiles.extents[span.axis] if span.axis >= 0 else 1
        parts.append((d, cut * extent, block if cut == 1 else 1))
        count //= cut
    finer_grid = grid(parts, shape, tiles.first)
    return finer_grid if 1 < finer_grid.tiles.count <= tiles.count else None
