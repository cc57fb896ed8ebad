"""Convolution as matrix products with patches of x, copied block by block into a small buffer.

The buffer of patches stays in the cache between its copy and its product, which is what makes this
as fast as the product alone on all but the smallest channel counts.
"""

from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hloipu_runtime.kernels.contractions.blas_threads import blas_matmul
from hloipu_runtime.kernels.contractions.convolution_geometry import Axis
from hloipu_runtime.kernels.core.blocks import Array

_BLOCK_BYTES = 1 << 20
_LARGEST_BLOCK_BYTES = 1 << 24
_MIN_ROWS = 96
"""Rows of patches per product, within the larger bound, lest each block repacks a deep kernel."""
_MIN_COLUMNS = 192
"""Outputs of one image below which images share a product, lest each repacks the kernel."""


class _Region(NamedTuple):
    """What of x the windows read: `source` in x goes to `target` in `extents`, the rest is zero."""

    is_padded: bool
    extents: tuple[int, ...]
    source: tuple[slice, ...]
    target: tuple[slice, ...]


@lru_cache(maxsize=1024)
def _region(axes: tuple[Axis, ...]) -> _Region:
    whole = slice(None)
    source, target = [whole, whole, whole], [whole, whole, whole]
    for axis in axes:
        start = max(axis.first, 0)
        stop = max(start, min(axis.size, axis.first + axis.extent))
        source.append(slice(start, stop))
        target.append(slice(start - axis.first, stop - axis.first))
    is_padded = any(a.first < 0 or a.first + a.extent > a.size for a in axes)
    return _Region(is_padded, tuple(a.extent for a in axes), tuple(source), tuple(target))


def read_region(x: Array, axes: tuple[Axis, ...], order: tuple[int, ...]) -> Array:
    """Return x cut and padded to the positions that windows read, per axis `extent` of them.

    The result is a view where no padding is needed; else a copy whose memory order is `order`.
    """
    region = _region(axes)
    if not region.is_padded:
        return x[region.source]
    shape = (*x.shape[:3], *region.extents)
    padded = np.zeros([shape[d] for d in order], x.dtype).transpose(inverse_order(order))
    padded[region.target] = x[region.source]
    return padded


@lru_cache(maxsize=256)
def inverse_order(order: tuple[int, ...]) -> tuple[int, ...]:
    """Return the permutation that undoes `order`."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def channels_are_minor(x: Array) -> bool:
    """Tell whether the channel dim of [group, batch, channel, spatial...] varies fastest."""
    return x.shape[2] > 1 and abs(x.strides[2]) <= min(abs(s) for s in x.strides[3:])


def convolve_patches(x: Array, w: Array, axes: tuple[Axis, ...]) -> Array:
    """Convolve canonical x and w; see `convolution`.

    Beside the result and a padded x it takes a buffer of at most 16 MiB, or of the patches of one
    output along the first axis.
    """
    spatial = tuple(range(3, x.ndim))
    if channels_are_minor(x):
        return _channels_last(read_region(x, axes, (0, 1, *spatial, 2)), w, axes)
    return _channels_first(read_region(x, axes, (0, 1, 2, *spatial)), w, axes)


def _window_view(x: Array, axes: tuple[Axis, ...]) -> Array:
    """View as [group, batch, channel, out..., tap...]."""
    steps = x.strides[3:]
    return as_strided(
        x,
        (*x.shape[:3], *(a.out for a in axes), *(a.kernel for a in axes)),
        (
            *x.strides[:3],
            *(s * a.stride for s, a in zip(steps, axes, strict=True)),
            *(s * a.dilation for s, a in zip(steps, axes, strict=True)),
        ),
        writeable=False,
    )


def _blocks(
    images: int, first_out: int, unit_rows: int, row_bytes: int
) -> list[tuple[slice, slice]]:
    """Cut images x outputs along the first axis into blocks; each such output is `unit_rows`."""
    limit = max(_BLOCK_BYTES, min(_LARGEST_BLOCK_BYTES, _MIN_ROWS * row_bytes))
    units = max(1, limit // max(unit_rows * row_bytes, 1))
    if units >= first_out:
        step = units // first_out
        whole = slice(0, first_out)
        return [(slice(n, min(n + step, images)), whole) for n in range(0, images, step)]
    return [
        (slice(n, n + 1), slice(o, min(o + units, first_out)))
        for n in range(images)
        for o in range(0, first_out, units)
    ]


def _channels_last(x: Array, w: Array, axes: tuple[Axis, ...]) -> Array:
    groups, batch, channels = x.shape[:3]
    features, rank = w.shape[1], len(axes)
    outs = tuple(a.out for a in axes)
    outer, inner = outs[0], prod(outs[1:])
    depth = channels * prod(a.kernel for a in axes)
    # [group, batch, out..., tap..., channel]
    view = _window_view(x, axes).transpose((0, 1, *range(3, 3 + 2 * rank), 2))
    kernel = w.transpose((0, *range(3, 3 + rank), 2, 1)).reshape(groups, depth, features)
    result = np.empty((batch * outer, inner, groups, features), x.dtype)
    blocks = _blocks(batch, outer, inner, groups * depth * x.itemsize)
    patches: Array | None = None
    for images, rows in blocks:
        source = view[:, images, rows]
        if patches is None or patches.size != source.size:
            patches = np.empty((groups, source.size // (groups * depth), depth), x.dtype)
        np.copyto(patches.reshape(source.shape), source)
        first = images.start * outer + rows.start
        last = (images.stop - 1) * outer + rows.stop
        target = result[first:last].reshape(-1, groups, features)
        flops = 2.0 * prod(patches.shape[1:]) * features
        blas_matmul(patches, kernel, flops, target.transpose(1, 0, 2))
    # [batch, out..., group, feature] to [group, batch, feature, out...]
    whole = result.reshape((batch, *outs, groups, features))
    return whole.transpose((rank + 1, 0, rank + 2, *range(1, rank + 1)))


def _channels_first(x: Array, w: Array, axes: tuple[Axis, ...]) -> Array:
    groups, batch, channels = x.shape[:3]
    features, rank = w.shape[1], len(axes)
    outs = tuple(a.out for a in axes)
    inner = prod(outs[1:])
    depth = channels * prod(a.kernel for a in axes)
    kernel = w.reshape(groups, features, depth)
    taps = tuple(range(3 + rank, 3 + 2 * rank))
    positions = tuple(range(3, 3 + rank))
    shared = batch > 1 and outs[0] * inner < _MIN_COLUMNS
    blocks = _blocks(batch, outs[0], inner, groups * depth * x.itemsize)
    if shared:
        # [group, channel, tap..., batch, out...] times kernel to [group, feature, batch, out...]
        view = _window_view(x, axes).transpose((0, 2, *taps, 1, *positions))
        result = np.empty((groups, features, batch, outs[0] * inner), x.dtype)
    else:
        # [batch, group, channel, tap..., out...] times kernel to [batch, group, feature, out...]
        view = _window_view(x, axes).transpose((1, 0, 2, *taps, *positions))
        result = np.empty((batch, groups, features, outs[0] * inner), x.dtype)
    patches: Array | None = None
    for images, rows in blocks:
        if shared:
            source = view[(slice(None),) * (2 + rank) + (images, rows)]
            lead: tuple[int, ...] = (groups,)
            target = result[:, :, images, rows.start * inner : rows.stop * inner]
            target = target.reshape(groups, features, -1)
        else:
            source = view[(images, slice(None), slice(None), *(slice(None),) * rank, rows)]
            lead = (images.stop - images.start, groups)
            target = result[images, :, :, rows.start * inner : rows.stop * inner]
        if patches is None or patches.size != source.size:
            patches = np.empty((*lead, depth, source.size // (prod(lead) * depth)), x.dtype)
        np.copyto(patches.reshape(source.shape), source)
        flops = 2.0 * features * depth * patches.shape[-1]
        blas_matmul(kernel, patches, flops, target)
    if shared:
        return result.reshape((groups, features, batch, *outs)).swapaxes(1, 2)
    return result.reshape((batch, groups, features, *outs)).swapaxes(0, 1)
