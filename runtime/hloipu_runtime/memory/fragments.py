"""How many contiguous pieces a tile sends and receives in a transfer: each needs exchange code.

A receiver's pieces are contiguous at the receiver and from one sender, as their cycles are counted
(`costing.traffic`); a sender's are contiguous at the sender and go to the same receivers. All in
closed form; the counts are those of the tile that has most.
"""

from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

from hloipu_runtime.costing.traffic import transfer_traffic
from hloipu_runtime.program.mapping import Box, Mapping, Sizes, Span, Tiles
from hloipu_runtime.program.program import Variable
from hloipu_runtime.program.steps import Transfer


class Fragments(NamedTuple):
    """Contiguous pieces of a transfer on the tiles that take part in it."""

    received: int
    """On each receiver, at most."""
    sent: int
    """On each sender, at most; what goes to several tiles at once counts once."""
    receivers: Tiles
    senders: Tiles


NONE = Fragments(0, 0, Tiles(), Tiles())


def fragments(
    transfer: Transfer, source: Variable, destination: Variable, tiles_per_bus: int
) -> Fragments:
    """Return the pieces of a transfer between two variables; none where tiles keep their own."""
    traffic = transfer_traffic(transfer, source, destination, tiles_per_bus)
    if traffic is None or not traffic.fragments:
        return NONE
    box, shift, view = transfer.box, transfer.shift, transfer.view
    if view == source.shape:
        sent_box = tuple((low + s, high + s) for (low, high), s in zip(box, shift, strict=True))
        sent = _pieces(source.mapping, destination.mapping, sent_box, shift, view)
    else:
        sent_box = _covering(view, box, shift, source.shape)
        sent = _reshaped_pieces(source.mapping, destination.mapping, box, source.shape, view)
    return Fragments(
        traffic.fragments,
        sent,
        _within(destination.mapping, box, once=False),
        _within(source.mapping, sent_box, once=True),
    )


@lru_cache(1 << 14)
def _pieces(source: Mapping, destination: Mapping, box: Box, shift: Sizes, shape: Sizes) -> int:
    """Return the pieces sent where the source keeps its shape; the box is the source's."""
    pieces, joined = 1, True
    for sent, size, (low, high), moved, held in zip(
        reversed(source.spans),
        reversed(shape),
        reversed(box),
        reversed(shift),
        reversed(destination.spans),
        strict=True,
    ):
        part = min(sent.size, size)
        length = min(part, high - low)
        if not joined:
            pieces *= length
            continue
        receivers = _receivers(length, sent, held, low, moved, size)
        pieces *= receivers
        joined = receivers == 1 and length == part
    return pieces


def _receivers(length: int, sent: Span, held: Span, low: int, shift: int, size: int) -> int:
    """Return into how many pieces the parts of the destination cut what a tile sends, at most."""
    step = _step(held, size)
    if step >= size:
        return 1
    grain = gcd(step, _step(sent, size), shift, low, length, sent.offset, held.offset)
    pieces = (max(length, grain) + step - 2 * grain) // step + 1
    # Where parts overlap, each begins and ends inside of others.
    return min(length, pieces if held.size <= held.step else 2 * pieces)


def _step(span: Span, size: int) -> int:
    """Return how far apart the parts of a span begin, its size where there is but one."""
    return span.step if span.axis >= 0 and 0 < span.step < size else size


@lru_cache(1 << 14)
def _reshaped_pieces(
    source: Mapping, destination: Mapping, box: Box, shape: Sizes, view: Sizes
) -> int:
    """Return a bound on the pieces sent where the source is seen in another shape.

    Rows of the source's part are cut where rows of the destination's parts begin.
    """
    row, rows = _rows([min(x.size, n) for x, n in zip(source.spans, shape, strict=True)], shape)
    parts = [
        min(span.size, high - low) for span, (low, high) in zip(destination.spans, box, strict=True)
    ]
    received_row, _ = _rows(parts, view)
    return rows * min(row, (row - 2) // received_row + 2 if row > 1 else 1)


def _rows(lengths: list[int], sizes: Sizes) -> tuple[int, int]:
    """Return the length of the contiguous rows of a part of a tensor, and their number."""
    row, dimension = 1, len(lengths)
    while dimension:
        dimension -= 1
        row *= lengths[dimension]
        if lengths[dimension] != sizes[dimension]:
            break
    return max(1, row), prod(lengths[:dimension])


def _covering(view: Sizes, box: Box, shift: Sizes, shape: Sizes) -> Box:
    """Return a box of the source that has all elements of a box of its view."""
    if not shape:
        return ()
    first = last = 0
    for size, (low, high), moved in zip(view, box, shift, strict=True):
        first = first * size + low + moved
        last = last * size + high - 1 + moved
    row = prod(shape[1:])
    return ((first // row, last // row + 1), *((0, size) for size in shape[1:]))


def _within(mapping: Mapping, box: Box, *, once: bool) -> Tiles:
    """Return the tiles whose parts meet a box; `once`: one of those that hold the same."""
    low = [0] * len(mapping.tiles.extents)
    high = list(mapping.tiles.extents)
    for span, (begin, end) in zip(mapping.spans, box, strict=True):
        if span.axis < 0 or span.step <= 0:
            continue
        first = max(0, (begin - span.offset - span.size) // span.step + 1)
        low[span.axis] = min(first, high[span.axis] - 1)
        last = min(high[span.axis], -(-(end - span.offset) // span.step))
        high[span.axis] = max(last, low[span.axis] + 1)
    if once:
        for axis in mapping.replicated_axes:
            high[axis] = 1
    return _part(mapping.tiles, low, high)


def _part(tiles: Tiles, low: list[int], high: list[int]) -> Tiles:
    """Return the part of a grid between coordinates, without axes of one tile."""
    first = tiles.first + sum(n * s for n, s in zip(low, tiles.strides, strict=True))
    kept = [
        (end - begin, stride)
        for begin, end, stride in zip(low, high, tiles.strides, strict=True)
        if end - begin != 1
    ]
    return Tiles(tuple(n for n, _ in kept), tuple(s for _, s in kept), first)
