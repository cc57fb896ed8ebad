"""How many contiguous pieces a tile sends and receives in a transfer: each needs exchange code.

All in closed form, dimension by dimension; the counts are those of the tile that has most.
"""

from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

from hloipu_runtime.program.mapping import Box, Mapping, Sizes, Span, Tiles
from hloipu_runtime.program.program import Variable
from hloipu_runtime.program.steps import Transfer


class Fragments(NamedTuple):
    """Contiguous pieces of a transfer on the tiles that take part in it."""

    received: int
    """On each receiver, at most: pieces that lie in one row at the sender and at the receiver."""
    sent: int
    """On each sender, at most; what goes to several tiles at once counts once."""
    receivers: Tiles
    senders: Tiles


NONE = Fragments(0, 0, Tiles(), Tiles())


def fragments(transfer: Transfer, source: Variable, destination: Variable) -> Fragments:
    """Return the pieces of a transfer between two variables; none where tiles keep their own."""
    return _fragments(
        transfer.view,
        transfer.box,
        transfer.shift,
        source.shape,
        source.mapping,
        destination.mapping,
        destination.shape,
        source.ipu == destination.ipu,
    )


@lru_cache(1 << 14)
def _fragments(
    view: Sizes,
    box: Box,
    shift: Sizes,
    source_shape: Sizes,
    source: Mapping,
    destination: Mapping,
    shape: Sizes,
    same_ipu: bool,
) -> Fragments:
    if any(low >= high for low, high in box):
        return NONE
    if view == source_shape:
        if same_ipu and source == destination and shape == view and not any(shift):
            return NONE
        sent_box = tuple((low + s, high + s) for (low, high), s in zip(box, shift, strict=True))
        received, sent = _pieces(source, destination, box, shift, source_shape, shape)
    else:
        sent_box = _covering(view, box, shift, source_shape)
        received, sent = _reshaped_pieces(view, source, destination, box, source_shape, shape)
    receivers = _within(destination, box, once=False)
    return Fragments(received, sent, receivers, _within(source, sent_box, once=True))


class _Cut(NamedTuple):
    """One dimension of a transfer, on the tile that has most of it."""

    received: int
    """Elements that a tile receives."""
    senders: int
    """Parts of the source that these lie in."""
    sent: int
    """Elements that a tile sends."""
    receivers: int
    """Different parts of the destination that these go to."""
    whole: bool
    """Whether each piece is all of this dimension in both parts, so that rows join."""


def _pieces(
    source: Mapping, destination: Mapping, box: Box, shift: Sizes, held: Sizes, shape: Sizes
) -> tuple[int, int]:
    """Return the pieces received and sent where the source keeps its shape."""
    cuts = [
        _cut(source_span, held_size, destination_span, size, low, high, moved)
        for source_span, held_size, destination_span, size, (low, high), moved in zip(
            source.spans, held, destination.spans, shape, box, shift, strict=True
        )
    ]
    joined = len(cuts)
    while joined and cuts[joined - 1].whole:
        joined -= 1
    if not joined:
        return 1, 1
    rows, row = cuts[: joined - 1], cuts[joined - 1]
    received = prod(cut.received for cut in rows) * row.senders
    sent = prod(cut.sent for cut in rows) * row.receivers
    return received, sent


def _cut(
    source: Span, held: int, destination: Span, size: int, low: int, high: int, shift: int
) -> _Cut:
    source_part, part = min(source.size, held), min(destination.size, size)
    length = high - low
    received, sent = min(part, length), min(source_part, length)
    source_step = _step(source, held)
    step = _step(destination, size)
    grain = gcd(source_step, step, shift, low, length, source.offset, destination.offset)
    senders = _met(received, source_step, grain, held)
    receivers = _met(sent, step, grain, size)
    if destination.axis >= 0 and destination.size > destination.step > 0:
        receivers += -(-destination.size // destination.step) - 1
    whole = senders == receivers == 1 and received == part == sent == source_part
    return _Cut(received, senders, sent, receivers, whole)


def _step(span: Span, size: int) -> int:
    """Return how far apart the parts of a span begin, its size where there is but one."""
    return span.step if span.axis >= 0 and 0 < span.step < size else size


def _met(length: int, step: int, grain: int, size: int) -> int:
    """Return how many parts, `step` apart, a run of `length` elements may meet at most.

    All parts and runs begin at multiples of `grain`.
    """
    if step >= size:
        return 1
    return (max(length, grain) + step - 2 * grain) // step + 1


def _reshaped_pieces(
    view: Sizes, source: Mapping, destination: Mapping, box: Box, held: Sizes, shape: Sizes
) -> tuple[int, int]:
    """Return a bound on the pieces where the source is seen in another shape.

    Rows of the part received are cut where rows of the source's parts end.
    """
    lengths = [
        min(span.size, high - low) for span, (low, high) in zip(destination.spans, box, strict=True)
    ]
    row, rows = _rows(lengths, view)
    source_lengths = [min(span.size, n) for span, n in zip(source.spans, held, strict=True)]
    source_row, _ = _rows(source_lengths, held)
    received = rows * min(row, (row - 2) // source_row + 2 if row > 1 else 1)
    parts = [destination.tiles.extents[s.axis] if s.axis >= 0 else 1 for s in destination.spans]
    sent = min(received * prod(parts), prod(source_lengths))
    return min(received, prod(lengths)), max(1, sent)


def _rows(lengths: list[int], sizes: Sizes) -> tuple[int, int]:
    """Return the length of the contiguous rows of a part of a tensor, and their number."""
    row, dimension = 1, len(lengths)
    while dimension:
        dimension -= 1
        row *= lengths[dimension]
        if lengths[dimension] != sizes[dimension]:
            break
    return max(1, row), prod(lengths[:dimension])


def _covering(view: Sizes, box: Box, shift: Sizes, held: Sizes) -> Box:
    """Return a box of the source that has all elements of a box of its view."""
    first = last = 0
    for size, (low, high), moved in zip(view, box, shift, strict=True):
        first = first * size + low + moved
        last = last * size + high - 1 + moved
    if not held:
        return ()
    row = prod(held[1:])
    return ((first // row, last // row + 1), *((0, size) for size in held[1:]))


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
        (b - a, stride) for a, b, stride in zip(low, high, tiles.strides, strict=True) if b - a != 1
    ]
    return Tiles(tuple(n for n, _ in kept), tuple(s for _, s in kept), first)
