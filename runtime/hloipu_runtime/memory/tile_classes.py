"""Classes of tiles: those that lie in the same grids have the same memory, and are counted once."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.program.mapping import Tiles

Numbers = NDArray[np.int64]
Array = np.ndarray[Any, Any]
_GRIDS_AT_ONCE = 4096
"""Grids that are compared in one go: 6 MB of marks for the tiles of a GC200."""


@dataclass(frozen=True, eq=False)
class TileClasses:
    """The classes of one IPU's tiles, numbered by their first tile."""

    of_tile: Numbers
    """Class of each tile."""
    first_tile: Numbers
    """Lowest tile of each class."""
    members: dict[Tiles, slice | Numbers]
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
    first = np.zeros(min(1, tiles_per_ipu), np.int64)
    for start in range(0, len(grids), _GRIDS_AT_ONCE):
        some = grids[start : start + _GRIDS_AT_ONCE]
        marks = np.zeros((len(some), tiles_per_ipu), np.bool_)
        for row, grid in zip(marks, some, strict=True):
            row[grid.numbers.ravel()] = True
        packed = np.packbits(marks, axis=0).T
        rows = np.concatenate([of_tile[:, None].view(np.uint8), packed], axis=1)
        keys = np.ascontiguousarray(rows).view([("", np.void, rows.shape[1])]).ravel()
        _, first, of_tile = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    of_tile = rank[of_tile]
    members = {grid: _as_slice(np.unique(of_tile[grid.numbers.ravel()])) for grid in grids}
    return TileClasses(of_tile, first[order], members)


def _as_slice(classes: Numbers) -> slice | Numbers:
    """Return numbers in a row as a slice, which is several times as fast to index with."""
    if len(classes) and classes[-1] - classes[0] + 1 == len(classes):
        return slice(int(classes[0]), int(classes[-1]) + 1)
    return classes
