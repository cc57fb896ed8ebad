"""The weight of a module, which every edit but inlining lowers.

That is why a reduction ends: no two edits can undo each other's work for ever.
"""

from typing import NamedTuple

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape, BufferShape, Shape, TupleShape, leaves
from hloipu_compiler.reduce.loop_state import changed_elements
from hloipu_compiler.reduce.simplifying import is_zero
from hloipu_runtime.element_types import C64, F32, PRED, S32

_HANDING = frozenset({"tuple", "get-tuple-element"})
"""Opcodes that hand values on; parameters, constants and repeated constants compute nothing as
well."""
_PLAIN_TYPES = frozenset({F32, S32, C64, PRED})


class Weight(NamedTuple):
    """Weight of a module; weights compare as tuples, most important first."""

    computing: int
    """Instructions that compute something; loops and conditionals count twice, since a call of what
    they call takes their place."""
    tuple_parameters: int
    """Tuples among the shapes of the entry's parameters."""
    changed: int
    """Elements of loops' states that are not handed on as they are."""
    carried: int
    """Elements of loops' states."""
    reads: int
    """Reads of elements of tuples."""
    sizes: int
    """Sum of all sizes of dimensions."""
    other_types: int
    """Arrays of other types than f32, s32, c64 and pred."""
    instructions: int
    text: int
    """Characters."""


def weight_of(module: Module, text: str) -> Weight:
    """Return the weight of a module, whose text is given."""
    computing = carried = reads = sizes = other_types = 0
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "while":
                carried += sum(1 for _ in leaves(instruction.shape))
            if instruction.opcode == "get-tuple-element":
                reads += 1
            if instruction.opcode not in _HANDING and not is_zero(computation, instruction):
                computing += 2 if instruction.opcode in ("while", "conditional") else 1
            for _, leaf in leaves(instruction.shape):
                array = leaf.contents if isinstance(leaf, BufferShape) else leaf
                sizes += sum(array.dimensions)
                other_types += array.element_type not in _PLAIN_TYPES
    tuples = sum(_tuples(module.entry.instructions[i].shape) for i in module.entry.parameters)
    changed = len(changed_elements(module))
    count = module.instruction_count
    return Weight(computing, tuples, changed, carried, reads, sizes, other_types, count, len(text))


def _tuples(shape: Shape) -> int:
    if isinstance(shape, ArrayShape | BufferShape):
        return 0
    assert isinstance(shape, TupleShape)
    return 1 + sum(map(_tuples, shape.elements))
