"""Bytes that tiles send and receive in a transfer, in closed form.

Exact for regular grids, never less than what moves. Work grows with the number of dimensions.
Where both ends lie on one grid of tiles, what receivers find on their own tile need not move: that
is counted in arrays that broadcast to the grid.
"""

from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.costs.parts import bounds, longest, owners_met, present
from hloipu_runtime.costs.pieces import messages_received, pieces_received
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.program.mapping import Mapping, Sizes, Span, Tiles, extent_of
from hloipu_runtime.program.program import Variable
from hloipu_runtime.program.relation import Along, Relation, relate
from hloipu_runtime.program.steps import Transfer

Array = NDArray[np.int64]


class Moved(NamedTuple):
    """Elements of the fullest tile: copied within it, received, sent; and fragments received."""

    copied: int
    received: int
    sent: int
    fragments: int


class _Meeting(NamedTuple):
    """One dimension on every tile, as arrays that broadcast to the grid."""

    needed: Array
    on_own_tile: Array
    """Of what is needed, on the tile itself."""
    sendable: Array
    """Of what is transferred, on the tile."""
    own: Array
    """Of that, what no other tile along the receiver's axis needs."""
    pieces: Array


def stay_or_move(along: tuple[Along, ...], source: Mapping, everything: Moved, cut: int) -> Moved:
    """Return what moves where receivers take from their own tile what they find there.

    `cut` is the dimension of which receivers put together several senders' parts; -1: none.
    """
    tiles = source.tiles
    if all(a.sender == a.receiver and a.low <= 0 and a.high >= a.size for a in along):
        return Moved(everything.received, 0, 0, 0)
    met = [_meeting(a, tiles) for a in along]
    needed = _product([m.needed for m in met])
    own_elements = _product([m.on_own_tile for m in met])
    received = int(np.max(needed - own_elements))
    copied = int(np.max(own_elements))
    if not received:
        return Moved(copied, 0, 0, 0)
    if not copied:
        return everything
    sent = everything.sent
    if not source.replicated_axes and source.is_partition:
        split = {a.receiver.axis for a in along}
        multicast = any(axis not in split for axis in range(len(tiles.extents)))
        sendable = _product([m.sendable for m in met])
        own = 0 if multicast else _product([m.own for m in met])
        sent = min(sent, int(np.max(sendable - own)))
    fragments = everything.fragments
    if source.is_partition:
        fragments = _fragments(met, fragments, cut)
    else:
        fragments = max(fragments, min(received, _runs_left(met)))
    return Moved(copied, received, sent, fragments)


def _runs_left(met: list[_Meeting]) -> int:
    """Return in how many runs at most what is not on the tile lies, where one sender has all of it.

    Taking the own part out of the last dimension that has one leaves a run on either side.
    """
    last = max(n for n, m in enumerate(met) if bool(np.any(m.on_own_tile < m.needed)))
    return 2 * prod(int(np.max(m.needed)) for m in met[:last])


def _fragments(met: list[_Meeting], fragments: int, cut: int) -> int:
    """Return the fragments received, without the own ones where all of a row's are alike."""
    if cut < 0 or any(
        bool(np.any(m.on_own_tile < m.needed)) for n, m in enumerate(met) if n != cut
    ):
        return fragments
    pieces = met[cut].pieces
    most = int(np.max(pieces))
    return fragments // most * int(np.max(pieces - (met[cut].on_own_tile > 0)))


def _meeting(a: Along, tiles: Tiles) -> _Meeting:
    sender = a.sender
    if sender is None:
        raise ValueError("a dimension without ranges has no meeting")
    extent = extent_of(tiles, a.receiver)
    starts, ends = bounds(a.receiver, extent, a.low, a.high)
    pieces = owners_met(sender, extent_of(tiles, sender), starts, ends)
    left, right = np.full_like(starts, a.low), np.full_like(ends, a.high)
    if len(starts) > 1:
        # The parts before and after this one; they reach furthest next to it.
        left[1:] = ends[:-1]
        right[:-1] = starts[1:]
    needed_starts, needed_ends, left, right, pieces = (
        _on_grid(ends_or_starts, a.receiver, tiles)
        for ends_or_starts in (starts, ends, left, right, pieces)
    )
    held_starts, held_ends = (
        _on_grid(ends_or_starts, sender, tiles)
        for ends_or_starts in bounds(sender, extent_of(tiles, sender), a.low, a.high)
    )
    own_starts = np.maximum(np.maximum(needed_starts, held_starts), left)
    own_ends = np.minimum(np.minimum(needed_ends, held_ends), right)
    return _Meeting(
        needed_ends - needed_starts,
        np.maximum(np.minimum(needed_ends, held_ends) - np.maximum(needed_starts, held_starts), 0),
        held_ends - held_starts,
        np.maximum(own_ends - own_starts, 0),
        pieces,
    )


def _on_grid(values: Array, span: Span, tiles: Tiles) -> Array:
    """Return values by coordinate along a span's axis, shaped to broadcast to the grid."""
    shape = [1] * len(tiles.extents)
    if span.axis >= 0:
        shape[span.axis] = len(values)
    return values.reshape(shape)


def _product(factors: list[Array]) -> Array:
    return prod(factors, start=np.ones((), np.int64))


WORD_BYTES = 4
"""What an exchange moves at a time (osmarks/ipu-stack: docs/EXCHANGE_INSTRUCTION_REFERENCE.md)."""


class TileRange(NamedTuple):
    """First and last tile that takes part, and how many do at most."""

    first: int
    last: int
    tiles: int


class TransferTraffic(NamedTuple):
    """Bytes of the tile that has most of each; whole words, but for copies."""

    received_bytes: int
    fragments: int
    """Contiguous pieces at the receiver, each from one sender."""
    messages: int
    """Senders that a receiver receives from."""
    message_bytes: int
    """Received, if each sender's part comes in one piece."""
    sent_bytes: int
    """Each element once, however many tiles receive it."""
    is_paired: bool
    """Whether all tiles of a bus receive the same."""
    copied_bytes: int
    """What a receiver has on its own tile."""
    copied_runs: int
    total_bytes: int
    """Of all that is transferred, each element once."""
    receivers: TileRange
    senders: TileRange


def transfer_traffic(
    transfer: Transfer, source: Variable, destination: Variable, tiles_per_bus: int
) -> TransferTraffic | None:
    """Return the traffic of a transfer; None where its box is empty."""
    elements = prod(high - low for low, high in transfer.box)
    if elements <= 0 or any(high <= low for low, high in transfer.box):
        return None
    relation = relate(
        destination.shape,
        transfer.spans,
        transfer.box,
        transfer.shift,
        transfer.view,
        source.shape,
        source.mapping.spans,
    )
    return _traffic(
        relation,
        transfer.tiles,
        source.mapping,
        source.ipu == destination.ipu and not _some_have_nothing(source.shape, source.mapping),
        elements,
        ELEMENT_TYPES[destination.element_type].bits,
        tiles_per_bus,
    )


def whole_traffic(
    bits: int, shape: Sizes, source: Mapping, destination: Mapping, tiles_per_bus: int
) -> TransferTraffic | None:
    """Return the traffic of a whole value of elements of so many bits; None if it is empty.

    Both mappings are of one IPU.
    """
    elements = prod(shape)
    if elements <= 0:
        return None
    along = tuple(
        [
            Along(size, receiving, 0, size, 0, size, sent)
            for size, receiving, sent in zip(shape, destination.spans, source.spans, strict=True)
        ]
    )
    return _traffic(
        Relation(along, ()),
        destination.tiles,
        source,
        not _some_have_nothing(shape, source),
        elements,
        bits,
        tiles_per_bus,
    )


def _some_have_nothing(shape: Sizes, mapping: Mapping) -> bool:
    """Whether tiles along an axis share a dimension of one element, which one of them has."""
    return any(
        size == 1 and span.axis >= 0 for size, span in zip(shape, mapping.spans, strict=True)
    )


@lru_cache(1 << 14)
def _traffic(
    relation: Relation,
    tiles: Tiles,
    source: Mapping,
    may_stay: bool,
    elements: int,
    bits: int,
    tiles_per_bus: int,
) -> TransferTraffic:
    along = relation.along
    regions = [longest(a.receiver, extent_of(tiles, a.receiver), a.low, a.high) for a in along]
    fragments, run, cut = pieces_received(relation, tiles, source.tiles, regions)
    everything = Moved(0, prod(regions), min(elements, _sent(relation, source.tiles)), fragments)
    moved = everything
    if may_stay and tiles == source.tiles and not relation.mixed:
        moved = stay_or_move(along, source, everything, cut)
    is_paired = _is_paired(tiles, along, tiles_per_bus) and moved.received > 0
    if is_paired and moved.copied:
        # Together at twice the rate tiles take all of it; alone, only what they lack.
        is_paired = everything.received < 2 * moved.received
        moved = everything if is_paired else moved
    run = run if moved == everything else 0
    senders = _tile_range(
        source.tiles,
        [(a.sender, a.low, a.high) for a in along if a.sender is not None],
        source.replicated_axes,
    )
    messages = messages_received(relation, tiles, source.tiles, regions)
    messages = min(messages, moved.fragments, senders.tiles)
    return TransferTraffic(
        _word_bytes(moved.received, bits, moved.fragments, run),
        moved.fragments,
        messages,
        _word_bytes(moved.received, bits, messages, 0),
        _word_bytes(moved.sent, bits, -(-moved.sent // run) if run else moved.fragments, run),
        is_paired,
        -(-moved.copied * bits // 8),
        _copied_runs(along, regions) if moved.copied else 0,
        _word_bytes(elements, bits, 1, elements),
        _tile_range(tiles, [(a.receiver, a.low, a.high) for a in along], ()),
        senders,
    )


def _sent(relation: Relation, tiles: Tiles) -> int:
    """Return the most elements that one tile has of what is transferred."""
    return prod(
        longest(a.sender, extent_of(tiles, a.sender), a.low, a.high)
        for a in relation.along
        if a.sender is not None
    ) * prod(part.elements for part in relation.mixed)


def _copied_runs(along: tuple[Along, ...], regions: list[int]) -> int:
    """Return in how many contiguous pieces a tile copies what it has already, at most."""
    for place in range(len(along) - 1, -1, -1):
        a = along[place]
        all_moves = a.low <= a.own_low and a.own_high <= a.high
        if not (all_moves and a.sender == a.receiver and a.own_low == 0 and a.own_high == a.size):
            return prod(regions[:place])
    return 1


def _is_paired(tiles: Tiles, along: tuple[Along, ...], tiles_per_bus: int) -> bool:
    """Whether a replicating grid axis runs through the tiles of each bus."""
    if tiles_per_bus < 2 or tiles.first % tiles_per_bus:
        return False
    split = {a.receiver.axis for a in along}
    through = [
        axis
        for axis, (extent, stride) in enumerate(zip(tiles.extents, tiles.strides, strict=True))
        if axis not in split and stride == 1 and extent % tiles_per_bus == 0
    ]
    return bool(through) and all(
        stride % tiles_per_bus == 0
        for axis, stride in enumerate(tiles.strides)
        if axis != through[0]
    )


def _tile_range(
    tiles: Tiles, windows: list[tuple[Span, int, int]], once: tuple[int, ...]
) -> TileRange:
    """Return the tiles whose parts meet all windows; of the axes `once`, the first coordinate."""
    taking = dict.fromkeys(once, (0, 0))
    for span, low, high in windows:
        if span.axis >= 0:
            taking[span.axis] = present(span, tiles.extents[span.axis], low, high)
    first = last = tiles.first
    count = 1
    for axis, (extent, stride) in enumerate(zip(tiles.extents, tiles.strides, strict=True)):
        low, high = taking.get(axis, (0, extent - 1))
        first, last = first + low * stride, last + high * stride
        count *= high - low + 1
    return TileRange(first, last, count)


def _word_bytes(elements: int, bits: int, pieces: int, run: int) -> int:
    """Return the bytes of elements in pieces, each rounded up to words; `run`: length of each."""
    word_bits = 8 * WORD_BYTES
    if not elements or bits % word_bits == 0:
        return elements * bits // 8
    if run:
        return pieces * WORD_BYTES * -(-run * bits // word_bits)
    # What rounding adds to a piece is less than a word by at least the largest common divisor.
    most_bits = elements * bits + pieces * (word_bits - gcd(bits, word_bits))
    return WORD_BYTES * min(most_bits // word_bits, elements * -(-bits // word_bits))
