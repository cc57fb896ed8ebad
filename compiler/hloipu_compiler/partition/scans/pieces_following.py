"""Per opcode: how pieces of a result follow from pieces of the operands."""

from collections.abc import Callable, Mapping, Sequence
from math import prod

from hloipu_compiler.ir.attributes import Attributes, PaddingDimension, SliceRange
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape

WHOLE = -1
"""In place of an axis: every piece of the result reads all of this operand."""

Followed = tuple[int, ...]
"""For each operand the axis that is cut as the result's is, or WHOLE."""
Shapes = Sequence[ArrayShape]
_Rule = Callable[[Instruction, ArrayShape, Shapes, int], Followed | None]


def followed(x: Instruction, operands: Shapes, axis: int) -> Followed | None:
    """Return the operands' axes that go with an axis of an op's result.

    A range of the result along `axis` is then what the op makes of the same part of them: the same
    range, or where a reshape parts or joins axes one of as many more or fewer elements. None where
    the op does not go by ranges of that axis.
    """
    rule = _RULES.get(x.opcode)
    if rule is None or not isinstance(x.shape, ArrayShape):
        return None
    return rule(x, x.shape, operands, axis)


def narrowed(x: Instruction, axis: int, size: int) -> Attributes:
    """Return the attributes of an op whose result has `size` elements along an axis it goes by."""
    attributes = x.attributes
    if x.opcode == "slice":
        given = slice_ranges(x)
        given[axis] = SliceRange(0, size)
        attributes = attributes.replaced(slice=tuple(given))
    elif x.opcode == "dynamic-slice":
        sizes = list(attributes.integers("dynamic_slice_sizes"))
        sizes[axis] = size
        attributes = attributes.replaced(dynamic_slice_sizes=tuple(sizes))
    return attributes


def slice_ranges(x: Instruction) -> list[SliceRange]:
    """Return the ranges of a slice, one for each dimension."""
    given = x.attributes.get("slice", ())
    return [r for r in given if isinstance(r, SliceRange)] if isinstance(given, tuple) else []


def sliced_range(x: Instruction, operand: ArrayShape) -> tuple[int, SliceRange] | None:
    """Return axis and range of a slice without steps that takes all along every other axis."""
    if x.opcode != "slice":
        return None
    found = None
    for axis, (given, size) in enumerate(zip(slice_ranges(x), operand.dimensions, strict=True)):
        if (given.start, given.limit, given.stride) == (0, size, 1):
            continue
        if found is not None or given.stride != 1 or given.start >= given.limit:
            return None
        found = axis, given
    return found


_COMBINING = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})


def combining(module: Module, x: Instruction) -> str | None:
    """Return the op that puts results of a reduction of pieces together, None where none does."""
    if x.opcode != "reduce" or len(x.operands) != 2 or not isinstance(x.shape, ArrayShape):
        return None
    reducer = module.computation[x.attributes.text("to_apply")]
    root = reducer.instructions[reducer.root]
    if root.opcode not in _COMBINING or sorted(root.operands) != sorted(reducer.parameters):
        return None
    return root.opcode if len(reducer.parameters) == 2 else None


def _alike(x: Instruction, shape: ArrayShape, operands: Shapes, axis: int) -> Followed | None:
    """Operands have the result's dimensions, or are numbers for all of them."""
    if any(o.dimensions not in (shape.dimensions, ()) for o in operands):
        return None
    return tuple(axis if o.dimensions else WHOLE for o in operands)


def _broadcast(x: Instruction, shape: ArrayShape, operands: Shapes, axis: int) -> Followed | None:
    dimensions = x.attributes.integers("dimensions")
    return (dimensions.index(axis) if axis in dimensions else WHOLE,)


def _transpose(x: Instruction, shape: ArrayShape, operands: Shapes, axis: int) -> Followed | None:
    return (x.attributes.integers("dimensions")[axis],)


def _reshape(x: Instruction, shape: ArrayShape, operands: Shapes, axis: int) -> Followed | None:
    """Find the operand's axis with as many elements before it, and as many along it.

    Else one that has a multiple of these, or of which these are a multiple.
    """
    ahead, size = prod(shape.dimensions[:axis]), shape.dimensions[axis]
    before, found = 1, None
    for place, each in enumerate(operands[0].dimensions):
        if before == ahead and each == size:
            return (place,)
        if before == ahead and min(each, size) > 1 and max(each, size) % min(each, size) == 0:
            found = (place,)
        before *= each
    return found


def _reverse(x: Instruction, shape: ArrayShape, operands: Shapes, axis: int) -> Followed | None:
    return None if axis in x.attributes.integers("dimensions") else (axis,)


def _slice(x: Instruction, shape: ArrayShape, operands: Shapes, axis: int) -> Followed | None:
    size = operands[0].dimensions[axis]
    return (axis,) if slice_ranges(x)[axis] == SliceRange(0, size) else None


def _pad(x: Instruction, shape: ArrayShape, operands: Shapes, axis: int) -> Followed | None:
    given = x.attributes.get("padding", ())
    row = given[axis] if isinstance(given, tuple) and axis < len(given) else None
    if not isinstance(row, PaddingDimension) or row.low or row.high:
        return None
    return None if row.interior and shape.dimensions[axis] > 1 else (axis, WHOLE)


def _concatenate(x: Instruction, shape: ArrayShape, operands: Shapes, axis: int) -> Followed | None:
    return None if x.attributes.integers("dimensions") == (axis,) else (axis,) * len(operands)


def _dynamic_slice(
    x: Instruction, shape: ArrayShape, operands: Shapes, axis: int
) -> Followed | None:
    """Go by axes that are taken whole: they begin at 0, whatever the index says."""
    if operands[0].dimensions[axis] != shape.dimensions[axis]:
        return None
    return (axis, *(WHOLE,) * (len(operands) - 1))


def _dynamic_update_slice(
    x: Instruction, shape: ArrayShape, operands: Shapes, axis: int
) -> Followed | None:
    if operands[1].dimensions[axis] != shape.dimensions[axis]:
        return None
    return (axis, axis, *(WHOLE,) * (len(operands) - 2))


def _iota(x: Instruction, shape: ArrayShape, operands: Shapes, axis: int) -> Followed | None:
    return None if x.attributes.integer("iota_dimension") == axis else ()


def _reduce(x: Instruction, shape: ArrayShape, operands: Shapes, axis: int) -> Followed | None:
    gone = x.attributes.integers("dimensions")
    kept = [d for d in range(operands[0].rank) if d not in gone]
    return kept[axis], WHOLE


def _dot(x: Instruction, shape: ArrayShape, operands: Shapes, axis: int) -> Followed | None:
    if len(operands) != 2:
        return None
    read = x.attributes.integers
    batches = tuple(zip(read("lhs_batch_dims"), read("rhs_batch_dims"), strict=True))
    if axis < len(batches):
        return batches[axis]
    place = axis - len(batches)
    taken = {*read("lhs_batch_dims"), *read("lhs_contracting_dims")}
    left = [d for d in range(operands[0].rank) if d not in taken]
    if place < len(left):
        return left[place], WHOLE
    taken = {*read("rhs_batch_dims"), *read("rhs_contracting_dims")}
    right = [d for d in range(operands[1].rank) if d not in taken]
    return WHOLE, right[place - len(left)]


_RULES: Mapping[str, _Rule] = {
    **{name: _alike for name, op in OPS.items() if Trait.ELEMENTWISE in op.traits},
    "copy": _alike,
    "bitcast-convert": _alike,
    "broadcast": _broadcast,
    "transpose": _transpose,
    "reshape": _reshape,
    "reverse": _reverse,
    "slice": _slice,
    "pad": _pad,
    "concatenate": _concatenate,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "iota": _iota,
    "reduce": _reduce,
    "dot": _dot,
}
