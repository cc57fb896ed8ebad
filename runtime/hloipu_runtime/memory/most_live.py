"""How many bytes are live at once, on each class of tiles: no placement needs less."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.memory.requests import LiveRows, Requests, live_rows
from hloipu_runtime.memory.tile_classes import TileClasses

Numbers = NDArray[np.int64]


class Live(NamedTuple):
    """What is live on each class of tiles, and how full the fullest class is at each time."""

    always_bytes: Numbers
    """Of requests that are live at every point."""
    most_bytes: Numbers
    """At one point, those included."""
    peak_point: Numbers
    """The first point at which it is so many."""
    starts: Numbers
    """Points at which a request begins to be live, in order."""
    fullest_bytes: Numbers
    """What the fullest class takes in all at each of those."""


def most_live(requests: Requests, points: int, classes: TileClasses, taken: Numbers) -> Live:
    """Return what is live at once, where `taken` bytes of each class are used for other things."""
    members = [classes.members[grid] for grid in requests.grids]
    first, last, owner = live_rows(requests.ranges)
    always = np.zeros(classes.count, np.int64)
    is_always = (first == 0) & (last == points - 1)
    sizes, grids = requests.sizes[owner], requests.grid[owner]
    for size, grid in zip(sizes[is_always].tolist(), grids[is_always].tolist(), strict=True):
        always[members[grid]] += size
    passing = (~is_always).nonzero()[0]
    starts, begins = np.unique(first[passing], return_index=True)
    ending = passing[np.argsort(last[passing], kind="stable")]
    ended = np.searchsorted(last[ending], starts).tolist()
    change = list(zip(sizes.tolist(), [members[grid] for grid in grids.tolist()], strict=True))
    full = taken + always
    most = full.copy()
    when = np.zeros(classes.count, np.int64)
    fullest = np.zeros(len(starts), np.int64)
    gone = 0
    begun = [*begins.tolist(), len(passing)]
    starting, leaving = passing.tolist(), ending.tolist()
    for number, point in enumerate(starts.tolist()):
        for row in leaving[gone : ended[number]]:
            size, here = change[row]
            full[here] -= size
        gone = ended[number]
        for row in starting[begun[number] : begun[number + 1]]:
            size, here = change[row]
            full[here] += size
        more = full > most
        if more.any():
            most[more] = full[more]
            when[more] = point
        fullest[number] = full.max()
    return Live(always, most - taken, when, starts, fullest)


def fullest_during(rows: LiveRows, live: Live, count: int) -> Numbers:
    """Return for each of `count` requests how full the fullest class is at most while it lives."""
    found = np.zeros(count, np.int64)
    if len(live.starts):
        begin = np.searchsorted(live.starts, rows.first)
        end = np.searchsorted(live.starts, rows.last, side="right")
        bounds = np.stack([begin, end], axis=1).ravel()
        most = np.maximum.reduceat(np.append(live.fullest_bytes, 0), bounds)[::2]
        np.maximum.at(found, rows.owner, most)
    return found
