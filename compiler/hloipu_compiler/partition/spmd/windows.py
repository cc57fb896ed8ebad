"""Ops that need rows of other blocks: windows, borders, slices, reversals, joins.

Block t of a result of s rows begins at row t * s. From that follows at which row of the operand,
padded and dilated as the op says, the block begins to read, and how many rows it reads. Those rows
come from the neighbours; then the op works on them without any padding of its own.
Sources: openxla/xla `xla/service/spmd/spmd_partitioner.cc` (ReshardAsWindowedInput, HandlePad,
HandleConcatenate), `convolution_handler.cc`.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from hloipu_compiler.ir.attributes import ConvolutionLabels, PaddingDimension, SliceRange, Window
from hloipu_compiler.ir.factors import FactorKind
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.partition.spmd.blocks import Along, Blocks, Reads
from hloipu_compiler.partition.spmd.cuts import PERMUTATION, WHOLE, Cut
from hloipu_compiler.partition.spmd.local_ops import STATED, Handler, local_op
from hloipu_compiler.partition.spmd.running import run_up, running_monoid
from hloipu_compiler.passes.framework.attribute_edits import without
from hloipu_runtime.kernels.windows_geometry import WindowDimension


def _result_along(cut: Cut) -> list[Along]:
    return cut.along(cut.first_result, PERMUTATION)


def sliced(b: Blocks, cut: Cut, operands: list[int]) -> int:
    """Write a slice."""
    op, (at, *_) = cut.x, operands
    ranges = op.attributes.slice_ranges()
    given = {a.d: a for a in cut.along(0, PERMUTATION)}
    own = []
    for d, n in enumerate(b.shape(at).dimensions):
        whole = cut.shapes[0].dimensions[d]
        own.append(ranges[d] if n == whole else SliceRange(0, n))
    for result in _result_along(cut):
        stated, d = ranges[result.d], result.d
        reads = Reads.by(result, stated.start, stated.stride)
        at = b.window(op, at, given[d], reads)
        own[d] = SliceRange(0, reads.length, stated.stride)
    return local_op(b, cut, (at,), op.attributes.replaced(slice=tuple(own)))


def dilated(
    b: Blocks, like: Instruction, at: int, along: Along, reads: Reads, dilation: int, fill: int
) -> int:
    """Return rows of an array that has `dilation - 1` rows of `fill` between any two of its own."""
    if dilation == 1:
        return b.window(like, at, along, reads, fill)
    starts, length = reads.starts, reads.length
    sources = starts // dilation
    count = -(-length // dilation) + 1
    needed = np.where(reads.needed > 0, -(-reads.needed // dilation) + 1, 0)
    at = b.window(like, at, along, Reads(sources, count, needed), fill)
    shape, d = b.shape(at), along.d
    between = [PaddingDimension(0, 0)] * len(shape.dimensions)
    between[d] = PaddingDimension(0, max(0, dilation - 2), dilation - 1)
    sizes = list(shape.dimensions)
    sizes[d] = (count - 1) * dilation + 1 + between[d].high
    at = b.add(like, "pad", shape.element_type, sizes, (at, fill), padding=tuple(between))
    phases = starts - sources * dilation
    if (phases == phases[0]).all():
        return b.cut(like, at, d, int(phases[0]), length)
    return b.cut_at(like, at, d, b.by_block(like, along.parts, phases), length)


def padded(b: Blocks, cut: Cut, operands: list[int]) -> int:
    """Write a pad."""
    op, (at, fill) = cut.x, operands
    rows = op.attributes.padding()
    own = list(rows)
    given = {a.d: a for a in cut.along(0, PERMUTATION)}
    for result in _result_along(cut):
        row, d = rows[result.d], result.d
        reads = Reads.by(result, -row.low)
        at = dilated(b, op, at, given[d], reads, row.interior + 1, fill)
        own[d] = PaddingDimension(0, 0)
    return local_op(b, cut, (at, fill), op.attributes.replaced(padding=tuple(own)))


def reversed_(b: Blocks, cut: Cut, operands: list[int]) -> int:
    """Write a reversal: the rows that end where the block's would begin, counted from the end."""
    (at,) = operands
    for result in _result_along(cut):
        starts = result.size - result.starts - result.block
        needed = np.full(result.count, result.block)
        at = b.window(cut.x, at, result, Reads(starts, result.block, needed))
    return local_op(b, cut, (at,))


def joined(b: Blocks, cut: Cut, operands: list[int]) -> int:
    """Write a concatenation along a divided dimension: all that a block reads of each operand."""
    along = cut.along(cut.first_result, WHOLE)
    if not along:
        return local_op(b, cut, operands)
    (result,) = along
    op, d, begin, whole = cut.x, result.d, 0, None
    sizes = b.local(cut.shapes[-1], cut.splits[-1]).dimensions
    for number, at in enumerate(operands):
        own = replace(result, size=cut.shapes[number].dimensions[d])
        reads = Reads.by(result, -begin)
        if number in cut.whole:
            piece = _own_rows(b, op, at, own, reads)
        else:
            piece = b.window(op, at, own, reads)
        if whole is None:
            whole = piece
        else:
            first = b.by_block(op, result.parts, np.clip(-reads.starts, 0, result.block))
            is_in = b.rows_between(op, result.block, first, None)
            assert is_in is not None
            whole = b.apply(op, "select", b.spread(op, is_in, sizes, d), piece, whole)
        begin += own.size
    assert whole is not None
    return whole


def _own_rows(b: Blocks, like: Instruction, at: int, along: Along, reads: Reads) -> int:
    """Return the rows that each block reads of an array that every device has whole."""
    starts, length, size = reads.starts, reads.length, along.size
    some = (starts < size) & (starts + length > 0)
    before = max(0, -int(starts[some].min()))
    behind = max(0, int(starts[some].max()) + length - size, length - size - before)
    at = b.extended(like, at, along.d, (before, behind))
    starts = np.clip(starts + before, 0, before + size + behind - length)
    return b.cut_at(like, at, along.d, b.by_block(like, along.parts, starts), length)


# ---- windows that slide ---------------------------------------------------------------------


def _reads(window: WindowDimension, result: Along) -> Reads:
    """Return the rows that each block of results reads."""
    span = (window.size - 1) * window.window_dilation + 1
    return Reads.by(result, -window.pad_low, window.stride, span)


def _bare(window: WindowDimension) -> WindowDimension:
    return replace(window, pad_low=0, pad_high=0, base_dilation=1)


def windows_reduced(b: Blocks, cut: Cut, operands: list[int]) -> int:
    """Write a reduce-window."""
    monoid = running_monoid(b, cut)
    if monoid is not None:
        return run_up(b, cut, operands, monoid)
    op, count = cut.x, len(operands) // 2
    windows = list(op.attributes.window().dimensions)
    inputs, outside = list(operands), operands[count:]
    if cut.monoid is not None:
        outside = [b.neutral(op, cut.monoid, b.shape(operands[0]).element_type)]
    for result in _result_along(cut):
        window = windows[result.d]
        for number in range(count):
            given = next(a for a in cut.along(number, PERMUTATION) if a.d == result.d)
            reads = _reads(window, result)
            fill = outside[number]
            inputs[number] = dilated(
                b, op, inputs[number], given, reads, window.base_dilation, fill
            )
        windows[result.d] = _bare(window)
    return local_op(b, cut, inputs, op.attributes.replaced(window=Window(tuple(windows))))


def convolved(b: Blocks, cut: Cut, operands: list[int]) -> int:
    """Write a convolution: halos along space, and a range of the window where that is divided."""
    op, (at, kernel) = cut.x, operands
    labels = op.attributes["dim_labels"]
    assert isinstance(labels, ConvolutionLabels)
    windows = list(op.attributes.window().dimensions)
    fill = b.constant(op, b.shape(at).element_type, 0)
    given = {a.d: a for a in cut.along(0, PERMUTATION)}
    for along in cut.along(1, PERMUTATION):
        label = labels.rhs[along.d]
        window, place = windows[int(label)], given[labels.lhs.index(label)]
        taps = along.starts
        if window.reversal:
            taps = along.size - taps - along.block
        span = (along.block - 1) * window.window_dilation + 1
        count = cut.shapes[2].dimensions[labels.out.index(label)]
        length = (count - 1) * window.stride + span
        starts = taps * window.window_dilation - window.pad_low
        reads = Reads(starts, length, np.full(along.count, length))
        at = dilated(b, op, at, place, reads, window.base_dilation, fill)
        windows[int(label)] = _bare(window)
    for along in _result_along(cut):
        label = labels.out[along.d]
        window, place = windows[int(label)], given[labels.lhs.index(label)]
        at = dilated(b, op, at, place, _reads(window, along), window.base_dilation, fill)
        windows[int(label)] = _bare(window)
    attributes = op.attributes.replaced(window=Window(tuple(windows)))
    return local_op(b, cut, (at, kernel), attributes)


def chosen_and_scattered(b: Blocks, cut: Cut, operands: list[int]) -> int:
    """Write a select-and-scatter: of all windows that reach into a block, its own part.

    Elements outside are the least or greatest, so that real ones are chosen before them.
    """
    op, (at, source, init) = cut.x, operands
    windows = list(op.attributes.window().dimensions)
    kind = b.shape(at).element_type
    chooser = b.draft.module.computation[op.attributes.text("select")]
    direction = chooser.instructions[chooser.root].attributes.text("direction")
    swapped = chooser.instructions[chooser.root].operands != chooser.parameters
    is_least = direction.startswith("G") == swapped
    outside = b.constant(op, kind, np.inf if is_least else -np.inf)
    none = b.constant(op, kind, 0)
    ends: list[tuple[Along, Any]] = []
    for result in _result_along(cut):
        window, d = windows[result.d], result.d
        whole = cut.shapes[1].dimensions[d]
        first = (result.starts + window.pad_low - window.size) // window.stride + 1
        # Where windows have gaps, from the one that begins before the block.
        first = np.minimum(first, (result.starts + window.pad_low) // window.stride)
        last = (result.starts + result.block - 1 + window.pad_low) // window.stride
        count = int((last - first).max()) + 1
        given = replace(result, size=whole)
        every = np.where(result.lengths > 0, count, 0)
        source = b.window(op, source, given, Reads(first, count, every), none)
        begins = first * window.stride - window.pad_low
        length = max(
            (count - 1) * window.stride + window.size,
            int((result.starts - begins).max()) + result.block,
        )
        every = np.where(result.lengths > 0, length, 0)
        at = b.window(op, at, result, Reads(begins, length, every), outside)
        extra = (length - window.size) % window.stride
        behind = extra and window.stride - extra
        counted = (length + behind - window.size) // window.stride + 1
        source = b.extended(op, source, d, (0, counted - count), none)
        windows[d] = replace(window, pad_low=0, pad_high=behind)
        ends.append((result, result.starts - begins))
    attributes = without(op.attributes, STATED).replaced(window=Window(tuple(windows)))
    scattered = b.draft.append(
        op._replace(
            shape=b.shape(at), operands=(at, source, init), attributes=attributes,
            name=b.draft.fresh_name(op.name),
        )
    )  # fmt: skip
    for result, offsets in ends:
        if (offsets == offsets[0]).all():
            scattered = b.cut(op, scattered, result.d, int(offsets[0]), result.block)
        else:
            start = b.by_block(op, result.parts, offsets)
            scattered = b.cut_at(op, scattered, result.d, start, result.block)
    return scattered


HANDLERS: dict[FactorKind, dict[str, Handler]] = {
    PERMUTATION: dict(
        zip(
            "slice pad reverse reduce-window convolution select-and-scatter".split(),
            (sliced, padded, reversed_, windows_reduced, convolved, chosen_and_scattered),
            strict=True,
        )
    ),
    WHOLE: {"concatenate": joined},
}
"""By the kind of factor that is divided, and the opcode."""
