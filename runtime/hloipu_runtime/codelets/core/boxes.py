"""Parts of tiles that lie side by side, seen as the one box of the tensor that they make up."""

from collections.abc import Callable
from itertools import pairwise

from hloipu_runtime.codelets.core.codelet import Array, Block
from hloipu_runtime.codelets.core.placing import first_start, is_shared, line_of_starts

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
    once = (0,) * len(others)
    used = tuple(slice(0, high - low) for low, high in box)
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
