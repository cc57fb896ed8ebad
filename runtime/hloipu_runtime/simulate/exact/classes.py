"""Size classes: tiles of a vertex group whose parts are of one size are computed in one call."""

from collections.abc import Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from hloipu_runtime.program.mapping import Sizes, Spans, Tiles

GridSlice = tuple[tuple[int, int], ...]
"""For each grid axis, first coordinate and the one after the last."""


class Part(NamedTuple):
    """One operand's parts on the tiles of a class: equal sizes, equally cut at the low end."""

    sizes: Sizes
    cut: Sizes
    """Elements cut off at the low end of each dimension."""


class SizeClass(NamedTuple):
    """Tiles that form a box of the grid, and the parts of every operand there."""

    grid: GridSlice
    parts: tuple[Part, ...]


def size_classes(
    tiles: Tiles, operands: Sequence[Spans], shapes: Sequence[Sizes]
) -> tuple[SizeClass, ...]:
    """Return the classes of a group; tiles where nothing is to be written are in none.

    Closed in the number of tiles: each grid axis is cut by itself, into three or fewer runs but
    for unusual spans, and classes are products of runs.
    """
    runs = [_runs(axis, extent, operands, shapes) for axis, extent in enumerate(tiles.extents)]
    classes = []
    for grid in product(*runs):
        parts = tuple(
            _part(spans, shape, grid) for spans, shape in zip(operands, shapes, strict=True)
        )
        classes.append(SizeClass(grid, parts))
    return tuple(classes)


def _runs(
    axis: int, extent: int, operands: Sequence[Spans], shapes: Sequence[Sizes]
) -> list[tuple[int, int]]:
    coordinates = np.arange(extent)
    columns = []
    for spans, shape in zip(operands, shapes, strict=True):
        for span, size in zip(spans, shape, strict=True):
            if span.axis != axis:
                continue
            starts = coordinates * span.step + span.offset
            low = np.clip(starts, 0, size)
            columns += [np.clip(starts + span.size, 0, size) - low, low - starts]
    if not columns:
        return [(0, extent)]
    rows = np.stack(columns, 1)
    changes = np.flatnonzero((rows[1:] != rows[:-1]).any(1)) + 1
    cuts = [0, *changes.tolist(), extent]
    return list(pairwise(cuts))


def _part(spans: Spans, shape: Sizes, grid: GridSlice) -> Part:
    sizes, cuts = [], []
    for span, size in zip(spans, shape, strict=True):
        start = span.offset + (grid[span.axis][0] * span.step if span.axis >= 0 else 0)
        low = min(max(start, 0), size)
        sizes.append(max(0, min(start + span.size, size) - low))
        cuts.append(low - start)
    return Part(tuple(sizes), tuple(cuts))
