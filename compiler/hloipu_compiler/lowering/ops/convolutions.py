"""Lowering of convolutions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.ir.attributes import ConvolutionLabels
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import TileTensor, Value
from hloipu_compiler.lowering.ops.contractions import combined
from hloipu_compiler.lowering.ops.slices import resized, spread, written
from hloipu_compiler.planners.convolution_grids import (
    Bounds,
    ConvolutionGrid,
    convolution_grid,
    planned_convolution,
)
from hloipu_compiler.planners.convolution_prices import ConvolutionWork
from hloipu_compiler.planners.placing import Placement
from hloipu_compiler.planners.slicing import Slices
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.dense.convolution import Convolution
from hloipu_runtime.codelets.ops.move import Reverse, StridedSlice
from hloipu_runtime.machine.charges import over
from hloipu_runtime.program.mapping import Mapping, Sizes, Span, Tiles, whole_box


@lowers("convolution")
def _convolution(context: LoweringContext) -> Sequence[Value]:
    builder = context.builder
    builder.begin_product()
    result = Tensor(*context.results[0])
    codelet, image = decimated(builder, _codelet(context), context.tile_tensor(0), result.shape)
    kernel = context.tile_tensor(1)
    tensors = image.tensor, kernel.tensor
    partial_kind = builder.tuning.partial_type(result.element_type)
    asked = ConvolutionWork(builder.machine, codelet, tensors, result, partial_kind)
    tuning = builder.tuning_here
    bounds = Bounds(
        builder.machine.memory.bytes_per_tile * tuning.memory_percent // 100,
        tuning.code_price,
        builder.products_with_rooms,
    )
    lying = builder.variables[image.variable].mapping, builder.variables[kernel.variable].mapping
    plan = convolution_grid(asked, bounds, lying)
    if any(codelet.reversal) and plan.bytes_per_tile > bounds.budget_bytes:
        # The taps of a kernel that is read backwards are not cut; those of one turned round are.
        straight = asked._replace(
            codelet=replace(codelet, reversal=(False,) * len(codelet.reversal))
        )
        if convolution_grid(straight, bounds).bytes_per_tile < plan.bytes_per_tile:
            kernel = _turned(builder, codelet, kernel)
            asked, codelet = straight, straight.codelet
            lying = lying[0], builder.variables[kernel.variable].mapping
            plan = convolution_grid(asked, bounds, lying)
    builder.explains(lambda: planned_convolution(builder.origin, asked, bounds, lying))
    cut = codelet
    if plan.cut.parts:
        cut = replace(codelet, cuts=plan.cut.parts, element_type=partial_kind)
    planned = _Planned(context, plan, codelet, cut)
    return [(_in_slices if plan.slices > 1 else _once)(planned, (image, kernel), result)]


def _turned(builder: Builder, codelet: Convolution, kernel: TileTensor) -> TileTensor:
    """Return a kernel whose dimensions that the convolution reads backwards are reversed."""
    read_backwards = zip(codelet.rhs[2:], codelet.reversal, strict=True)
    turning = Reverse(tuple(d for d, back in read_backwards if back))
    return builder.compute(turning, [kernel], [(kernel.element_type, kernel.shape)])[0]


class _Planned(NamedTuple):
    """A convolution on its grid."""

    context: LoweringContext
    plan: ConvolutionGrid
    codelet: Convolution
    cut: Convolution
    """With its sum cut as planned."""


def _once(planned: _Planned, operands: Sequence[TileTensor], result: Tensor) -> TileTensor:
    context, plan, _, cut = planned
    builder, kind = context.builder, result.element_type
    if not plan.cut.parts:
        return builder.compute(cut, operands, [(kind, result.shape)], placement=plan.placement)[0]
    pieces = (cut.element_type, (*plan.cut.counts, *result.shape))
    (partials,) = builder.compute(cut, operands, [pieces], placement=plan.placement)
    return combined(context, partials, kind, result.shape, of_convolution=True)


def _in_slices(planned: _Planned, operands: Sequence[TileTensor], result: Tensor) -> TileTensor:
    """Compute slices of the images or of the features one after the other; put them together."""
    context, plan, codelet, cut = planned
    builder, number = context.builder, 1 if plan.slices_features else 0
    whole, other = operands[number], operands[1 - number]
    dimension = codelet.rhs[1] if number else codelet.lhs[0]
    at = codelet.out[number]
    size = result.shape[at]
    step = -(-size // plan.slices)
    into: TileTensor | None = None
    for low in range(0, size, step):
        high = min(size, low + step)
        shape = resized(whole.shape, dimension, high - low)
        starts = resized((0,) * len(shape), dimension, low)
        slice_result = Tensor(result.element_type, resized(result.shape, at, high - low))
        tensors = [tensor.tensor for tensor in operands]
        tensors[number] = Tensor(whole.element_type, shape)
        counted = (*plan.cut.counts, *slice_result.shape)
        indexing = cut.indexing(tensors, [Tensor(cut.element_type, counted)])
        spans = plan.placement.spans(indexing.operands[number], shape)
        mapping = Mapping(plan.placement.tiles, spans)
        if low == 0:
            whole = spread(builder, whole, Slices(dimension, step, mapping))
        piece = (whole, whole.shape, whole_box(shape), starts)
        part = builder.assembled(whole.element_type, shape, [piece], mapping=mapping)
        pair = (other, part) if number else (part, other)
        slice_value = _once(planned, pair, slice_result)
        into = written(builder, into, slice_value, low, at, result)
    if into is None:
        raise ValueError("a convolution of no slices")
    return into


def _codelet(context: LoweringContext) -> Convolution:
    labels = context.attributes["dim_labels"]
    if not isinstance(labels, ConvolutionLabels):
        raise CodegenError("E0470", f"{context.instruction.name}: dim_labels is not read")
    window = context.attributes.window().dimensions
    spatial = [str(number) for number in range(len(window))]
    return Convolution(
        tuple(labels.lhs.index(x) for x in ("b", "f", *spatial)),
        tuple(labels.rhs.index(x) for x in ("i", "o", *spatial)),
        tuple(labels.out.index(x) for x in ("b", "f", *spatial)),
        tuple(
            (d.size, d.stride, d.pad_low, d.pad_high, d.base_dilation, d.window_dilation)
            for d in window
        ),
        tuple(d.reversal for d in window),
        context.shape.element_type.name,
        context.attributes.integer("feature_group_count", 1),
        context.attributes.integer("batch_group_count", 1),
    )


def decimated(
    builder: Builder, codelet: Convolution, image: TileTensor, result: Sizes
) -> tuple[Convolution, TileTensor]:
    """Return a convolution of the elements alone that windows read, and these.

    They are a regular choice where windows of one element have a stride, or where a single window
    is dilated, as in the weight gradient of a strided convolution with a kernel of one element. The
    same codelet and image where windows skip nothing, or padding is among what they read.
    """
    strides, shape = [1] * len(image.shape), list(image.shape)
    window = list(codelet.window)
    for number, (size, stride, low, high, base, dilation) in enumerate(codelet.window):
        if low != 0 or high > 0 or base != 1:
            continue
        at, count = codelet.lhs[2 + number], result[codelet.out[2 + number]]
        if size == 1 and stride > 1:
            strides[at], shape[at] = stride, count
            window[number] = (1, 1, 0, 0, 1, dilation)
        elif count == 1 and dilation > 1:
            strides[at], shape[at] = dilation, size
            window[number] = (size, 1, 0, 0, 1, 1)
    if tuple(shape) == image.shape or 0 in shape:
        return codelet, image
    taking = StridedSlice((0,) * len(shape), tuple(strides))
    kind = image.element_type
    lying = builder.variables[image.variable].mapping
    (taken,) = builder.compute(
        taking, [image], [(kind, tuple(shape))], placement=_in_place(lying, strides, shape)
    )
    return replace(codelet, window=tuple(window)), taken


def _in_place(lying: Mapping, strides: list[int], shape: list[int]) -> Placement | None:
    """Return the grid that a value lies on, for every so many of its elements.

    Where there are fewer elements left than tiles along an axis, those on every so many tiles. None
    where that makes no grid.
    """
    if lying.replicated_axes or not lying.is_partition:
        return None
    extents, steps = list(lying.tiles.extents), list(lying.tiles.strides)
    labels = []
    for d, (span, stride, size) in enumerate(zip(lying.spans, strides, shape, strict=True)):
        if span.axis < 0:
            continue
        block = span.step
        if stride > 1:
            block = over(span.step, stride)
            apart = max(1, stride // span.step)
            count = over(size, block)
            if count < 2 or (apart > 1 and stride % span.step):
                return None
            extents[span.axis], steps[span.axis] = count, steps[span.axis] * apart
        labels.append((d, Span(span.axis, block, 0, block)))
    tiles = Tiles(tuple(extents), tuple(steps), lying.tiles.first)
    within = all(
        count * apart <= whole * step
        for count, apart, whole, step in zip(
            extents, steps, lying.tiles.extents, lying.tiles.strides, strict=True
        )
    )
    return Placement(tiles, tuple(labels)) if within else None
