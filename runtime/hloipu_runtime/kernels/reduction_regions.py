"""Reduction by an arbitrary region, called on whole arrays along the reduced extent only."""

from collections.abc import Sequence
from math import prod

import numpy as np

from hloipu_runtime.kernels.blocks import Array
from hloipu_runtime.kernels.monoids import Region
from hloipu_runtime.kernels.movement import contiguous

SEQUENTIAL_STEPS = 64
"""Longest extent that a region not known to be associative is folded over one by one."""


def reduce_region(
    operands: Sequence[Array],
    inits: Sequence[Array],
    dimensions: Sequence[int],
    region: Region,
    *,
    associative: bool | None = None,
) -> list[Array]:
    """Reduce n operands together by `region(acc.., value..)`, in row-major order of the extent.

    XLA:CPU folds `acc = region(acc, value)` from the init on. `associative=False` does the same,
    with one call for each position. `True` combines neighbours pairwise, which keeps their order
    and takes log2(n) calls. `None`, for a region of unknown algebra, folds up to
    `SEQUENTIAL_STEPS` positions one by one and longer extents pairwise: HLO leaves the order open,
    so a region that tells the difference has no defined value there.
    """
    wanted = sorted(set(dimensions))
    kept = [d for d in range(operands[0].ndim) if d not in wanted]
    shape = operands[0].shape
    kept_shape = tuple(shape[d] for d in kept)
    count = prod(shape[d] for d in wanted)
    # The extent goes first, so that each position is one contiguous slab.
    slabs = [
        contiguous(x.transpose((*wanted, *kept))).reshape(count, *kept_shape) for x in operands
    ]
    accumulators: list[Array] = [
        np.broadcast_to(np.asarray(i), kept_shape).astype(s.dtype)
        for i, s in zip(inits, slabs, strict=True)
    ]
    if count == 0 or prod(kept_shape) == 0:
        return accumulators
    if associative is None:
        associative = count > SEQUENTIAL_STEPS
    if associative:
        return list(region(*accumulators, *fold_pairwise(slabs, region)))
    for k in range(count):
        accumulators = list(region(*accumulators, *(s[k] for s in slabs)))
    return accumulators


def fold_pairwise(slabs: Sequence[Array], region: Region) -> list[Array]:
    """Combine neighbours along the first axis until one is left; order is kept."""
    current = list(slabs)
    while (count := current[0].shape[0]) > 1:
        even = count - count % 2
        folded = region(*(s[0:even:2] for s in current), *(s[1:even:2] for s in current))
        if even != count:
            folded = [np.concatenate([f, s[-1:]]) for f, s in zip(folded, current, strict=True)]
        current = list(folded)
    return [s[0, ...] for s in current]
