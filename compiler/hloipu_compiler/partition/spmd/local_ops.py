"""One op on blocks as it stands, with the shapes of blocks and the sizes that it states cut too."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hloipu_compiler.ir.attributes import Attributes, ConvolutionLabels, SliceRange, Window
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_compiler.partition.spmd.blocks import Blocks
from hloipu_compiler.partition.spmd.cuts import Cut
from hloipu_compiler.passes.framework.attribute_edits import without

STATED = ("sharding", "frontend_attributes")
"""Attributes that say how whole values are divided."""
OF_WHOLES = (*STATED, "operand_layout_constraints")

Handler = Callable[[Blocks, Cut, list[int]], int]
"""From the positions of operands in blocks to that of the result."""


def local_op(
    b: Blocks, cut: Cut, operands: Sequence[int], attributes: Attributes | None = None
) -> int:
    """Append an op on blocks; `attributes`: its own but for those of blocks."""
    op, first = cut.x, cut.first_result
    blocks = map(b.local, cut.shapes[first:], cut.splits[first:])
    shape = with_leaves(op.shape, blocks)
    if attributes is None:
        attributes = _local_attributes(b, cut, operands, shape)
    attributes = _with_own_kernel(b, cut, attributes, operands)
    return b.draft.append(
        op._replace(
            shape=shape, operands=tuple(operands), attributes=without(attributes, OF_WHOLES),
            name=b.draft.fresh_name(op.name),
        )
    )  # fmt: skip


def _local_attributes(b: Blocks, cut: Cut, operands: Sequence[int], shape: Shape) -> Attributes:
    attributes = cut.x.attributes
    if "dynamic_slice_sizes" in attributes and isinstance(shape, ArrayShape):
        return attributes.replaced(dynamic_slice_sizes=shape.dimensions)
    ranges, sizes = attributes.slice_ranges(), attributes.integers("slice_sizes")
    if cut.x.opcode not in ("slice", "gather"):
        return attributes
    both = list(zip(cut.shapes[0].dimensions, b.shape(operands[0]).dimensions, strict=True))
    if cut.x.opcode == "slice":
        cuts = [SliceRange(0, n) if n != m else r for r, (m, n) in zip(ranges, both, strict=True)]
        return attributes.replaced(slice=tuple(cuts))
    cut_sizes = [n if m != n and s == m else s for s, (m, n) in zip(sizes, both, strict=True)]
    return attributes.replaced(slice_sizes=tuple(cut_sizes))


def _with_own_kernel(
    b: Blocks, cut: Cut, attributes: Attributes, operands: Sequence[int]
) -> Attributes:
    """Return a convolution's attributes with the groups and the window that a block has."""
    labels = attributes.get("dim_labels")
    if not isinstance(labels, ConvolutionLabels):
        return attributes
    for key, side in (("feature_group_count", "f"), ("batch_group_count", "b")):
        groups = attributes.integer(key, 1)
        if groups > 1:
            first = cut.rule.operands[0][labels.lhs.index(side)][0]
            count = -(-groups // b.axes.extent(cut.parts.get(first, ())))
            attributes = attributes.replaced(**{key: count})
    taps = b.shape(operands[1]).dimensions
    windows = tuple(
        replace(window, size=taps[labels.rhs.index(str(number))])
        for number, window in enumerate(attributes.window().dimensions)
    )
    return attributes.replaced(window=Window(windows)) if windows else attributes


def with_leaves(shape: Shape, leaves: Iterator[ArrayShape]) -> Shape:
    """Return a shape of the same structure with other arrays."""
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(with_leaves(e, leaves) for e in shape.elements))
    return next(leaves)
