"""Bytes that need not move: parts that a receiver has on its own tile.

Both ends of the transfer lie on one grid of tiles. Counts are arrays that broadcast to the grid.
"""

from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.costs.parts import bounds, owners_met
from hloipu_runtime.program.mapping import Mapping, Span, Tiles, extent_of
from hloipu_runtime.program.relation import Along

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
