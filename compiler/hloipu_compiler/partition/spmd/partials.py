"""Partial results: what each device begins with, what padding counts as, and what combines them."""

from collections.abc import Sequence

import numpy as np

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.factors import FactorKind
from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.shapes import ArrayShape, leaves_of
from hloipu_compiler.partition.spmd.blocks import PRED, Block, Blocks
from hloipu_compiler.partition.spmd.cuts import SUMMED, Cut, is_neutral
from hloipu_compiler.partition.spmd.local_ops import STATED
from hloipu_compiler.partition.spmd.reshard_steps import Split
from hloipu_compiler.passes.algebra.expand_bitcasts import plain
from hloipu_compiler.passes.framework.attribute_edits import without
from hloipu_compiler.passes.framework.constant_values import scalar_constant

REDUCTION = FactorKind.REDUCTION


def prepared(b: Blocks, old: Computation, cut: Cut, operands: Sequence[int]) -> list[int]:
    """Return operands whose padding, and whose initial values on all devices, count for nothing."""
    masked, op = list(operands), cut.x
    if not cut.has(REDUCTION):
        return masked
    count = len(operands) // 2
    parts = cut.parts_of(REDUCTION)
    if cut.monoid is not None:
        kind = b.shape(masked[0]).element_type
        neutral = b.neutral(op, cut.monoid, kind)
        at = 0 if cut.updates else 1
        value = scalar_constant(old.instructions[op.operands[at]])
        if not is_neutral(value, cut.monoid, cut.shapes[0]):
            masked[at] = _once(b, cut, masked[at], neutral, parts)
    for array in range(len(operands)):
        for along in cut.along(array, REDUCTION):
            if op.opcode in SUMMED:
                fill = b.constant(op, b.shape(masked[array]).element_type, 0)
            elif cut.monoid is not None:
                fill = neutral
            else:
                fill = masked[count + array]
            masked[array] = b.masked(op, masked[array], along, fill)
    return masked


def _once(b: Blocks, cut: Cut, at: int, neutral: int, parts: tuple[int, ...]) -> int:
    """Return an array on the first device along some parts, a neutral scalar on the others."""
    is_first = np.arange(b.axes.extent(parts)) == 0
    sizes = b.shape(at).dimensions
    first = b.spread(cut.x, b.by_block(cut.x, parts, is_first, PRED), sizes)
    return b.apply(cut.x, "select", first, at, b.spread(cut.x, neutral, sizes))


def partial_results(b: Blocks, cut: Cut, at: int) -> list[Block]:
    """Return an op's results, which wait to be combined until they are read.

    Those of a reduction that is no single op are combined at once.
    """
    own = cut.splits[cut.first_result :]
    if cut.x.opcode == "reduce" and cut.monoid is None:
        return _again(b, cut, at, own)
    kind = b.shape(at).element_type
    opcode = cut.monoid or ("or" if kind is PRED else "add")
    named = cut.x.attributes.text("to_apply") if cut.monoid else b.combiner(opcode, kind)
    return [Block(at, own[0], cut.partial, named, sums=opcode == "add")]


def _again(b: Blocks, cut: Cut, at: int, splits: Sequence[Split]) -> list[Block]:
    """Gather the results of all blocks, and reduce these by the same computation."""
    op, draft = cut.x, b.draft
    count = len(cut.rule.operands) // 2
    parts = tuple(sorted(cut.parts_of(REDUCTION)))
    reduction = draft.made[at]
    gathered = []
    for leaf in leaves_at(b, at):
        shape = b.shape(leaf)
        row = b.add(op, "reshape", shape.element_type, (1, *shape.dimensions), (leaf,))
        gathered.append(b.reshards.gathered(op, row, 0, parts))
    attributes = without(reduction.attributes, (*STATED, "dimensions")).replaced(dimensions=(0,))
    operands = (*gathered, *reduction.operands[count:])
    again = draft.add(op, "reduce", draft.shape(at), operands, attributes)
    leaves = leaves_at(b, again)
    return [Block(leaf, split) for leaf, split in zip(leaves, splits, strict=True)]


def leaves_at(b: Blocks, at: int) -> list[int]:
    """Return the arrays of a result that is one, or a flat tuple of them."""
    shape = b.draft.shape(at)
    if isinstance(shape, ArrayShape):
        return [at]
    op = b.draft.made[at]
    return [
        b.draft.add(
            op, "get-tuple-element", plain(leaf.element_type, leaf.dimensions), (at,),
            Attributes({"index": number}),
        )
        for number, leaf in enumerate(leaves_of(shape))
    ]  # fmt: skip
