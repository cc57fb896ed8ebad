"""Which tiles take part in a transfer, as grids."""

from math import prod

from hloipu_runtime.program.mapping import Box, Mapping, Sizes, Tiles
from hloipu_runtime.program.program import Variable
from hloipu_runtime.program.steps import Transfer


def receivers(transfer: Transfer, destination: Variable) -> Tiles:
    """Return the tiles that receive."""
    return _within(destination.mapping, transfer.box, once=False)


def senders(transfer: Transfer, source: Variable) -> Tiles:
    """Return the tiles that send; of those that hold the same, one."""
    box, shift, view = transfer.box, transfer.shift, transfer.view
    if view == source.shape:
        box = tuple((low + s, high + s) for (low, high), s in zip(box, shift, strict=True))
    else:
        box = _covering(view, box, shift, source.shape)
    return _within(source.mapping, box, once=True)


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
