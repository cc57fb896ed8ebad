"""Pieces and messages that a tile receives, in closed form."""

from functools import lru_cache
from math import prod

from hloipu_runtime.costs.parts import bounds, owners_met
from hloipu_runtime.program.mapping import Span, Tiles, extent_of
from hloipu_runtime.program.relation import Along, Relation


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
    return _most_met(a.receiver, a.sender, *extents, a.low, a.high)


@lru_cache(1 << 14)
def _most_met(
    receiver: Span, sender: Span, receivers: int, senders: int, low: int, high: int
) -> int:
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
