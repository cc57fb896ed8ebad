"""Results that are views, offsets of a class's parts, and parts that are one box of a tensor."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from hloipu_runtime.codelets.core.tensors import Array, Block
from hloipu_runtime.kernels.core.movement import copy_into


def delivered(view: Array, result: Block) -> Array:
    """Return a result: the view itself, or the result's own array with the view copied into it."""
    if result.array is None or result.array is view:
        return view
    copy_into(result.array, view)
    return result.array


def first_start(block: Block, dimension: int) -> int:
    """Return where the part of the first tile begins."""
    start = block.starts[dimension]
    return start if isinstance(start, int) else int(np.asarray(start).flat[0])


def is_whole(block: Block) -> bool:
    """Whether a block is the whole tensor, not the part of a class of one tile."""
    return not block.grid and block.part == block.whole


def after_grid(grid: Sequence[int], dimensions: Sequence[int]) -> tuple[int, ...]:
    """Return the axes of an array that starts with the grid's: all of these, then dimensions."""
    rank = len(grid)
    return (*range(rank), *(rank + d for d in dimensions))


def is_shared(x: Array, axis: int) -> bool:
    """Whether all positions along an axis are the same memory."""
    return x.shape[axis] == 1 or x.strides[axis] == 0


def same_memory(a: Array, b: Array) -> bool:
    """Whether two arrays are one and the same memory, element for element."""
    if a is b:
        return True
    same_form = a.dtype == b.dtype and a.shape == b.shape and a.strides == b.strides
    return same_form and _address(a) == _address(b)


def _address(x: Array) -> int:
    address: int = x.__array_interface__["data"][0]
    return address


def owned_copy(source: Block, result: Block) -> Array:
    """Return an array for the result that holds the operand: its own memory if it is the result's.

    The caller may write the array.
    """
    if result.array is None:
        fresh = np.empty(source.data.shape, source.data.dtype)
        copy_into(fresh, source.data)
        return fresh
    if not same_memory(result.array, source.data):
        copy_into(result.array, source.data)
    return result.array


def line_of_starts(block: Block, dimension: int) -> tuple[int, Array]:
    """Return the grid axis along which parts of a dimension start elsewhere, and the starts.

    Axis -1: all start at the same place. A dimension follows one label, so there is one axis.
    """
    starts = np.asarray(block.starts[dimension], np.int64)
    long = [axis for axis, extent in enumerate(starts.shape) if extent > 1]
    if not long:
        return -1, starts.reshape(-1)[:1]
    axis = long[0] + len(block.grid) - starts.ndim
    return axis, starts.reshape(-1)


Box = tuple[tuple[int, int], ...]
"""Of each dimension: the first element and the one behind the last."""
View = Callable[[Array], Array]


def box_of_parts(block: Block, *, shared: bool = False) -> tuple[View, Box] | None:
    """Return what sees arrays that lie as the block's does as one box of the tensor, and the box.

    No copy is made. None where parts overlap or lie apart. Of parts that repeat the first is taken
    if they are `shared`; else there is no such view.
    """
    array, rank = block.data, len(block.grid)
    order: list[int] = []
    shape, box = [], []
    for d, size in enumerate(block.part):
        axis, starts = line_of_starts(block, d)
        if any(b - a != size for a, b in pairwise(starts.tolist())):
            return None
        if axis >= 0:
            if axis in order or array.strides[axis] != size * array.strides[rank + d]:
                return None
            order.append(axis)
        order.append(rank + d)
        shape.append(size * len(starts))
        low = first_start(block, d)
        box.append((low, min(low + shape[-1], block.whole[d])))
    others = [axis for axis in range(rank) if axis not in order]
    if any(array.shape[axis] > 1 and not (shared and is_shared(array, axis)) for axis in others):
        return None
    order = [*others, *order]
    once = *(0 for _ in others), ...  # a view even where no dimension is left
    used = *(slice(0, high - low) for low, high in box), ...
    return lambda x: x.transpose(order)[once].reshape(shape)[used], tuple(box)


def whole_of_parts(block: Block, *, shared: bool = False) -> View | None:
    """Return what `box_of_parts` does where the box is the whole tensor, else None."""
    found = box_of_parts(block, shared=shared)
    if found is None or found[1] != tuple((0, n) for n in block.whole):
        return None
    return found[0]


def follows(block: Block, dimension: int, leader: Block, followed: int) -> bool:
    """Whether a dimension is on each tile whole, or cut just as one of another tensor."""
    axis, starts = line_of_starts(block, dimension)
    if axis < 0 and block.part[dimension] == block.whole[dimension]:
        return True
    same_axis, same_starts = line_of_starts(leader, followed)
    return (
        axis == same_axis
        and block.part[dimension] == leader.part[followed]
        and starts.tolist() == same_starts.tolist()
    )
