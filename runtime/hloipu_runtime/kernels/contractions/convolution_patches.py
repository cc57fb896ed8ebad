"""Convolution as matrix products with patches of x, copied block by block into a small buffer.

The buffer of patches stays in the cache between its copy and its product, which is what makes this
as fast as the product alone on all but the smallest channel counts. It is one for all convolutions
that go one after the other; what pads a small x, and views of that, are made ready once for each.
"""

from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hloipu_runtime.kernels.contractions.blas_threads import blas_matmul
from hloipu_runtime.kernels.contractions.convolution_geometry import Axis
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.movement import copy_into

Sizes = tuple[int, ...]

_BLOCK_BYTES = 1 << 20
_LARGEST_BLOCK_BYTES = 1 << 24
_MIN_ROWS = 96
"""Rows of patches per product, within the larger bound, lest each block repacks a deep kernel."""
_MIN_COLUMNS = 192
"""Outputs of one image below which images share a product, lest each repacks the kernel."""
_MOST_KEPT_BYTES = 1 << 19
"""Of a padded x whose memory is kept for the next convolution like this; *assumed*."""

Blocks = list[tuple[slice, slice]]
"""Of images and of outputs along the first axis."""


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
    padded = _zeros((*x.shape[:3], *region.extents), order, x.dtype)
    copy_into(padded[region.target], x[region.source])
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
    form = _ChannelsLast if channels_are_minor(x) else _ChannelsFirst
    idle = _idle(form, x.shape, w.shape[1], axes, x.dtype)
    try:
        patches = idle.pop()  # asked for at once: a thread may take the last one
    except IndexError:
        patches = form(x.shape, w.shape[1], axes, x.dtype)
    result = patches.convolve(x, w)
    if patches.kept_bytes <= _MOST_KEPT_BYTES:
        idle.append(patches)
    return result


@lru_cache(maxsize=64)
def _idle(
    form: "type[_Patches]", shape: Sizes, features: int, axes: tuple[Axis, ...],
    dtype: np.dtype[Any],
) -> "list[_Patches]":  # fmt: skip
    """Return the list of what is ready for convolutions of this form and no convolution uses."""
    return []


def window_view(x: Array, axes: tuple[Axis, ...]) -> Array:
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


def _blocks(images: int, first_out: int, unit_rows: int, row_bytes: int) -> Blocks:
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


@lru_cache(maxsize=8)
def _idle_memories(dtype: np.dtype[Any]) -> list[Array]:
    """Return the memories for a block's patches that no convolution uses."""
    return []


class _Patches:
    """What a convolution of one form needs beside its operands. One at a time may have it."""

    def __init__(
        self, shape: Sizes, features: int, axes: tuple[Axis, ...], dtype: np.dtype[Any]
    ) -> None:
        self.groups, self.batch, self.channels = shape[:3]
        self.features, self.axes, self.rank, self.dtype = features, axes, len(axes), dtype
        self.outs = tuple(a.out for a in axes)
        self.inner = prod(self.outs[1:])
        self.depth = self.channels * prod(a.kernel for a in axes)
        self.blocks = _blocks(
            self.batch, self.outs[0], self.inner, self.groups * self.depth * dtype.itemsize
        )
        self._region, self._padded = _region(axes), None
        if self._region.is_padded:
            self._padded = _zeros((*shape[:3], *self._region.extents), self._order(), dtype)
            self._inside = self._padded[self._region.target]
        self._sources: list[Array] = []
        if self._padded is not None:
            self._sources = self._seen(self._padded)

    @property
    def kept_bytes(self) -> int:
        """Of its own memory."""
        return 0 if self._padded is None else self._padded.nbytes

    def convolve(self, x: Array, w: Array) -> Array:
        """Multiply block by block; the result is canonical, a view of its buffer."""
        x, sources = x[self._region.source], self._sources
        if self._padded is None:
            sources = self._seen(x)
        else:
            copy_into(self._inside, x)
        kernel = self._kernel(w)
        result = np.empty(self._result_shape(), self.dtype)
        idle, most = _idle_memories(self.dtype), max(source.size for source in sources)
        usual = _BLOCK_BYTES // self.dtype.itemsize
        try:
            memory = idle.pop() if most <= usual else np.empty(most, self.dtype)
        except IndexError:
            memory = np.empty(usual, self.dtype)
        shape: Sizes = ()
        for block, source in zip(self.blocks, sources, strict=True):
            if source.shape != shape:
                shape = source.shape
                windows = memory[: source.size].reshape(shape)
                patches = memory[: source.size].reshape(self._matrices(block, source.size))
            copy_into(windows, source)
            self._multiply(kernel, patches, result, block)
        if most <= usual:
            idle.append(memory)
        return self._canonical(result)

    def _order(self) -> Sizes:
        """Return the order in which dimensions of a padded x lie in memory."""
        raise NotImplementedError

    def _seen(self, x: Array) -> list[Array]:
        """Return the windows of each block of what they read."""
        raise NotImplementedError

    def _matrices(self, block: tuple[slice, slice], elements: int) -> Sizes:
        """Return the shape of a block's patches as matrices."""
        raise NotImplementedError

    def _kernel(self, w: Array) -> Array:
        raise NotImplementedError

    def _result_shape(self) -> Sizes:
        raise NotImplementedError

    def _multiply(
        self, kernel: Array, patches: Array, result: Array, block: tuple[slice, slice]
    ) -> None:
        raise NotImplementedError

    def _canonical(self, result: Array) -> Array:
        """Return [group, batch, feature, out...]."""
        raise NotImplementedError


def _zeros(shape: Sizes, order: Sizes, dtype: np.dtype[Any]) -> Array:
    """Return zeros whose dimensions lie in some order."""
    return np.zeros([shape[d] for d in order], dtype).transpose(inverse_order(order))


class _ChannelsLast(_Patches):
    """Patches [group, position, tap and channel] times [group, tap and channel, feature]."""

    def _order(self) -> Sizes:
        return (0, 1, *range(3, 3 + self.rank), 2)

    def _seen(self, x: Array) -> list[Array]:
        # [group, batch, out..., tap..., channel]
        view = window_view(x, self.axes).transpose((0, 1, *range(3, 3 + 2 * self.rank), 2))
        return [view[:, images, rows] for images, rows in self.blocks]

    def _matrices(self, block: tuple[slice, slice], elements: int) -> Sizes:
        return self.groups, elements // (self.groups * self.depth), self.depth

    def _kernel(self, w: Array) -> Array:
        taps = w.transpose((0, *range(3, 3 + self.rank), 2, 1))
        return taps.reshape(self.groups, self.depth, self.features)

    def _result_shape(self) -> Sizes:
        return self.batch * self.outs[0], self.inner, self.groups, self.features

    def _multiply(
        self, kernel: Array, patches: Array, result: Array, block: tuple[slice, slice]
    ) -> None:
        images, rows = block
        first = images.start * self.outs[0] + rows.start
        last = (images.stop - 1) * self.outs[0] + rows.stop
        target = result[first:last].reshape(-1, self.groups, self.features)
        flops = 2.0 * patches.shape[1] * self.depth * self.features
        blas_matmul(patches, kernel, flops, target.transpose(1, 0, 2))

    def _canonical(self, result: Array) -> Array:
        rank = self.rank
        whole = result.reshape((self.batch, *self.outs, self.groups, self.features))
        return whole.transpose((rank + 1, 0, rank + 2, *range(1, rank + 1)))


class _ChannelsFirst(_Patches):
    """Kernel [group, feature, channel and tap] times [group, channel and tap, position].

    Images have a product each, or share one where each has few outputs.
    """

    @cached_property
    def _shares(self) -> bool:
        return self.batch > 1 and self.outs[0] * self.inner < _MIN_COLUMNS

    def _order(self) -> Sizes:
        return tuple(range(3 + self.rank))

    def _seen(self, x: Array) -> list[Array]:
        rank, whole = self.rank, slice(None)
        taps, outs = range(3 + rank, 3 + 2 * rank), range(3, 3 + rank)
        if self._shares:
            # [group, channel, tap..., batch, out...]
            view = window_view(x, self.axes).transpose((0, 2, *taps, 1, *outs))
            return [view[(whole,) * (2 + rank) + block] for block in self.blocks]
        # [batch, group, channel, tap..., out...]
        view = window_view(x, self.axes).transpose((1, 0, 2, *taps, *outs))
        return [view[(images, *(whole,) * (2 + rank), rows)] for images, rows in self.blocks]

    def _matrices(self, block: tuple[slice, slice], elements: int) -> Sizes:
        images = block[0]
        lead = (self.groups,) if self._shares else (images.stop - images.start, self.groups)
        return *lead, self.depth, elements // (prod(lead) * self.depth)

    def _kernel(self, w: Array) -> Array:
        return w.reshape(self.groups, self.features, self.depth)

    def _result_shape(self) -> Sizes:
        positions = self.outs[0] * self.inner
        if self._shares:
            return self.groups, self.features, self.batch, positions
        return self.batch, self.groups, self.features, positions

    def _multiply(
        self, kernel: Array, patches: Array, result: Array, block: tuple[slice, slice]
    ) -> None:
        images, rows = block
        positions = slice(rows.start * self.inner, rows.stop * self.inner)
        if self._shares:
            target = result[:, :, images, positions].reshape(self.groups, self.features, -1)
        else:
            target = result[images, :, :, positions]
        flops = 2.0 * self.features * self.depth * patches.shape[-1]
        blas_matmul(kernel, patches, flops, target)

    def _canonical(self, result: Array) -> Array:
        if self._shares:
            whole = result.reshape((self.groups, self.features, self.batch, *self.outs))
            return whole.swapaxes(1, 2)
        whole = result.reshape((self.batch, self.groups, self.features, *self.outs))
        return whole.swapaxes(0, 1)
