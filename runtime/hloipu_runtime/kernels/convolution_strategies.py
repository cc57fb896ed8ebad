"""The choice among convolution strategies for undilated x, and the simplest of them.

Axes on which the kernel has one tap, or there is one output, need no window at all: they are plain
free or contracted dims, and are folded away before a strategy is chosen for the others.
"""

from itertools import product as index_product

import numpy as np

from hloipu_runtime.kernels.contraction import DotDimensions, contract
from hloipu_runtime.kernels.convolution_geometry import Axis, clipped_outputs
from hloipu_runtime.kernels.matmul import Array


def convolve_axes(x: Array, w: Array, axes: list[Axis]) -> Array:
    return convolve_taps(x, w, axes)


def convolve_taps(x: Array, w: Array, axes: list[Axis]) -> Array:
    """Add one contraction over channels per tap, on the outputs for which it meets x.

    Makes no padded copy at all, so its memory is bounded whatever the paddings and dilations.
    """
    groups, batch, channels = x.shape[:3]
    features = w.shape[1]
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
