"""Partial results: what each device begins with, what padding counts as, and what combines them.

They are added up late, and together: a sum of partial sums is a partial sum of the results: two
that are added need one all-reduce, and one that is summed on a smaller one. An op waits with the
sum only where nothing else reads it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.factors import FactorKind
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, leaves_of
from hloipu_compiler.partition.spmd.axes import DeviceAxes, parts_along
from hloipu_compiler.partition.spmd.blocks import PRED, Block, Blocks
from hloipu_compiler.partition.spmd.cuts import SUMMED, Cut, is_neutral, whole_cut
from hloipu_compiler.partition.spmd.local_ops import STATED
from hloipu_compiler.partition.spmd.reshard_steps import Axes, Split
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


_LINEAR = frozenset("negate copy transpose reshape".split())
_REPEATING = frozenset("broadcast reshape copy".split())
"""Opcodes that leave all elements one that are."""


def delayed(
    module: Module, computation: Computation, op: Instruction, given: Sequence[Block],
    axes: DeviceAxes, readers: Mapping[int, int],
) -> tuple[Cut | None, Axes]:  # fmt: skip
    """Return how an op is divided that takes partial sums as operands, and their parts.

    None where the sums have to be added up before. `given`: the operands; `readers`: how many ops
    read each instruction.
    """
    partial = next((block.partial for block in given if block.partial), ())
    if not partial or not _is_linear(computation, op, given, readers):
        return None, ()
    cut = whole_cut(module, computation, op, axes)
    if op.opcode == "reduce" and not _adds_nothing(computation, cut):
        return None, ()
    parts = _parts_as_held(cut, given)
    return (None, ()) if parts is None else (replace(cut, parts=parts), partial)


def _is_linear(
    computation: Computation, op: Instruction, given: Sequence[Block], readers: Mapping[int, int]
) -> bool:
    """Whether an op of partial sums gives a partial sum."""
    if len(given) != len(op.operands) or (op.attributes.called and op.opcode != "reduce"):
        return False
    for block, i in zip(given, op.operands, strict=True):
        if block.partial and (readers[i] > 1 or not block.sums):
            return False
    if op.opcode in ("add", "subtract"):
        a, b = given
        return (a.partial, a.split) == (b.partial, b.split)
    if op.opcode in ("multiply", "divide"):
        other = 1 if given[0].partial else 0
        both = bool(given[0].partial and given[1].partial)
        allowed = not both and (other == 1 or op.opcode == "multiply")
        return allowed and _is_splat(computation, op.operands[other])
    if op.opcode == "reduce":
        return len(given) == 2 and not given[1].partial
    return op.opcode in _LINEAR


def _adds_nothing(computation: Computation, cut: Cut) -> bool:
    """Whether a reduction adds up its operand and nothing else."""
    start = scalar_constant(computation.instructions[cut.x.operands[1]])
    return cut.monoid == "add" and is_neutral(start, "add", cut.shapes[0])


def _parts_as_held(cut: Cut, given: Sequence[Block]) -> dict[int, Axes] | None:
    """Return the parts along each factor by which partial operands are divided.

    None where an operand would have to be sent, or the result cannot be divided so.
    """
    rule, axes = cut.rule, cut.axes
    number, block = next((i, block) for i, block in enumerate(given) if block.partial)
    arrays = [*rule.operands, *rule.results]
    splits: list[Split] = [((),) * len(dimensions) for dimensions in arrays]
    splits[number] = block.split
    chosen = {factor: parts for (_, factor), parts in parts_along(axes, rule, splits).items()}
    kinds = (FactorKind.PASS_THROUGH, FactorKind.REDUCTION)
    for f, parts in chosen.items():
        if rule.kind(f) not in kinds or rule.factors[f].size % axes.extent(parts):
            return None
    for dimensions in arrays:
        for numbers in dimensions:
            if not _is_whole(cut, numbers, chosen):
                return None
    needed = replace(cut, parts=chosen).splits
    for operand, split in zip(given, needed, strict=False):
        if operand.split != split and (operand.partial or not _only_cut(operand.split, split)):
            return None
    return chosen


def _is_whole(cut: Cut, numbers: Sequence[int], chosen: Mapping[int, Axes]) -> bool:
    """Whether what is major to a divided factor in a dimension is divided to the end."""
    whole = True
    for f in numbers:
        if chosen.get(f) and not whole:
            return False
        whole = whole and cut.axes.extent(chosen.get(f, ())) == cut.rule.factors[f].size
    return True


def _only_cut(old: Split, new: Split) -> bool:
    return all(b[: len(a)] == a for a, b in zip(old, new, strict=True))


def _is_splat(computation: Computation, position: int) -> bool:
    """Whether all elements of a value are one, which all devices have."""
    op = computation.instructions[position]
    while op.opcode in _REPEATING and op.operands:
        op = computation.instructions[op.operands[0]]
    return isinstance(op.shape, ArrayShape) and not op.shape.dimensions
