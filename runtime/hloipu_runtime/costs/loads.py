"""What the fullest tile has to do, from loads on ranges of tiles."""

from collections.abc import Sequence
from typing import NamedTuple


class Load(NamedTuple):
    """Amounts that each tile of a range has, at most."""

    first: int
    last: int
    amounts: tuple[int, ...]


class Peak(NamedTuple):
    """A tile where ranges meet, and the sum of their amounts."""

    tile: int
    amounts: tuple[int, ...]


def peaks(loads: Sequence[Load]) -> list[Peak]:
    """Return the sums of amounts at every tile where a range begins; no other tile has more.

    A range that is sparse (its tiles lie apart) counts on all tiles between, so sums are upper
    bounds. O(n log n) in the number of ranges, whatever the number of tiles.
    """
    if len(loads) == 1:
        return [Peak(loads[0].first, loads[0].amounts)]
    starting = sorted(range(len(loads)), key=lambda k: loads[k].first)
    ending = sorted(range(len(loads)), key=lambda k: loads[k].last)
    peaks_by_tile: list[Peak] = []
    sums = [0] * max((len(load.amounts) for load in loads), default=0)
    ended = 0
    for place, number in enumerate(starting):
        tile = loads[number].first
        while loads[ending[ended]].last < tile:
            for k, amount in enumerate(loads[ending[ended]].amounts):
                sums[k] -= amount
            ended += 1
        for k, amount in enumerate(loads[number].amounts):
            sums[k] += amount
        if place + 1 == len(starting) or loads[starting[place + 1]].first != tile:
            peaks_by_tile.append(Peak(tile, tuple(sums)))
    return peaks_by_tile
