"""Simplifies data movement: drops no-ops, joins pairs of moves, takes padding into windows.

Windows that read padding have it themselves: nothing is moved, and holes are not computed on.

    p = f32[9,9] pad(x, zero), padding=0_0_1x0_0_1        x = f32[5,5] parameter(0)
    r = f32[8,8] reduce-window(p, zero), window=2x2       r = f32[8,8] reduce-window(x, zero), …
                                                              window={size=2x2 lhs_dilate=2x2}

So JAX writes the gradients of pooling. Of a maximum's, the slice that cuts off what falls on the
padding goes as well; where all that a window has is -inf, its gradient then falls on the first of
its elements, not on the padding.
"""

from collections.abc import Sequence
from math import inf

from hloipu_compiler.ir.attributes import Attributes, PaddingDimension, SliceRange, Window
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, Shape
from hloipu_compiler.passes.framework.attribute_edits import carried, without
from hloipu_compiler.passes.framework.constant_values import scalar_constant
from hloipu_compiler.passes.framework.rewriting import Draft, Rule, with_operands
from hloipu_runtime.kernels.windows_geometry import WindowDimension


def static(shape: Shape) -> ArrayShape | None:
    """Return an array shape of known sizes, None for any other shape."""
    return shape if isinstance(shape, ArrayShape) and shape.dynamic is None else None


def same_value_shape(draft: Draft, x: Instruction, at: int) -> bool:
    """Whether a value may stand for the instruction's: same type and sizes, nothing said of it."""
    a, b = static(draft.shape(at)), static(x.shape)
    return (
        a is not None
        and b is not None
        and a.element_type is b.element_type
        and a.dimensions == b.dimensions
        and "sharding" not in x.attributes
    )


def operand_if_same(draft: Draft, x: Instruction) -> int | None:
    """Return the operand, where the result has its sizes and type; else None."""
    return x.operands[0] if same_value_shape(draft, x, x.operands[0]) else None


def became(x: Instruction, opcode: str, operands: tuple[int, ...], **own: object) -> Instruction:
    """Return another op under the name of an instruction."""
    attributes = carried(x.attributes, own)  # type: ignore[arg-type]
    return x._replace(
        opcode=opcode, operands=operands, attributes=attributes, backend_config="",
        start=-1, end=-1,
    )  # fmt: skip


def spread(
    draft: Draft, like: Instruction, at: int, shape: ArrayShape, dimensions: tuple[int, ...] = ()
) -> int:
    """Append a value repeated along all dimensions of a shape but its own."""
    return draft.add(like, "broadcast", shape, (at,), Attributes({"dimensions": dimensions}))


def repeating(draft: Draft, at: int) -> Instruction | None:
    """Return the instruction that a value is, if it repeats another."""
    x = draft.made[at]
    return x if x.opcode == "broadcast" else None


def _reshape(draft: Draft, x: Instruction) -> int | Instruction | None:
    """Drop a reshape to the same sizes; of two in a row the last counts."""
    if static(x.shape) is None or static(draft.shape(x.operands[0])) is None:
        return None
    source = draft.made[x.operands[0]]
    if source.opcode == "reshape" and static(draft.shape(source.operands[0])) is not None:
        x = with_operands(x, source.operands)
        return x if (same := operand_if_same(draft, x)) is None else same
    return operand_if_same(draft, x)


def _transpose(draft: Draft, x: Instruction) -> int | Instruction | None:
    """Drop a transpose that moves nothing; join two; one that moves ones only is a reshape."""
    shape, source = static(x.shape), draft.made[x.operands[0]]
    source_shape = static(source.shape)
    if shape is None or source_shape is None:
        return None
    order = x.attributes.integers("dimensions")
    if source.opcode == "transpose":
        inner = source.attributes.integers("dimensions")
        order = tuple(inner[i] for i in order)
        x = became(x, "transpose", source.operands, dimensions=order)
        source_shape = static(draft.shape(source.operands[0]))
        again = _transpose_alone(x, source_shape)
        return x if again is None else again
    return _transpose_alone(x, source_shape)


def _transpose_alone(x: Instruction, source: ArrayShape | None) -> int | Instruction | None:
    order = x.attributes.integers("dimensions")
    if source is None:
        return None
    if order == tuple(range(len(order))):
        return x.operands[0] if "sharding" not in x.attributes else None
    moving = [d for d in order if source.dimensions[d] != 1]
    return became(x, "reshape", x.operands) if moving == sorted(moving) else None


def _broadcast(draft: Draft, x: Instruction) -> int | Instruction | None:
    """Drop a broadcast that repeats nothing; join two in a row."""
    shape, source = static(x.shape), draft.made[x.operands[0]]
    source_shape = static(source.shape)
    if shape is None or source_shape is None:
        return None
    dimensions = x.attributes.integers("dimensions")
    ascending = list(dimensions) == sorted(dimensions)
    if ascending and shape.element_count == source_shape.element_count:
        same = operand_if_same(draft, x)
        return became(x, "reshape", x.operands) if same is None else same
    if source.opcode == "broadcast" and static(draft.shape(source.operands[0])) is not None:
        inner = source.attributes.integers("dimensions")
        return became(
            x, "broadcast", source.operands, dimensions=tuple(dimensions[i] for i in inner)
        )
    return None


def _slice(draft: Draft, x: Instruction) -> int | Instruction | None:
    """Drop a slice of everything; join two in a row; look into a concatenation."""
    source = draft.made[x.operands[0]]
    if static(x.shape) is None or static(source.shape) is None:
        return None
    same = operand_if_same(draft, x)
    if same is not None and all(
        r.stride == 1 or r.limit - r.start <= 1 for r in x.attributes.slice_ranges()
    ):
        return same
    if source.opcode == "slice" and static(draft.shape(source.operands[0])) is not None:
        joined = tuple(map(_joined, source.attributes.slice_ranges(), x.attributes.slice_ranges()))
        return became(x, "slice", source.operands, slice=joined)
    if source.opcode == "concatenate":
        return _slice_of_part(draft, x, source)
    return None


def _joined(inner: SliceRange, outer: SliceRange) -> SliceRange:
    """Return the range that takes from the whole what `outer` takes from what `inner` takes."""
    if outer.limit <= outer.start:
        return SliceRange(inner.start, inner.start)
    start = inner.start + outer.start * inner.stride
    last = inner.start + (outer.limit - 1) * inner.stride
    return SliceRange(start, last + 1, inner.stride * outer.stride)


def _slice_of_part(draft: Draft, x: Instruction, source: Instruction) -> int | Instruction | None:
    (dimension,) = source.attributes.integers("dimensions")
    found, first = list(x.attributes.slice_ranges()), 0
    wanted = found[dimension]
    if wanted.limit <= wanted.start:
        return None
    for operand in source.operands:
        shape = static(draft.shape(operand))
        if shape is None:
            return None
        last = first + shape.dimensions[dimension]
        if first <= wanted.start < last:
            if wanted.limit > last:
                return None
            found[dimension] = SliceRange(wanted.start - first, wanted.limit - first, wanted.stride)
            x = became(x, "slice", (operand,), slice=tuple(found))
            same = operand_if_same(draft, x)
            whole = found[dimension].stride == 1
            return same if same is not None and whole else x
        first = last
    return None


def _pad(draft: Draft, x: Instruction) -> int | None:
    if any(row.low or row.high for row in x.attributes.padding()):
        return None
    return operand_if_same(draft, x)


def _reverse(draft: Draft, x: Instruction) -> int | None:
    """Drop a reverse of dimensions of one element, and one that undoes another."""
    shape, source = static(x.shape), draft.made[x.operands[0]]
    if shape is None or "sharding" in x.attributes:
        return None
    dimensions = x.attributes.integers("dimensions")
    if all(shape.dimensions[d] <= 1 for d in dimensions):
        return operand_if_same(draft, x)
    if source.opcode == "reverse" and set(dimensions) == set(
        source.attributes.integers("dimensions")
    ):
        return source.operands[0] if same_value_shape(draft, x, source.operands[0]) else None
    return None


def _concatenate(draft: Draft, x: Instruction) -> int | Instruction | None:
    """Drop operands without elements, and a concatenation of one operand."""
    shapes = [static(draft.shape(i)) for i in x.operands]
    if any(shape is None for shape in shapes):
        return None
    full = [
        i
        for i, shape in zip(x.operands, shapes, strict=True)
        if shape is not None and shape.element_count
    ] or list(x.operands[:1])
    if len(full) == 1 and same_value_shape(draft, x, full[0]):
        return full[0]
    return with_operands(x, tuple(full)) if 1 < len(full) < len(x.operands) else None


def _dynamic_slice(draft: Draft, x: Instruction) -> int | Instruction | None:
    """Drop a slice of everything; constant starts, clamped as XLA does, make a plain slice."""
    source, shape = static(draft.shape(x.operands[0])), static(x.shape)
    if source is None or shape is None:
        return None
    if (same := operand_if_same(draft, x)) is not None:
        return same
    starts = _constant_starts(draft, x.operands[1:])
    if starts is None or len(starts) != shape.rank:
        return None
    given = tuple(
        SliceRange(at, at + size)
        for at, size in (
            (min(max(start, 0), whole - size), size)
            for start, whole, size in zip(starts, source.dimensions, shape.dimensions, strict=True)
        )
    )
    return became(x, "slice", x.operands[:1], slice=given)


def _constant_starts(draft: Draft, operands: tuple[int, ...]) -> list[int] | None:
    """Return constant indices; they are scalars, or in old dumps the elements of one vector."""
    starts: list[int] = []
    for operand in operands:
        value = scalar_constant(draft.made[operand])
        if value is None or value.ndim:
            return None
        starts.append(int(value))
    return starts


def _dynamic_update_slice(draft: Draft, x: Instruction) -> int | None:
    """Take an update of everything for the result; drop one without elements."""
    update = static(draft.shape(x.operands[1]))
    if update is None:
        return None
    if update.element_count == 0:
        return operand_if_same(draft, x)
    return x.operands[1] if same_value_shape(draft, x, x.operands[1]) else None


def _get_dimension_size(draft: Draft, x: Instruction) -> Instruction | None:
    """Make a constant of a size that is written in the shape."""
    shape = static(draft.shape(x.operands[0]))
    dimensions = x.attributes.integers("dimensions")
    if shape is None or len(dimensions) != 1:
        return None
    constant = became(x, "constant", ())
    return constant._replace(literal=Literal(str(shape.dimensions[dimensions[0]])))


def _reduce_window(draft: Draft, x: Instruction) -> Instruction | None:
    """Read what is padded with the value that windows start from."""
    source = draft.made[x.operands[0]]
    if len(x.operands) != 2 or source.opcode != "pad" or static(x.shape) is None:
        return None
    start, padding = (scalar_constant(draft.made[i]) for i in (x.operands[1], source.operands[1]))
    if start is None or padding is None or start.tobytes() != padding.tobytes():
        return None
    window = _padded(x, source.attributes.padding())
    if window is None:
        return None
    operands = (source.operands[0], x.operands[1])
    return x._replace(operands=operands, attributes=with_window(x.attributes, window))


def _slice_of_chosen(draft: Draft, x: Instruction) -> Instruction | None:
    """Choose among what is there, where padding is never greater and is cut off at the end."""
    chosen, shape = draft.made[x.operands[0]], static(x.shape)
    if chosen.opcode != "select-and-scatter" or shape is None or "sharding" in x.attributes:
        return None
    source = draft.made[chosen.operands[0]]
    if source.opcode != "pad" or not _is_lowest(draft, chosen, source.operands[1]):
        return None
    before, rows = static(draft.shape(source.operands[0])), source.attributes.padding()
    if before is None or before.dimensions != shape.dimensions:
        return None
    if any(
        r.start != row.low or r.stride != 1 or row.interior
        for r, row in zip(x.attributes.slice_ranges(), rows, strict=True)
    ):
        return None
    window = _padded(chosen, rows)
    from hloipu_runtime.kernels.windows_regions import peeled_element

    if window is None or peeled_element(before.dimensions, window.dimensions) is not None:
        return None  # XLA:CPU would choose otherwise among equals
    return x._replace(
        opcode="select-and-scatter",
        operands=(source.operands[0], *chosen.operands[1:]),
        attributes=with_window(chosen.attributes, window),
    )


def _is_lowest(draft: Draft, chosen: Instruction, padding: int) -> bool:
    """Whether padding is -inf and the greater element is chosen."""
    value = scalar_constant(draft.made[padding])
    if value is None or value.dtype.kind != "f" or float(value.reshape(())) != -inf:
        return False
    region = draft.module.computation[chosen.attributes.text("select")]
    root = region.instructions[region.root]
    plain = [region.instructions[i].parameter_number for i in root.operands] == [0, 1]
    return plain and root.opcode == "compare" and root.attributes.text("direction") in ("GE", "GT")


def _padded(x: Instruction, rows: Sequence[PaddingDimension]) -> Window | None:
    """Return a window with padding of its own besides; None where it could not have it."""
    dimensions = x.attributes.window().dimensions or (WindowDimension(1),) * len(rows)
    if any(row.low < 0 or row.high < 0 for row in rows) or len(dimensions) != len(rows):
        return None
    if any(w.base_dilation > 1 for w in dimensions):
        return None
    return Window(
        tuple(
            WindowDimension(
                w.size, w.stride, w.pad_low + row.low, w.pad_high + row.high,
                row.interior + 1, w.window_dilation, w.reversal,
            )
            for w, row in zip(dimensions, rows, strict=True)
        )
    )  # fmt: skip


def with_window(attributes: Attributes, window: Window) -> Attributes:
    """Return attributes with another window."""
    rest = without(attributes, {"window"})
    return Attributes({"window": window, **dict(rest.items())}, attributes.called)


MOVEMENT_RULES: dict[str, Rule] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "reverse": _reverse,
    "copy": operand_if_same,
    "concatenate": _concatenate,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "get-dimension-size": _get_dimension_size,
}

WINDOW_RULES: dict[str, Rule] = {"reduce-window": _reduce_window, "slice": _slice_of_chosen}
