"""How pieces of a result follow from pieces of the operands."""

from collections.abc import Sequence

from hloipu_compiler.ir.attributes import Attributes, SliceRange
from hloipu_compiler.ir.dimension_rules import dimension_rule
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape

WHOLE = -1
"""In place of an axis: every piece of the result reads all of this operand."""

Followed = tuple[int, ...]
"""For each operand the axis that is cut as the result's is, or WHOLE."""

_IN_PIECES = ELEMENTWISE | frozenset(
    "copy bitcast-convert broadcast transpose reshape reverse slice pad concatenate dynamic-slice "
    "dynamic-update-slice iota reduce dot".split()
)
"""What stacked arrays go through; all other ops are computed of whole ones."""


def followed(op: Instruction, operands: Sequence[ArrayShape], axis: int) -> Followed | None:
    """Return the operands' axes that go with an axis of an op's result.

    A range of the result along `axis` is then what the op makes of the same part of them: the same
    range, or where a reshape parts or joins axes one of as many more or fewer elements. None where
    the op does not go by ranges of that axis.
    """
    if op.opcode not in _IN_PIECES or not isinstance(op.shape, ArrayShape):
        return None
    return dimension_rule(op, operands).ranges(axis)


def narrowed(op: Instruction, axis: int, size: int) -> Attributes:
    """Return the attributes of an op whose result has `size` elements along an axis it goes by."""
    attributes = op.attributes
    if op.opcode == "slice":
        given = list(attributes.slice_ranges())
        given[axis] = SliceRange(0, size)
        attributes = attributes.replaced(slice=tuple(given))
    elif op.opcode == "dynamic-slice":
        sizes = list(attributes.integers("dynamic_slice_sizes"))
        sizes[axis] = size
        attributes = attributes.replaced(dynamic_slice_sizes=tuple(sizes))
    return attributes


def sliced_range(op: Instruction, operand: ArrayShape) -> tuple[int, SliceRange] | None:
    """Return axis and range of a slice without steps that takes all along every other axis."""
    if op.opcode != "slice":
        return None
    axis_and_range = None
    ranges = op.attributes.slice_ranges()
    for axis, (given, size) in enumerate(zip(ranges, operand.dimensions, strict=True)):
        if (given.start, given.limit, given.stride) == (0, size, 1):
            continue
        if axis_and_range is not None or given.stride != 1 or given.start >= given.limit:
            return None
        axis_and_range = axis, given
    return axis_and_range


_COMBINING = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})


def combining(module: Module, op: Instruction) -> str | None:
    """Return the op that puts results of a reduction of pieces together, None where none does."""
    if op.opcode != "reduce" or len(op.operands) != 2 or not isinstance(op.shape, ArrayShape):
        return None
    reducer = module.computation[op.attributes.text("to_apply")]
    root = reducer.instructions[reducer.root]
    if root.opcode not in _COMBINING or sorted(root.operands) != sorted(reducer.parameters):
        return None
    return root.opcode if len(reducer.parameters) == 2 else None
