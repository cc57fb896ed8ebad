"""Reduction by an arbitrary region, called on whole arrays along the reduced extent only."""

from collections.abc import Sequence
from math import prod

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.monoids import Region
from hloipu_runtime.kernels.core.movement import contiguous

SEQUENTIAL_STEPS = 64
"""Longest extent that a region not known to be associative is folded over one by one."""

BLOCK_ELEMENTS = 1 << 17
"""Elements of one operand that are folded at once."""


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
    views = [x.transpose((*wanted, *kept)) for x in operands]
    accumulators: list[Array] = [
        np.broadcast_to(np.asarray(i), kept_shape).astype(x.dtype)
        for i, x in zip(inits, operands, strict=True)
    ]
    if count == 0 or prod(kept_shape) == 0:
        return accumulators
    if associative is None:
        associative = count > SEQUENTIAL_STEPS
    if associative:
        return list(region(*accumulators, *_fold_blocks(views, len(wanted), region)))
    slabs = [contiguous(v).reshape(count, *kept_shape) for v in views]
    for k in range(count):
        accumulators = list(region(*accumulators, *(s[k] for s in slabs)))
    return accumulators


def _fold_blocks(views: Sequence[Array], extent_rank: int, region: Region) -> list[Array]:
    """Fold the leading axes pairwise, in blocks along the first kept axis that stay in cache."""
    extent, kept_shape = views[0].shape[:extent_rank], views[0].shape[extent_rank:]
    count = prod(extent)
    step = prod(kept_shape[:1])
    while step > 1 and count * step * prod(kept_shape[1:]) > BLOCK_ELEMENTS:
        step = (step + 1) // 2
    blocks: list[list[Array]] = []
    for start in range(0, prod(kept_shape[:1]), step):
        at = (*(slice(None) for _ in extent), slice(start, start + step)) if kept_shape else ...
        pieces = [v[at] for v in views]
        slabs = [contiguous(p).reshape(count, *p.shape[extent_rank:]) for p in pieces]
        blocks.append(fold_pairwise(slabs, region))
    if len(blocks) == 1:
        return blocks[0]
    return [np.concatenate(parts) for parts in zip(*blocks, strict=True)]


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
