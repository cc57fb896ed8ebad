"""Convolution in full generality: any labels, strides, paddings, dilations, groups and types.

Semantics: StableHLO specification, `convolution` (a cross-correlation unless a window dimension is
reversed). The work is done by strategies on one canonical form, chosen by shape:
x [group, batch, channel, spatial...], w [group, feature, channel, spatial...] to
out [group, batch, feature, spatial...], every one a strided view.
"""

from dataclasses import dataclass
from itertools import product as index_product
from math import prod

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.convolution_geometry import Axis, output_size, phases, trimmed
from hloipu_runtime.kernels.convolution_strategies import convolve_axes
from hloipu_runtime.kernels.dot import (
    float_operands,
    round_result,
    truncate_to_integer,
    wrap_integer,
)
from hloipu_runtime.kernels.matmul import Array, exact_integer


@dataclass(frozen=True, slots=True)
class ConvolutionDimensions:
    """Where batch, feature and spatial dimensions lie in x, in the kernel and in the result."""

    lhs_batch: int
    lhs_feature: int
    lhs_spatial: tuple[int, ...]
    rhs_input_feature: int
    rhs_output_feature: int
    rhs_spatial: tuple[int, ...]
    out_batch: int
    out_feature: int
    out_spatial: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConvolutionWindow:
    """The window: one entry per spatial dimension in every field."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilations: tuple[int, ...]
    window_dilations: tuple[int, ...]
    reversal: tuple[bool, ...]


def convolution(
    lhs: Array,
    rhs: Array,
    dims: ConvolutionDimensions,
    window: ConvolutionWindow,
    element_type: str,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
) -> Array:
    """Convolve `lhs` (the image) with `rhs` (the kernel); at most one group count exceeds one.

    Operands are in storage form and may differ in type from each other and from the result
    (`element_type`): integers are exact modulo 2^bits, narrow floats are summed in float32 and
    rounded once. The result may be a transposed view of its buffer.
    """
    storage = np.dtype(ELEMENT_TYPES[element_type].storage)
    groups = (feature_group_count, batch_group_count)

    def in_floats(x: Array, w: Array) -> Array:
        return _convolve(x, w, dims, window, *groups)

    if storage.kind in "fc":
        lhs, rhs = float_operands(lhs, rhs, storage)
        return round_result(in_floats(lhs, rhs), element_type, storage)
    if lhs.dtype.kind in "fc" or rhs.dtype.kind in "fc":
        dtype = np.result_type(lhs.dtype, rhs.dtype, np.float32)
        inexact = in_floats(lhs.astype(dtype, copy=False), rhs.astype(dtype, copy=False))
        return truncate_to_integer(inexact, storage)
    if storage.kind == "b":
        return in_floats(lhs.astype(np.float32), rhs.astype(np.float32)).astype(np.bool_)
    terms = rhs.size // max(rhs.shape[dims.rhs_output_feature], 1)
    return wrap_integer(exact_integer(in_floats, lhs, rhs, terms, storage), element_type)


def _convolve(
    lhs: Array,
    rhs: Array,
    dims: ConvolutionDimensions,
    window: ConvolutionWindow,
    feature_groups: int,
    batch_groups: int,
) -> Array:
    groups = feature_groups * batch_groups
    x = _grouped(
        lhs, dims.lhs_feature if batch_groups == 1 else dims.lhs_batch, groups, dims.lhs_spatial,
        *((dims.lhs_batch, dims.lhs_feature)),
    )  # fmt: skip
    w = _grouped(
        rhs, dims.rhs_output_feature, groups, dims.rhs_spatial,
        dims.rhs_output_feature, dims.rhs_input_feature,
    )  # fmt: skip
    flip = tuple(slice(None, None, -1 if back else 1) for back in window.reversal)
    w = w[(slice(None),) * 3 + flip]
    axes = [
        Axis(
            size,
            kernel,
            output_size(size, kernel, stride, padding, base, dilation),
            stride,
            dilation,
            padding[0],
        )
        for size, kernel, stride, padding, base, dilation in zip(
            x.shape[3:],
            w.shape[3:],
            window.strides,
            window.padding,
            window.base_dilations,
            window.window_dilations,
            strict=True,
        )
    ]
    out = _all_phases(x, w, axes, window.base_dilations)
    # [group, batch, feature, spatial] to [batch, group * feature, spatial] to the result's labels.
    merged = np.moveaxis(out, 0, 1)
    batch, _, features = merged.shape[:3]
    merged = merged.reshape((batch, groups * features, *merged.shape[3:]))
    order = [0] * merged.ndim
    order[dims.out_batch], order[dims.out_feature] = 0, 1
    for i, d in enumerate(dims.out_spatial):
        order[d] = i + 2
    return merged.transpose(order)


def _grouped(
    array: Array, split: int, groups: int, spatial: tuple[int, ...], outer: int, inner: int
) -> Array:
    """View as [group, outer, inner, spatial...] with dimension `split` cut into the groups."""
    shape = array.shape
    view = array.reshape((*shape[:split], groups, shape[split] // groups, *shape[split + 1 :]))
    after = [d + (d >= split) for d in range(array.ndim)]
    return view.transpose((split, after[outer], after[inner], *(after[d] for d in spatial)))


def _all_phases(x: Array, w: Array, axes: list[Axis], base_dilations: tuple[int, ...]) -> Array:
    sizes = [axis.out for axis in axes]
    shape = (x.shape[0], x.shape[1], w.shape[1], *sizes)
    if 0 in shape or 0 in x.shape or 0 in w.shape:
        return np.zeros(shape, x.dtype)
    result: Array | None = None
    every = [phases(axis, base) for axis, base in zip(axes, base_dilations, strict=True)]
    for combination in index_product(*every):
        cuts = [trimmed(phase.axis) for phase in combination]
        kept = [cut for cut in cuts if cut is not None]
        if len(kept) < len(axes):
            continue
        taps = tuple(
            slice(
                phase.first_tap + cut.first_tap * phase.tap_step,
                phase.first_tap + (cut.first_tap + cut.axis.kernel - 1) * phase.tap_step + 1,
                phase.tap_step,
            )
            for phase, cut in zip(combination, kept, strict=True)
        )
        part = convolve_axes(x, w[(slice(None),) * 3 + taps], [cut.axis for cut in kept])
        if part.shape == shape:
            return part
        if result is None:
            result = _zeros_like_layout(part, shape)
        outs = tuple(
            slice(
                phase.first_out + cut.first_out * phase.out_step,
                phase.first_out + (cut.first_out + cut.axis.out - 1) * phase.out_step + 1,
                phase.out_step,
            )
            for phase, cut in zip(combination, kept, strict=True)
        )
        result[(slice(None),) * 3 + outs] = part
    return np.zeros(shape, x.dtype) if result is None else result


def _zeros_like_layout(part: Array, shape: tuple[int, ...]) -> Array:
    """Return zeros of the shape whose dims are in the same memory order as those of `part`."""
    order = sorted(range(part.ndim), key=lambda d: (-part.strides[d], d))
    zeros = np.zeros([shape[d] for d in order], part.dtype)
    return zeros.transpose(np.argsort(order))
