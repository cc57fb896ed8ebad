"""Of how many pieces and messages tiles send and receive their parts, in closed form."""

from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

from hloipu_runtime.costs.parts import bounds, owners_met
from hloipu_runtime.program.mapping import Box, Mapping, Sizes, Span, Tiles, extent_of
from hloipu_runtime.program.program import Variable
from hloipu_runtime.program.relation import Along, Relation, dimension_groups
from hloipu_runtime.program.steps import Transfer


class Sent(NamedTuple):
    """What one sender sends, at most; what goes to several tiles at once counts once."""

    pieces: int
    """Contiguous at the sender, all of a piece to the same receivers."""
    messages: int
    """Sets of receivers that it sends anything to."""


def what_is_sent(transfer: Transfer, source: Variable, destination: Variable) -> Sent:
    """Return the pieces and messages that a sender of a transfer sends."""
    box, shift, view = transfer.box, transfer.shift, transfer.view
    if view != source.shape:
        return _reshaped_pieces(source.mapping, destination.mapping, box, source.shape, view)
    sent_box = tuple((low + s, high + s) for (low, high), s in zip(box, shift, strict=True))
    return _pieces(source.mapping, destination.mapping, sent_box, shift, view)


def whole_sent(shape: Sizes, source: Mapping, destination: Mapping) -> Sent:
    """Return what a sender sends where a whole value goes from one mapping to another."""
    box = tuple([(0, size) for size in shape])
    return _pieces(source, destination, box, (0,) * len(shape), shape)


@lru_cache(1 << 14)
def _pieces(source: Mapping, destination: Mapping, box: Box, shift: Sizes, shape: Sizes) -> Sent:
    """Return what is sent where the source keeps its shape; the box is the source's."""
    pieces, messages, joined = 1, 1, True
    for sent, size, (low, high), moved, receiving in zip(
        reversed(source.spans),
        reversed(shape),
        reversed(box),
        reversed(shift),
        reversed(destination.spans),
        strict=True,
    ):
        length = min(sent.size, high - low)
        receivers = _receivers(length, sent, receiving, low, moved, size)
        messages *= receivers
        if not joined:
            pieces *= length
            continue
        pieces *= receivers
        joined = receivers == 1 and _cuts_no_part(sent, low, high, size)
    return Sent(pieces, min(pieces, messages))


def _receivers(length: int, sent: Span, receiving: Span, low: int, shift: int, size: int) -> int:
    """Return into how many pieces the parts of the destination cut what a tile sends, at most."""
    step = _step(receiving, size)
    if step >= size:
        return 1
    grain = gcd(step, _step(sent, size), shift, low, length, sent.offset, receiving.offset)
    pieces = (length + step - 2 * grain) // step + 1
    # Where parts overlap, each begins and ends inside of others.
    return min(length, pieces if receiving.size <= receiving.step else 2 * pieces)


def _cuts_no_part(span: Span, low: int, high: int, size: int) -> bool:
    """Whether a box of which a dimension is `[low, high)` has every part whole or not at all."""
    ends = [end for end in (low, high) if 0 < end < size]
    step = _step(span, size)
    return not ends or (
        span.size == step < size and all((end - span.offset) % step == 0 for end in ends)
    )


def _step(span: Span, size: int) -> int:
    """Return how far apart the parts of a span begin, its size where there is but one."""
    return span.step if span.axis >= 0 and 0 < span.step < size else size


@lru_cache(1 << 14)
def _reshaped_pieces(
    source: Mapping, destination: Mapping, box: Box, shape: Sizes, view: Sizes
) -> Sent:
    """Return bounds on what is sent where the source is seen in another shape.

    Rows of the source's part are cut where rows of the destination's parts begin.
    """
    lengths = [min(span.size, size) for span, size in zip(source.spans, shape, strict=True)]
    wanted = [
        min(span.size, _step(span, high - low))
        for span, (low, high) in zip(destination.spans, box, strict=True)
    ]
    pieces, messages, joined = 1, 1, True
    for targets, sources in reversed(dimension_groups(view, shape)):
        run_lengths, sizes = [lengths[d] for d in sources], [shape[d] for d in sources]
        seen = [view[d] for d in targets]
        spans = [destination.spans[d] for d in targets]
        messages *= _receivers_of_run(destination.tiles, spans, seen, _run(run_lengths, sizes))
        if not joined:
            pieces *= prod(run_lengths)
            continue
        row, rows = _rows(run_lengths, sizes)
        received_row, _ = _rows([wanted[d] for d in targets], seen)
        # Where parts overlap, each begins and ends inside of others.
        overlapping = 2 if any(span.axis >= 0 and span.size > span.step for span in spans) else 1
        pieces *= rows * min(row, overlapping * ((row - 2) // received_row + 2))
        joined = row == received_row == prod(sizes)
    return Sent(pieces, min(pieces, messages))


def _run(lengths: list[int], sizes: list[int]) -> int:
    """Return the elements from the first to the last of a part of a tensor, in row-major order."""
    run, inner = 1, 1
    for length, size in zip(reversed(lengths), reversed(sizes), strict=True):
        run += (length - 1) * inner
        inner *= size
    return run


def _receivers_of_run(tiles: Tiles, spans: list[Span], view: list[int], run: int) -> int:
    """Return to how many sets of tiles a run of elements goes at most."""
    changes, sets, inner = 1, 1, 1
    for span, size in zip(reversed(spans), reversed(view), strict=True):
        step = _step(span, size)
        if step < size:
            # Where parts overlap, each begins and ends inside of others.
            overlapping = 1 if span.size <= span.step else 2
            changes += overlapping * -(-run // (step * inner)) - (-run // (size * inner))
            sets *= overlapping * tiles.extents[span.axis]
        inner *= size
    return min(changes, sets)


def _rows(lengths: list[int], sizes: list[int]) -> tuple[int, int]:
    row, dimension = 1, len(lengths)
    while dimension:
        dimension -= 1
        row *= lengths[dimension]
        if lengths[dimension] != sizes[dimension]:
            break
    return max(1, row), prod(lengths[:dimension])


def pieces_received(
    relation: Relation, tiles: Tiles, source: Tiles, regions: list[int]
) -> tuple[int, int, int]:
    """Return the most pieces that a tile receives, their length and what cuts them.

    The length is 0 if there are several. The dimension that several senders have parts of is -1 if
    pieces end because other elements lie between them.

    From the innermost dimension outwards, pieces stay whole as long as a tile receives all of its
    part of the dimension from one sender. Parts are stored densely.
    """
    mixed = {part.innermost: part for part in relation.mixed}
    run = 1
    for place in range(len(relation.along) - 1, -1, -1):
        a, region = relation.along[place], regions[place]
        if place in mixed:
            met = mixed[place].pieces(region)
        elif a.sender is None:
            met = region
        else:
            met = _senders_met(a, tiles, source)
        rows = prod(regions[:place])
        if met > 1:
            return rows * met, run * _equal_parts(a.sender, met, region), place
        run *= region
        if not _is_dense(a, tiles):
            return rows, run, -1
    return 1, run, -1


def messages_received(relation: Relation, tiles: Tiles, source: Tiles, regions: list[int]) -> int:
    """Return from how many senders a tile receives at most."""
    mixed = {part.innermost: part for part in relation.mixed}
    messages, met, run, inner = 1, 1, 1, 1
    for place in range(len(relation.along) - 1, -1, -1):
        a, region = relation.along[place], regions[place]
        if a.sender is not None:
            messages *= _senders_met(a, tiles, source)
            continue
        if place in mixed:
            part = mixed[place]
            met, run, inner = part.pieces(region), region, a.size
        else:
            # Each row of the region, or the run of elements that has them all in it.
            met, run, inner = met * region, run + (region - 1) * inner, inner * a.size
        first = place == 0 or relation.along[place - 1].sender is not None or place - 1 in mixed
        if first:
            messages *= min(met, part.pieces(run))
    return messages


def _equal_parts(sender: Span | None, met: int, region: int) -> int:
    """Return the length of the senders' parts where a region is made of whole ones; otherwise 0."""
    if sender is None or sender.offset or sender.size != sender.step:
        return 0
    return sender.step if met * sender.step == region else 0


def _senders_met(a: Along, tiles: Tiles, source: Tiles) -> int:
    """Return from how many senders' parts a receiver's is put together at most."""
    if a.sender is None or a.sender.axis < 0:
        return 1
    extents = extent_of(tiles, a.receiver), extent_of(source, a.sender)
    return most_met(a.receiver, a.sender, *extents, a.low, a.high)


@lru_cache(1 << 14)
def most_met(
    receiver: Span, sender: Span, receivers: int, senders: int, low: int, high: int
) -> int:
    """Return from how many senders' parts of a dimension a receiver's is put together at most."""
    starts, ends = bounds(receiver, receivers, low, high)
    return int(owners_met(sender, senders, starts, ends).max())


def _is_dense(a: Along, tiles: Tiles) -> bool:
    """Whether every tile that receives anything of a dimension receives all of its part."""
    if a.low <= a.own_low and a.own_high <= a.high:
        return True
    extent = extent_of(tiles, a.receiver)
    starts, ends = bounds(a.receiver, extent, a.low, a.high)
    own_starts, own_ends = bounds(a.receiver, extent, a.own_low, a.own_high)
    return bool(((ends - starts == own_ends - own_starts) | (ends <= starts)).all())
