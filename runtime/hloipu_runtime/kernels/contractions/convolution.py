"""Convolution in full generality: any labels, strides, paddings, dilations, groups and types.

Semantics: StableHLO specification, `convolution` (a cross-correlation unless a window dimension is
reversed). The work is done by strategies on one canonical form, chosen by shape:
x [group, batch, channel, spatial...], w [group, feature, channel, spatial...] to
out [group, batch, feature, spatial...], every one a strided view.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product as index_product
from math import prod
from typing import NamedTuple

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.contractions.convolution_geometry import (
    Axis,
    output_size,
    phases,
    trimmed,
)
from hloipu_runtime.kernels.contractions.convolution_leading import (
    Varies,
    leading_axes,
    merge_leading,
    split_leading,
)
from hloipu_runtime.kernels.contractions.convolution_strategies import convolve_axes
from hloipu_runtime.kernels.contractions.dot import (
    float_operands,
    round_result,
    truncate_to_integer,
    wrap_integer,
)
from hloipu_runtime.kernels.contractions.matmul import exact_integer
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.movement import copy_into
from hloipu_runtime.kernels.core.quiet import quietly


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
    *,
    varies: Varies = (),
) -> Array:
    """Convolve `lhs` (the image) with `rhs` (the kernel); at most one group count exceeds one.

    `varies` describes axes before all dimensions, for many convolutions of one shape at once.

    Operands are in storage form and may differ in type from each other and from the result
    (`element_type`): integers are exact modulo 2^bits, narrow floats are summed in float32 and
    rounded once. The result may be a transposed view of its buffer.
    """
    storage = np.dtype(ELEMENT_TYPES[element_type].storage)
    groups = (feature_group_count, batch_group_count)

    def in_floats(x: Array, w: Array) -> Array:
        with quietly():
            return _convolve(x, w, dims, window, *groups, varies)

    if storage.kind in "fc":
        lhs, rhs = float_operands(lhs, rhs, storage)
        return round_result(in_floats(lhs, rhs), element_type, storage)
    if lhs.dtype.kind in "fc" or rhs.dtype.kind in "fc":
        dtype = np.result_type(lhs.dtype, rhs.dtype, np.float32)
        inexact = in_floats(lhs.astype(dtype, copy=False), rhs.astype(dtype, copy=False))
        return truncate_to_integer(inexact, storage)
    if storage.kind == "b":
        return in_floats(lhs.astype(np.float32), rhs.astype(np.float32)).astype(np.bool_)
    kernel = rhs.shape[sum(right for _, right in varies) :]
    terms = prod(kernel) // max(kernel[dims.rhs_output_feature], 1)
    return wrap_integer(exact_integer(in_floats, lhs, rhs, terms, storage), element_type)


class _Piece(NamedTuple):
    """One convolution without base dilation: the taps it uses and the outputs it gives."""

    taps: tuple[slice, ...]
    outs: tuple[slice, ...]
    axes: tuple[Axis, ...]


class _Plan(NamedTuple):
    """How two shapes are viewed in canonical form, and the pieces to be computed there."""

    lhs_shape: tuple[int, ...]
    lhs_order: tuple[int, ...]
    rhs_shape: tuple[int, ...]
    rhs_order: tuple[int, ...]
    out_shape: tuple[int, ...]
    out_order: tuple[int, ...]
    pieces: tuple[_Piece, ...]


@lru_cache(maxsize=1024)
def _plan(
    lhs_shape: tuple[int, ...],
    rhs_shape: tuple[int, ...],
    dims: ConvolutionDimensions,
    window: ConvolutionWindow,
    feature_groups: int,
    batch_groups: int,
) -> _Plan:
    groups = feature_groups * batch_groups
    split = dims.lhs_feature if batch_groups == 1 else dims.lhs_batch
    x_shape, x_order = _grouped(
        lhs_shape, split, groups, (dims.lhs_batch, dims.lhs_feature, *dims.lhs_spatial)
    )
    split = dims.rhs_output_feature
    w_shape, w_order = _grouped(
        rhs_shape, split, groups, (split, dims.rhs_input_feature, *dims.rhs_spatial)
    )
    axes = tuple(
        Axis(
            lhs_shape[x],
            rhs_shape[w],
            output_size(lhs_shape[x], rhs_shape[w], stride, padding, base, dilation),
            stride,
            dilation,
            padding[0],
        )
        for x, w, stride, padding, base, dilation in zip(
            dims.lhs_spatial,
            dims.rhs_spatial,
            window.strides,
            window.padding,
            window.base_dilations,
            window.window_dilations,
            strict=True,
        )
    )
    order = [0] * len(lhs_shape)
    order[dims.out_batch], order[dims.out_feature] = 0, 1
    for i, d in enumerate(dims.out_spatial):
        order[d] = i + 2
    out_shape = (groups, x_shape[x_order[1]], w_shape[w_order[1]], *(axis.out for axis in axes))
    empty = 0 in out_shape or 0 in lhs_shape or 0 in rhs_shape
    pieces = () if empty else _pieces(axes, window.base_dilations)
    return _Plan(x_shape, x_order, w_shape, w_order, out_shape, tuple(order), pieces)


def _grouped(
    shape: tuple[int, ...], split: int, groups: int, dims: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the reshape and transpose that give [group, *dims], dim `split` cut into groups."""
    cut = (*shape[:split], groups, shape[split] // groups, *shape[split + 1 :])
    return cut, (split, *(d + (d >= split) for d in dims))


def _pieces(axes: tuple[Axis, ...], base_dilations: tuple[int, ...]) -> tuple[_Piece, ...]:
    pieces = []
    every = [phases(axis, base) for axis, base in zip(axes, base_dilations, strict=True)]
    for combination in index_product(*every):
        cuts = [cut for phase in combination if (cut := trimmed(phase.axis)) is not None]
        if len(cuts) < len(axes):
            continue
        taps, outs = [], []
        for phase, cut in zip(combination, cuts, strict=True):
            first = phase.first_tap + cut.first_tap * phase.tap_step
            last = first + (cut.axis.kernel - 1) * phase.tap_step
            taps.append(slice(first, last + 1, phase.tap_step))
            first = phase.first_out + cut.first_out * phase.out_step
            last = first + (cut.axis.out - 1) * phase.out_step
            outs.append(slice(first, last + 1, phase.out_step))
        pieces.append(_Piece(tuple(taps), tuple(outs), tuple(cut.axis for cut in cuts)))
    return tuple(pieces)


def _convolve(
    lhs: Array,
    rhs: Array,
    dims: ConvolutionDimensions,
    window: ConvolutionWindow,
    feature_groups: int,
    batch_groups: int,
    varies: Varies,
) -> Array:
    left, right = (sum(axis[side] for axis in varies) for side in (0, 1))
    plan = _plan(lhs.shape[left:], rhs.shape[right:], dims, window, feature_groups, batch_groups)
    leading = leading_axes(varies)
    x = merge_leading(lhs, plan.lhs_shape, plan.lhs_order, leading.of_lhs)
    w = merge_leading(rhs, plan.rhs_shape, plan.rhs_order, leading.of_rhs)
    if True in window.reversal:
        flips = (slice(None, None, -1 if back else 1) for back in window.reversal)
        w = w[(slice(None), slice(None), slice(None), *flips)]
    shape = (x.shape[0], x.shape[1], w.shape[1], *plan.out_shape[3:])
    out = _all_pieces(x, w, plan.pieces, shape)
    if varies:
        out = split_leading(out, leading, plan.out_shape, lhs.shape[:left], rhs.shape[:right])
    # [group, batch, feature, spatial] to [batch, group * feature, spatial] to the result's labels.
    rank = len(varies)
    groups, batch, features = plan.out_shape[:3]
    if groups == 1:
        merged: Array = out[(slice(None),) * rank + (0,)]
    else:
        merged = out.swapaxes(rank, rank + 1).reshape(
            (*out.shape[:rank], batch, groups * features, *plan.out_shape[3:])
        )
    return merged.transpose((*range(rank), *(rank + d for d in plan.out_order)))


def _all_pieces(x: Array, w: Array, pieces: tuple[_Piece, ...], shape: tuple[int, ...]) -> Array:
    result: Array | None = None
    every = (slice(None), slice(None), slice(None))
    for piece in pieces:
        part = convolve_axes(x, w[every + piece.taps], piece.axes)
        if part.shape == shape:
            return part
        if result is None:
            result = _zeros_like_layout(part, shape)
        copy_into(result[every + piece.outs], part)
    return np.zeros(shape, x.dtype) if result is None else result


def _zeros_like_layout(part: Array, shape: tuple[int, ...]) -> Array:
    """Return zeros of the shape whose dims are in the same memory order as those of `part`."""
    order = sorted(range(part.ndim), key=lambda d: (-part.strides[d], d))
    zeros = np.zeros([shape[d] for d in order], part.dtype)
    return zeros.transpose(np.argsort(order))
