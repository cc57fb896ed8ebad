"""A slow referee for exchanges: counts bytes and pieces tile by tile, element by element.

It shares no code with the costs, nor the closed forms of mappings.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import NamedTuple

from hloipu_runtime.program.mapping import Spans, Tiles
from hloipu_runtime.program.program import Variable
from hloipu_runtime.program.steps import Transfer

Element = tuple[int, ...]


class Counted(NamedTuple):
    """Elements by tile; copies are what a tile takes from itself."""

    received: dict[int, int]
    sent: dict[int, int]
    copied: dict[int, int]
    fragments: dict[int, list[int]]
    """Length of each contiguous piece that a tile receives."""
    senders: dict[int, set[int]]
    """Tiles that a tile receives from."""

    def pieces(self) -> int:
        """Return the largest number of pieces of any tile."""
        return max(map(len, self.fragments.values()), default=0)

    def received_words(self, tile: int, bits: int) -> int:
        """Return the words of 4 bytes that a tile receives, pieces rounded up."""
        return sum(-(-length * bits // 32) for length in self.fragments.get(tile, []))

    def most(self, what: str) -> int:
        """Return the largest number of any tile."""
        found: dict[int, int] = getattr(self, what)
        return max(found.values(), default=0)


def count(transfer: Transfer, source: Variable, destination: Variable) -> Counted:
    """Count what a transfer moves.

    Of the tiles that hold an element the one with the largest grid coordinates sends it, the first
    of those that hold the same part. A tile takes from itself where both ends have one grid.
    """
    may_stay = source.ipu == destination.ipu and source.mapping.tiles == transfer.tiles
    holders: dict[Element, dict[int, tuple[int, ...]]] = defaultdict(dict)
    mapping = source.mapping
    used = {span.axis for span in mapping.spans}
    for tile, place, ranges in tile_parts(mapping.tiles, mapping.spans, source.shape):
        order = tuple(c if axis in used else -c for axis, c in enumerate(place))
        for element in product(*ranges):
            holders[element][tile] = order
    received: dict[int, int] = defaultdict(int)
    copied: dict[int, int] = defaultdict(int)
    fragments: dict[int, list[int]] = defaultdict(list)
    sending: dict[int, set[Element]] = defaultdict(set)
    senders: dict[int, set[int]] = defaultdict(set)
    for tile, _, ranges in tile_parts(transfer.tiles, transfer.spans, destination.shape):
        last: tuple[int, int] | None = None
        for offset, element in enumerate(product(*ranges)):
            inside = (lo <= i < hi for i, (lo, hi) in zip(element, transfer.box, strict=True))
            if not all(inside):
                continue
            seen = tuple(i + s for i, s in zip(element, transfer.shift, strict=True))
            wanted = _unravel(_ravel(seen, transfer.view), source.shape)
            tiles = holders[wanted]
            if may_stay and tile in tiles:
                copied[tile] += 1
                continue
            sender = max(tiles, key=tiles.__getitem__)
            sending[sender].add(wanted)
            senders[tile].add(sender)
            received[tile] += 1
            if last != (offset - 1, sender):
                fragments[tile].append(0)
            fragments[tile][-1] += 1
            last = (offset, sender)
    sent = {tile: len(elements) for tile, elements in sending.items()}
    return Counted(dict(received), sent, dict(copied), dict(fragments), dict(senders))


def tile_parts(
    tiles: Tiles, spans: Spans, shape: tuple[int, ...]
) -> Iterator[tuple[int, tuple[int, ...], list[range]]]:
    """Yield every tile, its grid coordinates and the range of each dimension that it holds."""
    for place in product(*(range(extent) for extent in tiles.extents)):
        tile = tiles.first
        for coordinate, stride in zip(place, tiles.strides, strict=True):
            tile += coordinate * stride
        ranges = []
        for (axis, step, offset, size), whole in zip(spans, shape, strict=True):
            start = (place[axis] if axis >= 0 else 0) * step + offset
            ranges.append(range(max(start, 0), min(start + size, whole)))
        yield tile, place, ranges


def _ravel(index: Element, shape: tuple[int, ...]) -> int:
    place = 0
    for i, size in zip(index, shape, strict=True):
        place = place * size + i
    return place


def _unravel(place: int, shape: tuple[int, ...]) -> Element:
    found = []
    for size in reversed(shape):
        place, i = divmod(place, size)
        found.append(i)
    assert prod(shape) == 0 or place == 0
    return tuple(reversed(found))
