"""Data movement: every op that places elements without computing any.

Where a view serves, the result is a view of the operand (of a broadcast, a read-only one with zero
strides); `contiguous` turns any view into row-major memory in strips that stay in cache.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from types import EllipsisType

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.blocks import LINE_BYTES, Array
from hloipu_runtime.kernels.core.monoids import wrap_integer
from hloipu_runtime.kernels.core.rounding import round_to
from hloipu_runtime.kernels.native.settings import settings

STRIP_THRESHOLD_ELEMENTS = 1 << 14
"""Below this, one plain copy is as fast as strips."""

NATIVE_THRESHOLD_ELEMENTS = 1 << 12
"""From here on the call of a kernel, some 4 us, pays."""

SMALLEST_STRIP_ELEMENTS = 1 << 10
"""Below this, a strip's call takes longer than its elements."""

Index = tuple[slice | EllipsisType, ...]


def index_of(slices: Iterable[slice]) -> Index:
    """Return slices as an index that keeps even a scalar an array."""
    return (*slices, ...)


def contiguous(x: Array) -> Array:
    """Return `x` in row-major memory, copied in cache-sized strips if it is a transposed view."""
    if x.flags.c_contiguous:
        return x
    if x.size < STRIP_THRESHOLD_ELEMENTS:
        return np.ascontiguousarray(x)
    out = np.empty(x.shape, x.dtype)
    copy_into(out, x)
    return out


def copy_into(target: Array, source: Array) -> None:
    """Copy, a transposed view in strips: each writes one cache line of every row of the target."""
    is_alike = source.shape == target.shape
    if is_alike and source.size >= NATIVE_THRESHOLD_ELEMENTS and settings().compiles:
        from hloipu_runtime.kernels.native.copying import copy_natively

        if copy_natively(target, source):
            return
    if source.size < STRIP_THRESHOLD_ELEMENTS or not is_alike:
        target[...] = source
        return
    for strip in _strips(source.shape, target.strides, source.strides, source.itemsize):
        target[strip] = source[strip]


@lru_cache(maxsize=4096)
def _strips(
    sizes: tuple[int, ...], target: tuple[int, ...], source: tuple[int, ...], item_bytes: int
) -> list[tuple[slice, ...]]:
    """Return the pieces that a copy between arrays of such strides is cut into.

    numpy goes through the target in its order. Before it comes to the axis along which the source's
    neighbours lie it is to read no more lines of the source than it writes elements of a line.
    """
    strips = [[slice(None)] for _ in sizes]
    order = sorted((axis for axis, n in enumerate(sizes) if n > 1), key=lambda d: abs(target[d]))
    beside = [k for k, axis in enumerate(order) if abs(source[axis]) == item_bytes]
    room, elements = max(1, LINE_BYTES // item_bytes), prod(sizes)
    for axis in order[: min(beside, default=0)]:
        step = min(room, sizes[axis])
        room = max(1, room // sizes[axis])
        count = -(-sizes[axis] // step)
        if elements < count * SMALLEST_STRIP_ELEMENTS:
            break
        elements //= count
        strips[axis] = [slice(n, n + step) for n in range(0, sizes[axis], step)]
    return list(product(*strips))


def iota(shape: Sequence[int], dimension: int, element_type: str) -> Array:
    """Count along one dimension: a read-only view of `shape`, values of `element_type`.

    Counts past the range of a narrow integer wrap; floats take the nearest value of their grid.
    """
    storage = np.dtype(ELEMENT_TYPES[element_type].storage)
    counts = np.arange(shape[dimension], dtype=np.int64)
    values = counts.astype(storage)
    if storage == np.float32:
        values = round_to(values, element_type) if element_type != "f32" else values
    else:
        values = wrap_integer(values, element_type)
    return broadcast(values, shape, (dimension,))


def broadcast(x: Array, shape: Sequence[int], dimensions: Sequence[int]) -> Array:
    """Map operand dimension i to result dimension `dimensions[i]`; the result is a read-only view.

    `dimensions` need not be sorted.
    """
    order = sorted(range(len(dimensions)), key=dimensions.__getitem__)
    ordered = x.transpose(order) if order != list(range(len(dimensions))) else x
    aligned = [1] * len(shape)
    for axis in order:
        aligned[dimensions[axis]] = x.shape[axis]
    return np.broadcast_to(ordered.reshape(aligned), tuple(shape))


def reshape(x: Array, shape: Sequence[int]) -> Array:
    """Lay the same elements, in row-major order, out in another shape: a view where one exists."""
    target = tuple(shape)
    if x.flags.c_contiguous or x.size < STRIP_THRESHOLD_ELEMENTS:
        return x.reshape(target)
    try:
        return x.reshape(target, copy=False)
    except ValueError:  # numpy's word for "these strides have no such view"
        return contiguous(x).reshape(target)


def transpose(x: Array, permutation: Sequence[int]) -> Array:
    """Permute dimensions: result dimension i is operand dimension `permutation[i]`; a view."""
    return x.transpose(tuple(permutation))


def reverse(x: Array, dimensions: Sequence[int]) -> Array:
    """Flip the given dimensions; a view."""
    flipped = set(dimensions)
    return x[index_of(slice(None, None, -1 if d in flipped else 1) for d in range(x.ndim))]


def slice_(x: Array, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> Array:
    """Take `start, start + stride, ..` below `limit` of each dimension; a view."""
    return x[index_of(map(slice, starts, limits, strides))]


def concatenate(operands: Sequence[Array], dimension: int, out: Array | None = None) -> Array:
    """Join operands along one dimension."""
    if len(operands) == 1 and out is None:
        return operands[0]
    return np.concatenate(operands, axis=dimension, out=out)


Cuts = tuple[slice, ...]


def padded_boxes(
    sizes: Sequence[int], padding: Sequence[tuple[int, int, int]]
) -> tuple[tuple[int, ...], Cuts, Cuts]:
    """Return the padded shape, what is kept of the operand, and where that goes."""
    shape, source, target = [], [], []
    for size, (low, high, interior) in zip(sizes, padding, strict=True):
        length = low + high + size + max(size - 1, 0) * interior
        step = interior + 1
        first = max(0, -(low // step))  # the first element whose place, low + i * step, is >= 0
        last = min(size, (length - 1 - low) // step + 1)  # one past the last whose place fits
        last = max(first, last)
        begin = low + first * step
        shape.append(length)
        source.append(slice(first, last))
        target.append(
            slice(begin, begin + (last - first - 1) * step + 1 if last > first else begin, step)
        )
    return tuple(shape), tuple(source), tuple(target)


def pad(
    x: Array, value: Array, padding: Sequence[tuple[int, int, int]], out: Array | None = None
) -> Array:
    """Pad each dimension by (low, high, interior): negative edges crop after interior padding.

    Into `out`, if that is given, which may not share memory with the operand.
    """
    shape, source, target = _padded_indices(x.shape, tuple(padding))
    kept = x[source]
    if out is not None and kept.size and kept.shape != shape:
        out.fill(value)
        out[target] = kept
        return out
    if not kept.size:
        return np.full(shape, value, x.dtype)
    if kept.shape == shape:
        return kept
    # Large arrays come from the system as zero pages: asking for zeros saves a pass over them.
    # The bits decide: subnormals count as zero where the processor flushes them, and -0 does not.
    is_zero = not any(value.tobytes())
    out = np.zeros(shape, x.dtype) if is_zero else np.full(shape, value, x.dtype)
    out[target] = kept
    return out


@lru_cache(maxsize=4096)
def _padded_indices(
    sizes: tuple[int, ...], padding: tuple[tuple[int, int, int], ...]
) -> tuple[tuple[int, ...], Index, Index]:
    shape, source, target = padded_boxes(sizes, padding)
    return shape, index_of(source), index_of(target)


def clamped_starts(
    shape: Sequence[int], sizes: Sequence[int], starts: Sequence[Array | int]
) -> tuple[int, ...]:
    """Clamp slice starts into [0, dimension - size], as XLA does, in any integer type."""
    return tuple(
        min(max(int(start), 0), dimension - size)
        for dimension, size, start in zip(shape, sizes, starts, strict=True)
    )


def dynamic_slice(x: Array, starts: Sequence[Array | int], sizes: Sequence[int]) -> Array:
    """Take the block of `sizes` at the clamped `starts`, one scalar per dimension; a view."""
    at = clamped_starts(x.shape, sizes, starts)
    return x[index_of(slice(s, s + n) for s, n in zip(at, sizes, strict=True))]


def dynamic_update_slice(
    x: Array, update: Array, starts: Sequence[Array | int], out: Array | None = None
) -> Array:
    """Write `update` into `x` at the clamped `starts`.

    With `out=x` the operand itself is changed and returned: for a caller who knows that nothing
    reads it any more. Any other `out` receives a full copy first.
    """
    at = clamped_starts(x.shape, update.shape, starts)
    if out is None:
        if update.shape == x.shape:
            return update
        fresh = contiguous(x)
        out = x.copy() if fresh is x else fresh
    elif out is not x:
        np.copyto(out, x)
    out[index_of(slice(s, s + n) for s, n in zip(at, update.shape, strict=True))] = update
    return out
