"""Rolls: rows moved round a dimension, which texts write as the two halves of an array swapped.

    a = slice(x), [b:n]    c = slice(x), [0:b]    concatenate(a, c)

A block of the result is the end of one block and the beginning of the next, so that one or two
permutes of these do, where slices and a concatenation of their own would move rows several times.
Source: openxla/xla `xla/service/spmd/spmd_partitioner.cc` (rotate pattern of HandleConcatenate).
"""

from collections import Counter

import numpy as np

from hloipu_compiler.ir.attributes import SliceRange
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.spmd.blocks import Along, Blocks
from hloipu_runtime.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Roll:
    """A roll of an array."""

    source: int
    """Position of the array."""
    d: int
    shift: int
    """Row j of the result is row (j + shift) mod n of the array."""


def rolls_of(computation: Computation) -> dict[int, Roll]:
    """Return the rolls of a computation by the positions of their ops: slices and concatenations.

    Slices that others read, too, are left out.
    """
    roll_by_position: dict[int, Roll] = {}
    readers = Counter(i for op in computation.instructions for i in op.operands)
    for position, op in enumerate(computation.instructions):
        roll = _roll(computation, op) if op.opcode == "concatenate" else None
        if roll is not None:
            roll_by_position[position] = roll
            alone = (i for i in op.operands if readers[i] == 1 and i != computation.root)
            roll_by_position.update(dict.fromkeys(alone, roll))
    return roll_by_position


def _roll(computation: Computation, op: Instruction) -> Roll | None:
    halves = [computation.instructions[i] for i in op.operands]
    if len(halves) != 2 or any(half.opcode != "slice" for half in halves):
        return None
    source, (d,) = halves[0].operands[0], op.attributes.integers("dimensions")
    shape = computation.instructions[source].shape
    if halves[1].operands[0] != source or not isinstance(shape, ArrayShape):
        return None
    n, shift = shape.dimensions[d], 0
    for number, half in enumerate(halves):
        ranges = half.attributes.slice_ranges()
        for i, (given, size) in enumerate(zip(ranges, shape.dimensions, strict=True)):
            if i == d and number == 0:
                shift = given.start
            first, last = (0, size) if i != d else ((shift, n), (0, shift))[number]
            if given != SliceRange(first, last):
                return None
    return Roll(source, d, shift) if 0 < shift < n else None


def rolled(b: Blocks, like: Instruction, at: int, along: Along, shift: int) -> int:
    """Return the blocks of a roll of an array whose blocks have no padding."""
    steps, rows = divmod(shift, along.block)
    every = np.arange(along.count)
    end = b.cut(like, at, along.d, rows, along.block - rows)
    end = b.from_blocks(like, end, along, (every + steps) % along.count, every)
    if not rows:
        return end
    begin = b.cut(like, at, along.d, 0, rows)
    begin = b.from_blocks(like, begin, along, (every + steps + 1) % along.count, every)
    shape = b.shape(at)
    return b.add(
        like, "concatenate", shape.element_type, shape.dimensions, (end, begin),
        dimensions=(along.d,),
    )  # fmt: skip
