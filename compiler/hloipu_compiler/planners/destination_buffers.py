"""Where values are born that several tiles want: in pieces, side by side on these tiles."""

from collections.abc import Sequence
from math import prod

from hloipu_compiler.planners.placing import GRAIN_BYTES, MINIMUM_BYTES, row_major
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.program.mapping import Mapping, Sizes, Span, whole


def worth_sharing(blocks: Sequence[int], element_type: str) -> int:
    """Return how many tiles may share out a part: each gets 128 bytes of it, or one gets all."""
    size = prod(blocks) * ELEMENT_TYPES[element_type].bits // 8
    return max(1, size // MINIMUM_BYTES)


def spread_over_copies(wanted: Mapping, shape: Sizes, element_type: str) -> Mapping:
    """Return a partition of a tensor with which tiles get their wanted parts in few pieces.

    Tiles that want the same part share it out, the first dimensions first.
    """
    grid = wanted.tiles
    cut = [d for d, span in enumerate(wanted.spans) if span.axis >= 0]
    blocks = [min(span.size, size) for span, size in zip(wanted.spans, shape, strict=True)]
    copies = grid.count // max(1, prod(grid.extents[wanted.spans[d].axis] for d in cut))
    copies = min(copies, worth_sharing(blocks, element_type))
    for d, whole_block in enumerate(blocks):
        if copies < 2 or whole_block < 2:
            continue
        block = -(-whole_block // copies)
        if d == len(shape) - 1:
            grain = max(1, GRAIN_BYTES * 8 // ELEMENT_TYPES[element_type].bits)
            block = -(-block // grain) * grain
        blocks[d] = min(block, whole_block)
        copies //= -(-whole_block // blocks[d])
    _fit(blocks, shape, grid.count)
    extents: list[int] = []
    spans: list[Span] = []
    for size, block in zip(shape, blocks, strict=True):
        count = -(-size // block) if block else 1
        if count < 2:
            spans.append(whole(size))
            continue
        spans.append(Span(len(extents), block, 0, block))
        extents.append(count)
    return Mapping(row_major(extents, grid.first), tuple(spans))


def _fit(blocks: list[int], shape: Sizes, tiles: int) -> None:
    """Enlarge blocks, the first ones first, until there are no more than tiles."""
    for d, size in enumerate(shape):
        others = prod(
            -(-n // b) for e, (n, b) in enumerate(zip(shape, blocks, strict=True)) if e != d
        )
        room = max(1, tiles // max(1, others))
        blocks[d] = max(blocks[d], -(-size // room))
