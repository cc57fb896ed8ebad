"""The choice among convolution strategies for undilated x, and the simplest of them.

Axes on which the kernel has one tap, or there is one output, need no window at all: they are plain
free or contracted dims, and are folded away before a strategy is chosen for the others.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import product as index_product
from math import prod

import numpy as np

from hloipu_runtime.kernels.contractions.contraction import (
    DotDimensions,
    arrangement,
    contract,
    mergeable,
)
from hloipu_runtime.kernels.contractions.convolution_geometry import Axis, clipped_outputs
from hloipu_runtime.kernels.contractions.convolution_patches import (
    convolve_patches,
    read_region,
    window_view,
)
from hloipu_runtime.kernels.contractions.matmul import matmul
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.movement import contiguous

_MAX_PADDING_RATIO = 4
_FEW_OUTPUTS = 64
_MAX_ROW_BYTES = 1 << 26
_MIN_ROWS = 8
_MOST_WINDOW_BYTES = 1 << 20
"""Of the windows of all outputs, up to which they are copied and multiplied together."""


def convolve_axes(x: Array, w: Array, axes: tuple[Axis, ...]) -> Array:
    """Convolve canonical x and w (see `convolution`) over axes without base dilation.

    The axes are trimmed: every output and every tap meets an element of x. The result is
    [group, batch, feature, out...], usually a transposed view of its buffer.
    """
    windowed = [i for i, axis in enumerate(axes) if axis.kernel > 1 and axis.out > 1]
    if len(windowed) == len(axes) > 0:
        return _convolve_windowed(x, w, axes)
    free = [i for i, axis in enumerate(axes) if axis.kernel == 1]
    contracted = [i for i, axis in enumerate(axes) if axis.kernel > 1 and axis.out == 1]
    # Dims of x become [group, batch, free..., channel, contracted..., windowed...].
    cut: list[slice] = [slice(None)] * 3
    for axis in axes:
        if axis.kernel == 1:
            last = axis.first + (axis.out - 1) * axis.stride
            cut.append(slice(axis.first, last + 1, axis.stride))
        elif axis.out == 1:
            last = axis.first + (axis.kernel - 1) * axis.dilation
            cut.append(slice(axis.first, last + 1, axis.dilation))
        else:
            cut.append(slice(None))
    x = x[tuple(cut)]
    if not windowed:
        w = w[(slice(None),) * 3 + tuple(0 if a.kernel == 1 else slice(None) for a in axes)]
        dims = DotDimensions((0,), (0,), (2, *(i + 3 for i in contracted)), tuple(range(2, w.ndim)))
        out = contract(x, w, dims)
        return _unfolded(np.moveaxis(out, -1, 2), free, [], axes)
    rows, channels = [i + 3 for i in free], [i + 3 for i in contracted]
    spatial = [i + 3 for i in windowed]
    merged_x = x.transpose((0, 1, *rows, 2, *channels, *spatial))
    batch_sizes = merged_x.shape[1 : 2 + len(rows)]
    merged_x = merged_x.reshape((x.shape[0], prod(batch_sizes), -1, *(x.shape[d] for d in spatial)))
    merged_w = w.transpose((0, 1, *rows, 2, *channels, *spatial))
    merged_w = merged_w.reshape((*w.shape[:2], -1, *(w.shape[d] for d in spatial)))
    kept = tuple(axes[i] for i in windowed)
    out = _convolve_windowed(merged_x, merged_w, kept)
    # [group, batch * free, feature, windowed...] to [group, batch, feature, free..., windowed...]
    split = out.reshape((out.shape[0], *batch_sizes, *out.shape[2:]))
    return _unfolded(np.moveaxis(split, 2 + len(free), 2), free, windowed, axes)


def _unfolded(out: Array, free: list[int], windowed: list[int], axes: tuple[Axis, ...]) -> Array:
    """Put axes of [group, batch, feature, free..., windowed...] in order, and those of size 1."""
    order = [0, 1, 2]
    at = {axis: 3 + i for i, axis in enumerate((*free, *windowed))}
    order += [at[i] for i in sorted(at)]
    out = out.transpose(order)
    index: list[slice | None] = [slice(None)] * 3
    index += [slice(None) if i in at else None for i in range(len(axes))]
    return out[tuple(index)]


def _convolve_windowed(x: Array, w: Array, axes: tuple[Axis, ...]) -> Array:
    return _strategy(x.shape, w.shape, axes, x.itemsize)(x, w, axes)


@lru_cache(maxsize=1024)
def _strategy(
    x: tuple[int, ...], w: tuple[int, ...], axes: tuple[Axis, ...], item_bytes: int
) -> Callable[[Array, Array, tuple[Axis, ...]], Array]:
    """Return how operands of these shapes are convolved."""
    read = prod(axis.extent for axis in axes)
    if read > _MAX_PADDING_RATIO * prod(axis.size for axis in axes):
        return convolve_taps
    outputs = prod(axis.out for axis in axes)
    few = outputs <= _FEW_OUTPUTS and outputs < prod(axis.kernel for axis in axes)
    if few and (x[1] >= _MIN_ROWS or x[0] > 1):
        return convolve_outputs
    row_bytes = item_bytes * x[0] * prod(w[2:]) * prod(axis.out for axis in axes[1:])
    if row_bytes > _MAX_ROW_BYTES and any(axis.out > 1 for axis in axes[1:]):
        return _convolve_halves
    return convolve_patches


def _convolve_halves(x: Array, w: Array, axes: tuple[Axis, ...]) -> Array:
    """Convolve the two halves of the outputs along the widest axis but the first."""
    widest = max(range(1, len(axes)), key=lambda i: axes[i].out)
    axis = axes[widest]
    half = axis.out // 2
    parts = (
        axis._replace(out=half),
        axis._replace(out=axis.out - half, low=axis.low - half * axis.stride),
    )
    return np.concatenate(
        [_convolve_windowed(x, w, (*axes[:widest], part, *axes[widest + 1 :])) for part in parts],
        3 + widest,
    )


def convolve_outputs(x: Array, w: Array, axes: tuple[Axis, ...]) -> Array:
    """Contract the whole window of each output position with the kernel.

    For kernels larger than the result, as in gradients with respect to weights.
    """
    rank = len(axes)
    order = tuple(sorted(range(x.ndim), key=lambda d: (-abs(x.strides[d]), d)))
    region = read_region(x, axes, order)
    contracted = tuple(range(2, 3 + rank))
    if not mergeable(w, tuple(sorted(contracted, key=lambda d: -w.strides[d]))):
        w = np.ascontiguousarray(w)
    dims = DotDimensions((0,), (0,), contracted, contracted)
    outs = tuple(a.out for a in axes)
    # [out..., group, batch, channel, tap...]
    windows = window_view(region, axes).transpose((*range(3, 3 + rank), 0, 1, 2, *range(-rank, 0)))
    if prod(outs) * w.nbytes // w.shape[1] * x.shape[1] <= _MOST_WINDOW_BYTES:
        left, right, *_ = arrangement(windows[(0,) * rank], w, dims)
        turned = windows.transpose((*range(rank), *(rank + d for d in left.order)))
        rows = contiguous(turned).reshape((prod(outs), *left.shape))
        rows = rows.swapaxes(-1, -2) if left.is_turned else rows
        columns = right.of(w)
        product = matmul(rows, np.broadcast_to(columns, (len(rows), *columns.shape)))
        out = product.reshape((*outs, *product.shape[1:]))
    else:
        out = np.empty((*outs, x.shape[0], x.shape[1], w.shape[1]), x.dtype)
        for at in np.ndindex(*outs):
            out[at] = contract(windows[at], w, dims)
    return out.transpose((rank, rank + 1, rank + 2, *range(rank)))


def convolve_taps(x: Array, w: Array, axes: tuple[Axis, ...]) -> Array:
    """Add one contraction over channels per tap, on the outputs for which it meets x.

    Makes no padded copy at all, so its memory is bounded whatever the paddings and dilations.
    """
    groups, batch, features = *x.shape[:2], w.shape[1]
    order = np.argsort([-s for s in x.strides], kind="stable")
    sizes = (groups, batch, features, *(axis.out for axis in axes))
    out = np.zeros([sizes[d] for d in order], x.dtype).transpose(np.argsort(order))
    dims = DotDimensions((0,), (0,), (2,), (2,))
    move = (0, 1, out.ndim - 1, *range(2, out.ndim - 1))
    for taps in index_product(*(range(axis.kernel) for axis in axes)):
        ranges = [clipped_outputs(axis, tap) for axis, tap in zip(axes, taps, strict=True)]
        if any(first == last for first, last in ranges):
            continue
        source = tuple(
            slice(start, start + (last - first - 1) * axis.stride + 1, axis.stride)
            for axis, tap, (first, last) in zip(axes, taps, ranges, strict=True)
            for start in (first * axis.stride + tap * axis.dilation - axis.low,)
        )
        target = tuple(slice(first, last) for first, last in ranges)
        part = contract(x[(slice(None),) * 3 + source], w[(slice(None),) * 3 + taps], dims)
        out[(slice(None),) * 3 + target] += part.transpose(move)
    return out
