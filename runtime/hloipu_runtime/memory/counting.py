"""Bytes on each class of tiles, live variables and the rest."""

from collections.abc import Hashable, Iterator, Mapping
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.categories import NOT_VARIABLES, Category
from hloipu_runtime.memory.charges import Charges
from hloipu_runtime.memory.liveness import Ranges
from hloipu_runtime.memory.requests import Request
from hloipu_runtime.memory.tile_classes import TileClasses
from hloipu_runtime.program.mapping import Tiles

Numbers = NDArray[np.int64]


def fixed_bytes(
    charges: Charges, machine: Machine, classes: TileClasses, code_memory: bool
) -> dict[Category, Numbers]:
    """Return the bytes on each class of tiles that are not variables."""
    fixed = {category: np.zeros(classes.count, np.int64) for category in NOT_VARIABLES}
    fixed[Category.STACKS] += machine.memory.stack_bytes
    for grid, size in charges.vertex_state.items():
        fixed[Category.VERTEX_STATE][classes.members[grid]] += size
    if not code_memory:
        return fixed
    fixed[Category.CONTROL_CODE] += charges.common_code_bytes
    _add_once(fixed[Category.CONTROL_CODE], charges.control_code, classes)
    _add_once(fixed[Category.VERTEX_CODE], charges.vertex_code, classes)
    for grid, size in charges.exchange_code.items():
        fixed[Category.EXCHANGE_CODE][classes.members[grid]] += size
    return fixed


def _add_once(
    sums: Numbers, charged: Mapping[tuple[Hashable, Tiles], int], classes: TileClasses
) -> None:
    """Add what is charged to classes of tiles; of what has one key, each class counts once."""
    grids: dict[Hashable, list[Tiles]] = {}
    sizes: dict[Hashable, int] = {}
    for (key, grid), size in charged.items():
        grids.setdefault(key, []).append(grid)
        sizes[key] = size
    for key, alike in grids.items():
        if len(alike) == 1:
            sums[classes.members[alike[0]]] += sizes[key]
            continue
        marks = np.zeros(classes.count, np.bool_)
        for grid in alike:
            marks[classes.members[grid]] = True
        sums[marks] += sizes[key]


def most_live(
    requests: list[Request], points: int, classes: TileClasses
) -> tuple[Numbers, Numbers, Numbers]:
    """Return bytes always live, most bytes live at a point, and that point, by class of tiles."""
    always = np.zeros(classes.count, np.int64)
    starting: dict[int, list[tuple[Tiles, int]]] = {}
    ending: list[tuple[int, int, Tiles, int]] = []
    for number, (ranges, grid, size) in enumerate(_together(requests)):
        if ranges == ((0, points - 1),):
            always[classes.members[grid]] += size
            continue
        for first, last in ranges:
            starting.setdefault(first, []).append((grid, size))
            ending.append((last, number, grid, size))
    ending.sort(key=itemgetter(0, 1))
    live, most = always.copy(), always.copy()
    when = np.zeros(classes.count, np.int64)
    ended = 0
    for point in sorted(starting):
        while ending[ended][0] < point:  # what starts here is among them
            _, _, grid, size = ending[ended]
            live[classes.members[grid]] -= size
            ended += 1
        for grid, size in starting[point]:
            live[classes.members[grid]] += size
        more = live > most
        if more.any():
            most[more] = live[more]
            when[more] = point
    return always, most, when


def _together(requests: list[Request]) -> Iterator[tuple[Ranges, Tiles, int]]:
    """Yield when, where and how many bytes, of requests of the same time and tiles together."""
    sizes: dict[tuple[Ranges, Tiles], int] = {}
    for size, grid, ranges in requests:
        sizes[ranges, grid] = sizes.get((ranges, grid), 0) + size
    for (ranges, grid), size in sizes.items():
        yield ranges, grid, size
