"""Which elements tiles have of a variable, and which ones vertices need: counted, not derived."""

from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from hloipu_runtime.codelets.core.codelet import Index
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.program.mapping import Tiles
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import VertexGroup

Ranges = tuple[tuple[int, int], ...]


@lru_cache(256)
def tiles_of(tiles: Tiles) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Return the coordinates of a grid, and the tile at each."""
    return tuple(
        (
            coordinate,
            tiles.first
            + sum(k * stride for k, stride in zip(coordinate, tiles.strides, strict=True)),
        )
        for coordinate in product(*map(range, tiles.extents))
    )


def part_of(spans: Any, coordinate: tuple[int, ...], shape: tuple[int, ...]) -> Ranges:
    """Return the elements that spans give to the tile at a coordinate."""
    found = []
    for (axis, step, offset, length), size in zip(spans, shape, strict=True):
        start = offset + (coordinate[axis] * step if axis >= 0 else 0)
        low = min(max(start, 0), size)
        found.append((low, max(low, min(start + length, size))))
    return tuple(found)


def cut(box: Ranges, within: Ranges | None = None) -> tuple[slice, ...]:
    """Return an index for a box, in an array that begins where `within` does."""
    starts = [low for low, _ in within] if within else [0] * len(box)
    return tuple(slice(low - s, high - s) for (low, high), s in zip(box, starts, strict=True))


def is_inside(box: Ranges, other: Ranges) -> bool:
    return all(a <= low and high <= b for (low, high), (a, b) in zip(box, other, strict=True))


def is_empty(box: Ranges) -> bool:
    return any(low >= high for low, high in box)


@lru_cache(1 << 16)
def _indices_for(index: Index, count: int, low: int, high: int, size: int) -> tuple[int, int]:
    """Return the iteration indices whose part of a result's dimension lies in [low, high)."""
    starts = np.arange(count) * index.stride + index.offset
    first, last = np.clip(starts, 0, size), np.clip(starts + index.window, 0, size)
    chosen = np.flatnonzero((first >= low) & (last <= high) & (first < last))
    return (int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) else (0, 0)


def _touched(index: Index, first: int, last: int, size: int) -> tuple[int, int]:
    """Return the elements of a dimension behind indices [first, last); all where last is -1."""
    if last < 0:
        return (0, size)
    low = min(max(index.stride * first + index.offset, 0), size)
    high = index.stride * (last - 1) + index.offset + index.window
    return (low, max(low, min(high, size)) if last > first else low)


def is_one_of(box: Ranges, allowed: list[Ranges]) -> bool:
    """Whether a part is what is needed, or all where that is allowed, or nothing where nothing is.

    The last of several parts may have more at its end: it is cut where the dimension is, and not
    where the indices are.
    """
    if is_empty(box):
        return any(map(is_empty, allowed))
    return all(
        have == whole or (have[0] == need[0] and have[1] >= need[1])
        for have, need, whole in zip(box, *allowed, strict=True)
    )


def needed_parts(program: Program, group: VertexGroup, results: list[Ranges]) -> list[list[Ranges]]:
    """Return the elements of each operand that parts of the results are computed from.

    Two boxes of each: what windows touch, and for indices of which a tile has all the whole
    dimension, which a codelet may then take instead.
    """
    x = program.variables
    tensors = [
        [Tensor(x[o.variable].element_type, x[o.variable].shape) for o in side]
        for side in (group.inputs, group.outputs)
    ]
    indexing = group.codelet.indexing(*tensors)
    labels: dict[int, tuple[int, int]] = {}
    for indices, box, tensor in zip(indexing.results, results, tensors[1], strict=True):
        for index, (low, high), size in zip(indices, box, tensor.shape, strict=True):
            if index.label >= 0:
                count = indexing.sizes[index.label]
                labels[index.label] = _indices_for(index, count, low, high, size)
    found = []
    for indices, tensor in zip(indexing.operands, tensors[0], strict=True):
        touched, whole = [], []
        for index, size in zip(indices, tensor.shape, strict=True):
            first, last = labels.get(index.label, (0, -1))
            touched.append(_touched(index, first, last, size))
            is_all = last < 0 or (first, last) == (0, indexing.sizes[index.label])
            whole.append((0, size) if is_all else touched[-1])
        found.append([tuple(touched), tuple(whole)])
    return found
