"""Drops image elements that no window of a strided convolution reads."""

from dataclasses import replace

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.planners.placing import Placement
from hloipu_runtime.codelets.dense.convolution import Convolution
from hloipu_runtime.codelets.ops.move import StridedSlice
from hloipu_runtime.machine.charges import over
from hloipu_runtime.program.mapping import Mapping, Sizes, Span, Tiles


def decimated(
    builder: Builder, codelet: Convolution, image: TileTensor, result: Sizes
) -> tuple[Convolution, TileTensor]:
    """Return a convolution of the elements alone that windows of one element read, and these.

    The same codelet and image where windows skip nothing, or padding is among what they read.
    """
    strides, shape = [1] * len(image.shape), list(image.shape)
    window = list(codelet.window)
    for number, (size, stride, low, high, base, dilation) in enumerate(codelet.window):
        if size == 1 and stride > 1 and low == 0 and high <= 0 and base == 1:
            at = codelet.lhs[2 + number]
            strides[at], shape[at] = stride, result[codelet.out[2 + number]]
            window[number] = (1, 1, 0, 0, 1, dilation)
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
