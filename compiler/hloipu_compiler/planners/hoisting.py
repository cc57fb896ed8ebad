"""Chooses the copies that are made before loops: the most cycles saved for each free byte first.

That is the greedy way to fill a knapsack (Dantzig 1957: Discrete-variable extremum problems,
Operations Research 5). Beside the one item that saves most, it saves at least half of what the best
choice does, where memory is scarce on one class of tiles at one moment.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Classes = slice | Numbers
"""Numbers of classes of tiles that have the same memory."""


_AMPLE = 1 << 62
"""Room of what takes no more memory than it did."""


class Item(NamedTuple):
    """A copy that stays on its tiles throughout a loop."""

    saved_cycles: int
    size_bytes: int
    """On each tile that holds it."""
    classes: Classes
    """Of these tiles."""
    moments: tuple[int, ...]
    """Rows of what is free at which it takes memory that it does not take without."""
    needs: tuple[int, ...] = ()
    """Numbers of items that it goes on from: the same copy throughout the loops within."""


def chosen_items(items: Sequence[Item], free_bytes: Numbers) -> list[int]:
    """Return the numbers of the items to keep, in the order of choice.

    `free_bytes`: by moment and class of tiles; negative where there is too little already. Time
    grows with the items' moments and classes.
    """
    free = free_bytes.copy()
    first = _best_single(items, free)
    ordered = _fill(items, free.copy(), ())
    if first is not None and items[first].saved_cycles > _saved(items, ordered):
        return _fill(items, free, (first,))
    return ordered


def _fill(items: Sequence[Item], free: Numbers, start: Sequence[int]) -> list[int]:
    """Return the items chosen one after the other; what is free shrinks."""
    chosen: list[int] = []
    following: dict[int, list[int]] = {}
    missing = [len(item.needs) for item in items]
    for number, item in enumerate(items):
        for needed in item.needs:
            following.setdefault(needed, []).append(number)
    waiting = [(_price(x, free), n) for n, x in enumerate(items) if not x.needs]
    waiting = [(-np.inf, n) if n in start else (price, n) for price, n in waiting]
    heapify(waiting)
    while waiting:
        _, number = heappop(waiting)
        item = items[number]
        if item.saved_cycles <= 0 or _room(item, free) < item.size_bytes:
            continue
        for row in item.moments:
            free[row][item.classes] -= item.size_bytes
        chosen.append(number)
        for after in following.get(number, ()):
            missing[after] -= 1
            if not missing[after]:
                heappush(waiting, (_price(items[after], free), after))
    return chosen


def _best_single(items: Sequence[Item], free: Numbers) -> int | None:
    """Return the item without needs that saves most, of those that there is room for."""
    fitting = [n for n, x in enumerate(items) if not x.needs and _room(x, free) >= x.size_bytes]
    return max(fitting, key=lambda n: items[n].saved_cycles, default=None)


def _saved(items: Sequence[Item], chosen: Sequence[int]) -> int:
    return sum(items[n].saved_cycles for n in chosen)


def _room(item: Item, free: Numbers) -> int:
    """Return the bytes that are free on the fullest of an item's tiles."""
    return min((int(free[row][item.classes].min()) for row in item.moments), default=_AMPLE)


def _price(item: Item, free: Numbers) -> float:
    """Return the share of its room that an item takes for each cycle saved."""
    room = _room(item, free)
    if room < item.size_bytes or item.saved_cycles <= 0:
        return np.inf
    return item.size_bytes / room / item.saved_cycles
