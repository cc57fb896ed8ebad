"""Computes a whole grid of tiles at once, shared work only once."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks


class Shared(NamedTuple):
    """Arrays of a class; grid axes along which all tiles hold the same have one position."""

    arrays: list[Array]
    grid: tuple[int, ...]
    """Extents that are left: 1 along the shared axes."""


def share(operands: Blocks) -> Shared:
    """Cut grid axes that are multicast (stride 0) in every operand to their first position."""
    grid = operands[0].grid if operands else ()
    cut = shared_axes(operands)
    if all(axis == slice(None) for axis in cut):
        return Shared([block.data for block in operands], grid)
    left = tuple(n if axis == slice(None) else 1 for axis, n in zip(cut, grid, strict=True))
    return Shared([block.data[cut] for block in operands], left)


def shared_axes(operands: Blocks) -> tuple[slice, ...]:
    """Return what `share` takes of each grid axis."""
    grid = operands[0].grid if operands else ()
    return tuple(
        slice(0, 1) if all(block.data.strides[axis] == 0 for block in operands) else slice(None)
        for axis in range(len(grid))
    )


def spread(result: Array, grid: Sequence[int], computed: Sequence[int]) -> Array:
    """Give the axes that `share` cut their extents back, as a view that repeats."""
    result = np.asarray(result)
    if tuple(grid) == tuple(computed):
        return result
    return np.broadcast_to(result, (*grid, *result.shape[len(grid) :]))


class Pair(NamedTuple):
    """Two operands without the grid axes along which each is the same on all tiles."""

    lhs: Array
    rhs: Array
    varies: tuple[tuple[bool, bool], ...]
    """For each grid axis, whether lhs and whether rhs has it."""


def pair(lhs: Block, rhs: Block) -> Pair:
    """Take shared grid axes off each of two operands; tiles then make all pairs of their parts."""
    a, b = lhs.data, rhs.data
    varies = tuple(
        (n > 1 and a.strides[axis] != 0, n > 1 and b.strides[axis] != 0)
        for axis, n in enumerate(lhs.grid)
    )
    left = tuple(slice(None) if has else 0 for has, _ in varies)
    right = tuple(slice(None) if has else 0 for _, has in varies)
    return Pair(a[left], b[right], varies)


def repeat(result: Array, varies: Sequence[tuple[bool, bool]], shape: Sequence[int]) -> Array:
    """Put the grid axes that neither operand has back into a result, as a view that repeats."""
    for axis, has in enumerate(varies):
        if not any(has):
            result = np.expand_dims(result, axis)
    return result if result.shape == shape else np.broadcast_to(result, shape)


def split(x: Array, dim: int, start: int, stop: int, size: int) -> Array:
    """Return [start, stop) of a dimension seen as pieces of `size`, without a copy."""
    taken = x[(slice(None),) * dim + (slice(start, stop),)]
    return taken.reshape(*x.shape[:dim], (stop - start) // size, size, *x.shape[dim + 1 :])


def moved(x: Array, source: int, target: int) -> Array:
    """Return an array with one dimension elsewhere, as `np.moveaxis` does in ten times as long."""
    if source == target:
        return x
    order = [d for d in range(x.ndim) if d != source]
    order.insert(target, source)
    return x.transpose(order)


def piece_runs(length: int, size: int) -> list[tuple[int, int, int]]:
    """Return start, stop and size of runs of equal pieces: the whole ones, then the short last."""
    whole = length - length % size
    runs = [(0, whole, size)] if whole or not length else []
    return [*runs, (whole, length, length - whole)] if whole < length else runs


def distinct_scalars(blocks: Blocks) -> list[Array] | None:
    """Return the values of operands of rank 0; None where tiles hold different ones.

    All tiles of a correct program hold the same; a tile that does not must be seen to.
    """
    values = []
    for block in blocks:
        value = one_of(block)(block.data)
        if value is None:
            return None
        values.append(value)
    return values


def one_of(block: Block) -> Callable[[Array], Array | None]:
    """Return what takes the value of an operand of rank 0, or None where tiles differ.

    It is called with arrays that lie as that of the block does.
    """
    array = block.data
    if not array.ndim:
        return lambda x: x
    start = (0,) * array.ndim
    stored_once = tuple(slice(0, 1) if step == 0 else slice(None) for step in array.strides)
    is_one = array[stored_once].size <= 1

    def value(x: Array) -> Array | None:
        first = np.array(x[start])
        return first if is_one or _same_bytes(x[stored_once], first) else None

    return value


def are_stored_once(blocks: Blocks) -> bool:
    """Whether operands of rank 0 are the same memory on all tiles."""
    return all(
        not step or extent == 1
        for block in blocks
        for extent, step in zip(block.data.shape, block.data.strides, strict=True)
    )


def _same_bytes(array: Array, first: Array) -> bool:
    return array.tobytes() == first.tobytes() * array.size


def one_by_one(
    run: Callable[[Blocks, Blocks], list[Array]],
    operands: Blocks,
    results: Blocks,
    dtypes: Sequence[np.dtype[Any]],
) -> list[Array]:
    """Run on one tile after the other: for what cannot be computed on a grid."""
    grid = results[0].grid
    wholes = [np.empty((*grid, *r.part), dtype) for r, dtype in zip(results, dtypes, strict=True)]
    for place in product(*map(range, grid)):
        parts = run(
            [_at(block, place)._replace(array=np.asarray(block.data[place])) for block in operands],
            [_at(r, place) for r in results],
        )
        for whole, part in zip(wholes, parts, strict=True):
            whole[place] = part
    return wholes


def _at(block: Block, place: tuple[int, ...]) -> Block:
    """Return the block of one tile, without its array."""
    starts = [int(np.broadcast_to(start, block.grid)[place]) for start in block.starts]
    return Block(None, (), block.part, tuple(starts), block.whole)
