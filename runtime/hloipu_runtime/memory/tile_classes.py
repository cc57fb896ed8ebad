"""Classes of tiles with the same memory."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program.mapping import Tiles

Numbers = NDArray[np.int64]
Classes = slice | Numbers
"""Numbers of classes."""
_GRIDS_AT_ONCE = 4096
"""Grids that are compared in one go: 6 MB of marks for the tiles of a GC200."""


@dataclass(frozen=True, eq=False)
class TileClasses:
    """The classes of one IPU's tiles, numbered by their first tile."""

    of_tile: Numbers
    """Class of each tile."""
    first_tile: Numbers
    """Lowest tile of each class."""
    members: dict[Tiles, Classes]
    """Classes that make up each grid."""

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.first_tile)

    def grids_of(self, number: int) -> set[Tiles]:
        """Return the grids that a class is part of."""
        marks = np.zeros(self.count, np.bool_)
        marks[number] = True
        return {grid for grid, members in self.members.items() if marks[members].any()}


def classes_of(grids: Iterable[Tiles], tiles_per_ipu: int) -> TileClasses:
    """Return the classes of tiles that no grid tells apart."""
    grids = list(dict.fromkeys(grids))
    of_tile = np.zeros(tiles_per_ipu, np.int64)
    for start in range(0, len(grids), _GRIDS_AT_ONCE):
        grids_at_once = grids[start : start + _GRIDS_AT_ONCE]
        marks = np.zeros((len(grids_at_once), tiles_per_ipu), np.bool_)
        for row, grid in zip(marks, grids_at_once, strict=True):
            row[grid.numbers.ravel()] = True
        packed = np.packbits(marks, axis=0).T
        rows = np.concatenate([of_tile[:, None].view(np.uint8), packed], axis=1)
        data, width = rows.tobytes(), rows.shape[1]
        number_of: dict[bytes, int] = {}
        for tile in range(tiles_per_ipu):
            key = data[tile * width : (tile + 1) * width]
            of_tile[tile] = number_of.setdefault(key, len(number_of))
    first = np.zeros(int(of_tile.max(initial=-1)) + 1, np.int64)
    first[of_tile[::-1]] = np.arange(tiles_per_ipu - 1, -1, -1)
    members = {}
    for grid in grids:
        is_member = np.zeros(len(first), np.bool_)
        is_member[of_tile[grid.numbers]] = True
        members[grid] = _as_slice(is_member.nonzero()[0])
    return TileClasses(of_tile, first, members)


def _as_slice(classes: Numbers) -> Classes:
    """Return numbers in a row as a slice, which is several times as fast to index with."""
    if len(classes) and classes[-1] - classes[0] + 1 == len(classes):
        return slice(int(classes[0]), int(classes[-1]) + 1)
    return classes
