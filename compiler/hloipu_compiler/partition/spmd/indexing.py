"""Ops that read or write at indices into dimensions that are divided.

Indices are made those of the block. What is read outside of it is zero, and is added to what the
block that has it read; what would be written outside is dropped. Nothing but results moves.
Source: openxla/xla `xla/service/spmd/gather_scatter_handler.cc` (trivially sliced dimensions).
"""

from collections.abc import Sequence

import numpy as np

from hloipu_compiler.ir.attributes import SliceRange
from hloipu_compiler.ir.factors import FactorKind
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.partition.spmd.blocks import PRED, S32, Along, Blocks
from hloipu_compiler.partition.spmd.cuts import INDEXED, WHOLE, Cut
from hloipu_compiler.partition.spmd.local_ops import Handler, local_op
from hloipu_compiler.partition.spmd.running import greatest
from hloipu_runtime.element_types import ELEMENT_TYPES, ElementType
from hloipu_runtime.kernels.core.storage import storage_dtype


def _index_type(kind: ElementType) -> ElementType:
    """Return the signed type in which local indices are computed."""
    return ELEMENT_TYPES["s64"] if kind.bits == 64 else S32


def _converted(b: Blocks, like: Instruction, at: int, kind: ElementType) -> int:
    shape = b.shape(at)
    if shape.element_type is kind:
        return at
    return b.add(like, "convert", kind, shape.dimensions, (at,))


def _bounded(b: Blocks, like: Instruction, at: int, most: int) -> int:
    """Return a scalar start as the op would take it, from 0 to `most`."""
    kind = b.shape(at).element_type
    highest = min(most, int(np.iinfo(storage_dtype(kind.name)).max))
    bounds = [b.constant(like, kind, n) for n in (0, highest)]
    at = b.add(like, "clamp", kind, (), (bounds[0], at, bounds[1]))
    return _converted(b, like, at, S32)


def _clipped(b: Blocks, like: Instruction, at: int, low: int, high: int) -> int:
    bounds = [b.constant(like, S32, n) for n in (low, high)]
    return b.add(like, "clamp", S32, (), (bounds[0], at, bounds[1]))


def _local_start(b: Blocks, like: Instruction, at: int, along: Along, taken: int) -> int:
    """Return where `taken` rows from a start of the whole array begin in this block."""
    start = _bounded(b, like, at, along.size - taken)
    offset = b.by_block(like, along.parts, along.starts)
    return b.apply(like, "subtract", start, offset)


def _rows_of(
    b: Blocks, like: Instruction, at: int, d: int, shift: int, room: tuple[int, int]
) -> tuple[int, int]:
    """Return rows `shift + i` of a dimension for i below a length, and the shift within bounds.

    `room`: the length, and how many rows there are; others are zeros.
    """
    length, count = room
    wide = b.extended(like, at, d, (length, length))
    shift = _clipped(b, like, shift, -length, count)
    start = b.apply(like, "add", shift, b.constant(like, S32, length))
    return b.cut_at(like, wide, d, start, length), shift


def dynamically_sliced(b: Blocks, cut: Cut, operands: list[int]) -> int:
    """Write a dynamic-slice: each block gives the rows that it has, zeros for the others."""
    op, (at, *starts) = cut.x, operands
    taken = cut.shapes[-1].dimensions
    for along in cut.along(0, INDEXED):
        d = along.d
        shift = _local_start(b, op, starts[d], along, taken[d])
        room = along.block
        if taken[d] < room:
            begin = _clipped(b, op, shift, 0, room - taken[d])
            at, room = b.cut_at(op, at, d, begin, taken[d]), taken[d]
            shift = b.apply(op, "subtract", shift, begin)
        at, _ = _rows_of(b, op, at, d, shift, (taken[d], room))
        starts[d] = b.constant(op, b.shape(starts[d]).element_type, 0)
    sizes = b.local(cut.shapes[-1], cut.splits[-1]).dimensions
    attributes = op.attributes.replaced(dynamic_slice_sizes=sizes)
    return local_op(b, cut, (at, *starts), attributes)


def dynamically_updated(b: Blocks, cut: Cut, operands: list[int]) -> int:
    """Write a dynamic-update-slice: each block takes the rows that it has, in place."""
    op, (at, update, *starts) = cut.x, operands
    inside = None
    sizes = list(b.shape(update).dimensions)
    for along in cut.along(0, INDEXED):
        d, taken = along.d, cut.shapes[1].dimensions[along.d]
        length = min(taken, along.block)
        local = _local_start(b, op, starts[d], along, taken)
        begin = _clipped(b, op, local, 0, along.block - length)
        shift = b.apply(op, "subtract", begin, local)
        update, shift = _rows_of(b, op, update, d, shift, (length, taken))
        low = b.apply(op, "negate", shift)
        high = b.apply(op, "subtract", b.constant(op, S32, taken), shift)
        rows = b.rows_between(op, length, low, high)
        sizes[d] = length
        starts[d] = begin
        assert rows is not None
        if inside is not None:
            inside = _resized_mask(b, op, inside, sizes)
        mask = b.spread(op, rows, sizes, d)
        inside = mask if inside is None else b.apply(op, "and", inside, mask)
    if inside is not None:
        kinds = {b.shape(start).element_type for start in starts}
        if len(kinds) > 1:
            room = zip(cut.shapes[0].dimensions, cut.shapes[1].dimensions, strict=True)
            each = zip(starts, room, strict=True)
            starts = [
                start if b.shape(start).element_type is S32 else _bounded(b, op, start, n - taken)
                for start, (n, taken) in each
            ]
        now = b.add(
            op, "dynamic-slice", b.shape(at).element_type, sizes, (at, *starts),
            dynamic_slice_sizes=tuple(sizes),
        )  # fmt: skip
        update = b.apply(op, "select", inside, update, now)
    return local_op(b, cut, (at, update, *starts))


def _resized_mask(b: Blocks, like: Instruction, at: int, sizes: Sequence[int]) -> int:
    """Return a mask of as many rows as are left; it is alike along the dimensions yet to come."""
    shape = b.shape(at)
    if shape.dimensions == tuple(sizes):
        return at
    ranges = tuple(SliceRange(0, n) for n in sizes)
    return b.add(like, "slice", PRED, sizes, (at,), slice=ranges)


def _components(cut: Cut, key: str) -> dict[int, Along]:
    """Return the divided dimensions by their place in an index."""
    order = cut.x.attributes.integers(key)
    return {order.index(along.d): along for along in cut.along(0, INDEXED)}


def _offsets(b: Blocks, cut: Cut, at: int, components: dict[int, Along]) -> int:
    """Return what indices into blocks are less than those into whole arrays, of all indices."""
    op, shape = cut.x, b.shape(at)
    vector = op.attributes.integer("index_vector_dim")
    count = shape.dimensions[vector] if vector < len(shape.dimensions) else 1
    total = b.constant(op, shape.element_type, np.zeros(count))
    for place, along in components.items():
        rows = np.zeros((along.count, count), np.int64)
        rows[:, place] = along.starts
        row = b.by_block(op, along.parts, rows, shape.element_type)
        total = b.apply(op, "add", total, row)
    return _as_indices(b, op, total, at, vector)


def _as_indices(b: Blocks, like: Instruction, row: int, at: int, vector: int) -> int:
    sizes = b.shape(at).dimensions
    if vector < len(sizes):
        return b.spread(like, row, sizes, vector)
    scalar = b.add(like, "reshape", b.shape(row).element_type, (), (row,))
    return b.spread(like, scalar, sizes)


def gathered(b: Blocks, cut: Cut, operands: list[int]) -> int:
    """Write a gather: rows of other blocks are zeros."""
    op, (at, indices) = cut.x, operands
    read = op.attributes.integers
    vector = op.attributes.integer("index_vector_dim")
    components = _components(cut, "start_index_map")
    sizes = read("slice_sizes")
    kind = b.shape(indices).element_type
    highest = int(np.iinfo(storage_dtype(kind.name)).max)
    most = [min(highest, cut.shapes[0].dimensions[d] - sizes[d]) for d in read("start_index_map")]
    bounds = [
        _as_indices(b, op, b.constant(op, kind, np.asarray(row)), indices, vector)
        for row in ([0] * len(most), most)
    ]
    clamped = b.apply(op, "clamp", bounds[0], indices, bounds[1])
    signed = _index_type(kind)
    clamped = _converted(b, op, clamped, signed)
    local = b.apply(op, "subtract", clamped, _offsets(b, cut, clamped, components))
    ends = np.full((2, len(most)), np.iinfo(np.int32).max, np.int64)
    ends[0] = np.iinfo(np.int32).min
    for place, along in components.items():
        ends[:, place] = 0, along.block - 1
    low, high = (_as_indices(b, op, b.constant(op, signed, row), indices, vector) for row in ends)
    inside = b.apply(
        op, "and",
        b.apply(op, "compare", local, low, direction="GE"),
        b.apply(op, "compare", local, high, direction="LE"),
    )  # fmt: skip
    shape = b.shape(inside)
    if vector < len(shape.dimensions):
        true = b.constant(op, PRED, True)
        inside = b.reduced(op, inside, (vector,), true, b.combiner("and", PRED))
    slices = [
        b.shape(at).dimensions[d] if size == cut.shapes[0].dimensions[d] else size
        for d, size in enumerate(sizes)
    ]
    attributes = op.attributes.replaced(slice_sizes=tuple(slices))
    slices_at = local_op(b, cut, (at, local), attributes)
    result = b.shape(slices_at)
    rows = [d for d in range(len(result.dimensions)) if d not in read("offset_dims")]
    mask = b.spread(op, inside, result.dimensions, *rows)
    zero = b.spread(op, b.constant(op, result.element_type, 0), result.dimensions)
    return b.apply(op, "select", mask, slices_at, zero)


def scattered(b: Blocks, cut: Cut, operands: list[int]) -> int:
    """Write a scatter: rows of other blocks are outside, and dropped."""
    op = cut.x
    count = len(operands) // 2
    components = _components(cut, "scatter_dims_to_operand_dims")
    indices = operands[count]
    indices = _converted(b, op, indices, _index_type(b.shape(indices).element_type))
    local = b.apply(op, "subtract", indices, _offsets(b, cut, indices, components))
    return local_op(b, cut, [*operands[:count], local, *operands[count + 1 :]])


def counted(b: Blocks, cut: Cut, operands: list[int]) -> int:
    """Write an iota along a divided dimension: it begins at the block's first row."""
    op = cut.x
    ((d, along),) = ((a.d, a) for a in cut.along(0, WHOLE))
    shape = b.local(cut.shapes[0], cut.splits[0])
    kind, direct = shape.element_type, shape.element_type.is_integer
    own = kind if direct else S32
    rows = b.add(op, "iota", own, (along.block,), iota_dimension=0)
    first = b.by_block(op, along.parts, along.starts, own)
    rows = b.apply(op, "add", rows, b.spread(op, first, (along.block,)))
    return b.spread(op, _converted(b, op, rows, kind), shape.dimensions, d)


HANDLERS: dict[FactorKind, dict[str, Handler]] = {
    INDEXED: dict(
        zip(
            "dynamic-slice dynamic-update-slice gather scatter".split(),
            (dynamically_sliced, dynamically_updated, gathered, scattered),
            strict=True,
        )
    ),
    WHOLE: dict(zip("iota topk".split(), (counted, greatest), strict=True)),
}
"""By the kind of factor that is divided, and the opcode."""
