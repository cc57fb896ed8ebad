"""Many convolutions of one shape at once: leading axes become groups, batch or features.

An axis that both operands have is one of groups, one of lhs alone of batch, one of rhs alone of
features: one convolution in canonical form computes them all.
"""

from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloipu_runtime.kernels.core.blocks import Array

Sizes = tuple[int, ...]
Varies = tuple[tuple[bool, bool], ...]
"""For each leading axis of the result, whether lhs has it and whether rhs does: one at least."""


class Axes(NamedTuple):
    """An operand's leading axes by number: those that the other has too, and the rest."""

    both: Sizes
    alone: Sizes


class Leading(NamedTuple):
    """The leading axes of both operands, and how those of the product go back in order."""

    of_lhs: Axes
    of_rhs: Axes
    order: Sizes
    """Of leading axes, group, batch, feature in [both, group, lhs, batch, rhs, feature]."""


@lru_cache(maxsize=256)
def leading_axes(varies: Varies) -> Leading:
    """Sort out which leading axes the operands have."""
    lhs_axes = [axis for axis, (left, _) in enumerate(varies) if left]
    rhs_axes = [axis for axis, (_, right) in enumerate(varies) if right]
    both = [axis for axis in lhs_axes if axis in rhs_axes]
    lhs_only = [axis for axis in lhs_axes if axis not in both]
    rhs_only = [axis for axis in rhs_axes if axis not in both]
    group = len(both)
    batch = group + 1 + len(lhs_only)
    feature = batch + 1 + len(rhs_only)
    place = dict(zip(both, range(group), strict=True))
    place |= dict(zip(lhs_only, range(group + 1, batch), strict=True))
    place |= dict(zip(rhs_only, range(batch + 1, feature), strict=True))
    return Leading(
        Axes(tuple(map(lhs_axes.index, both)), tuple(map(lhs_axes.index, lhs_only))),
        Axes(tuple(map(rhs_axes.index, both)), tuple(map(rhs_axes.index, rhs_only))),
        (*(place[axis] for axis in sorted(place)), group, batch, feature),
    )


def merge_leading(x: Array, shape: Sizes, order: Sizes, axes: Axes) -> Array:
    """Bring an operand into canonical form, its leading axes merged into the first two dims.

    `shape` and `order` reshape and transpose the dimensions behind the leading axes.
    """
    rank = len(axes.both) + len(axes.alone)
    sizes = x.shape[:rank]
    split = x.reshape((*sizes, *shape))
    first, second, *rest = (rank + d for d in order)
    turned = split.transpose((*axes.both, first, *axes.alone, second, *rest))
    if rank == 0:
        return turned
    groups = prod(sizes[axis] for axis in axes.both) * shape[order[0]]
    others = prod(sizes[axis] for axis in axes.alone) * shape[order[1]]
    return turned.reshape((groups, others, *turned.shape[rank + 2 :]))


def split_leading(
    out: Array, leading: Leading, shape: Sizes, lhs_sizes: Sizes, rhs_sizes: Sizes
) -> Array:
    """Undo the merge in a canonical result: leading axes in order, then the dims of one of them.

    `shape` is [group, batch, feature, spatial...] of one; the sizes are of the operands' axes.
    """
    groups, batch, features, *spatial = shape
    both = (lhs_sizes[axis] for axis in leading.of_lhs.both)
    lhs_only = (lhs_sizes[axis] for axis in leading.of_lhs.alone)
    rhs_only = (rhs_sizes[axis] for axis in leading.of_rhs.alone)
    split = out.reshape((*both, groups, *lhs_only, batch, *rhs_only, features, *spatial))
    return split.transpose((*leading.order, *range(len(leading.order), split.ndim)))
