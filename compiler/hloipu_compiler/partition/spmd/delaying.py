"""Ops that work on partial sums as they are, so that the sums are added up later, and together.

A sum of partial sums is a partial sum of the results: two that are added need one all-reduce, and
one that is summed on a smaller one. An op waits with the sum only where nothing else reads it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hloipu_compiler.ir.factors import FactorKind
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.spmd.axes import DeviceAxes
from hloipu_compiler.partition.spmd.blocks import Block
from hloipu_compiler.partition.spmd.cuts import Cut, is_neutral, whole_cut
from hloipu_compiler.partition.spmd.factor_parts import parts_along
from hloipu_compiler.partition.spmd.reshard_steps import Axes, Split
from hloipu_compiler.passes.framework.constant_values import scalar_constant

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
