"""Running totals and the greatest elements along a divided dimension: of each block, then of all.

A running total of a block lacks what the blocks before it add up to: one row of each. The k
greatest of all are among the k greatest of each block.
"""

import numpy as np

from hloipu_compiler.ir.attributes import Window
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.partition.spmd.blocks import S32, Blocks
from hloipu_compiler.partition.spmd.cuts import PERMUTATION, WHOLE, Cut, is_neutral
from hloipu_compiler.partition.spmd.local_ops import local_op
from hloipu_compiler.passes.framework.constant_values import scalar_constant
from hloipu_runtime.kernels.windows_geometry import WindowDimension


def running_monoid(b: Blocks, cut: Cut) -> str | None:
    """Return what a reduce-window adds up from one end, along the dimension that is divided."""
    op, monoid = cut.x, cut.monoid
    windows = op.attributes.window().dimensions
    along = cut.along(0, PERMUTATION)
    if len(along) != 1:
        return None
    n, window = along[0].size, windows[along[0].d]
    ends = (WindowDimension(n, pad_low=n - 1), WindowDimension(n, pad_high=n - 1))
    if n < 2 or window not in ends or monoid is None:
        return None
    init = scalar_constant(b.draft.old.instructions[op.operands[1]])
    return monoid if is_neutral(init, monoid, cut.shapes[0]) else None


def run_up(b: Blocks, cut: Cut, operands: list[int], monoid: str) -> int:
    """Write a running total."""
    op, (at, init) = cut.x, operands
    (along,) = cut.along(0, PERMUTATION)
    kind, d = b.shape(at).element_type, along.d
    neutral = b.neutral(op, monoid, kind)
    at = b.masked(op, at, along, neutral)
    windows = list(op.attributes.window().dimensions)
    forward = windows[d].pad_low > 0
    block = along.block
    windows[d] = WindowDimension(
        block, pad_low=(block - 1) * forward, pad_high=(block - 1) * (not forward)
    )
    attributes = op.attributes.replaced(window=Window(tuple(windows)))
    own = local_op(b, cut, (at, init), attributes)
    totals = b.cut(op, own, d, block - 1 if forward else 0, 1)
    rank = len(b.shape(totals).dimensions)
    every = b.reshards.gathered(op, totals, d, along.parts)
    mine = b.by_block(op, along.parts, np.arange(along.count) + (0 if forward else 1))
    limits = (None, mine) if forward else (mine, None)
    before = b.rows_between(op, along.count, *limits)
    every = b.kept(op, every, d, before, neutral)
    sizes = list(b.shape(every).dimensions)
    del sizes[d]
    total = b.reduced(op, every, (d,), neutral, op.attributes.text("to_apply"))
    others = [i for i in range(rank) if i != d]
    spread = b.spread(op, total, b.shape(own).dimensions, *others)
    return b.apply(op, monoid, *((spread, own) if forward else (own, spread)))


def greatest(b: Blocks, cut: Cut, operands: list[int]) -> int:
    """Write a top-k: of each block, then of what all blocks have found, in the order of blocks.

    Equal elements thus stay in the order of their indices.
    """
    op, (at,) = cut.x, operands
    (along,) = cut.along(0, WHOLE)
    d, k = along.d, op.attributes.integer("k")
    few = min(k, along.block)
    own = _top(b, op, at, few)
    offset = b.by_block(op, along.parts, along.starts)
    places = b.apply(op, "add", own[1], b.spread(op, offset, b.shape(own[1]).dimensions))
    values, places = (b.reshards.gathered(op, each, d, along.parts) for each in (own[0], places))
    best, chosen = _top(b, op, values, k)
    batch = tuple(range(d))
    shape = b.shape(chosen)
    rows = b.add(op, "reshape", S32, (*shape.dimensions, 1), (chosen,))
    picked = b.add(
        op, "gather", S32, shape.dimensions, (places, rows),
        offset_dims=(), collapsed_slice_dims=(d,), start_index_map=(d,),
        operand_batching_dims=batch, start_indices_batching_dims=batch,
        index_vector_dim=d + 1, slice_sizes=(1,) * (d + 1),
    )  # fmt: skip
    results = (best, picked)
    return b.draft.add(op, "tuple", TupleShape(tuple(map(b.shape, results))), results)


def _top(b: Blocks, op: Instruction, at: int, k: int) -> tuple[int, int]:
    """Return the k greatest elements along the minor dimension, and their places."""
    from hloipu_compiler.passes.algebra.expand_bitcasts import plain

    sizes = (*b.shape(at).dimensions[:-1], k)
    kinds = (b.shape(at).element_type, S32)
    shapes = tuple(plain(kind, sizes) for kind in kinds)
    attributes = op.attributes.replaced(k=k)
    top = b.draft.append(
        op._replace(
            shape=TupleShape(shapes), operands=(at,), attributes=attributes,
            name=b.draft.fresh_name(op.name),
        )
    )  # fmt: skip
    return b.draft.element(op, top, 0), b.draft.element(op, top, 1)
