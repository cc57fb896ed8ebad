"""Iterates over arrays in blocks that fit the cache, whatever their strides."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BLOCK_ELEMENTS = 1 << 16
"""Elements of one piece: 256 KiB of f32, so that a few pieces stay in a second-level cache."""

NATIVE_WORK = 1 << 12
"""What `rounding_work` comes to in the time of the call of a compiled kernel, some 5 us."""
LAYING_WORK = 3 * NATIVE_WORK
"""The same of a call for which arrays are to be laid anew, some 15 us (measured on x86-64)."""
CALL_WORK = 300
"""The same of a call of numpy, some 0.4 us, beside what it does for each element."""
WHOLE_CALL_WORK = 1250
"""The same of a kernel's call that is told nothing but the arrays, some 1.5 us."""
ROUNDED_NATIVELY = 1 << 10
"""Elements from which on a compiled kernel rounds, whose call takes some 4 us."""


def rounding_work(elements: int) -> int:
    """Return how long numpy takes to round so many elements, in times of one of many: 1.2 ns.

    Few are converted one after the other, more in ten calls (measured on Zen 4).
    """
    return min(1250 + 4 * elements, 3072 + elements)


def blocks(out: Array, *inputs: Array) -> Iterator[tuple[Array, ...]]:
    """Yield matching pieces `(out, *inputs)` of at most `BLOCK_ELEMENTS` elements, as views.

    Inputs have the shape of `out` or broadcast to it. Axes are walked in the memory order of `out`.
    A piece has at least one axis: numpy turns results without axes into scalars.
    """
    shape = out.shape
    arrays = [out, *[x if x.shape == shape else np.broadcast_to(x, shape) for x in inputs]]
    if out.size <= BLOCK_ELEMENTS:
        if out.ndim == 0:
            yield tuple([x.reshape(1) for x in arrays])
        elif out.size:
            yield tuple(arrays)
        return
    if not out.flags.c_contiguous:
        order = sorted(range(out.ndim), key=lambda axis: -abs(out.strides[axis]))
        arrays = [x.transpose(order) for x in arrays]
    if all(x.flags.c_contiguous for x in arrays):
        flat = [x.reshape(-1) for x in arrays]
        for start in range(0, out.size, BLOCK_ELEMENTS):
            yield tuple([x[start : start + BLOCK_ELEMENTS] for x in flat])
        return
    yield from _strided_blocks(arrays)


def _strided_blocks(arrays: list[Array]) -> Iterator[tuple[Array, ...]]:
    shape = arrays[0].shape
    axis = 0
    while math.prod(shape[axis + 1 :]) > BLOCK_ELEMENTS:
        axis += 1
    step = max(1, BLOCK_ELEMENTS // math.prod(shape[axis + 1 :]))
    for outer in np.ndindex(shape[:axis]):
        rows = [x[outer] for x in arrays]
        for start in range(0, shape[axis], step):
            yield tuple([x[start : start + step] for x in rows])


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an uninitialised row-major array that begins where a vector register's line does.

    Vectors that straddle two cache lines cost a third of the time of short chains.
    """
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % LINE_BYTES
    return memory[start : start + size].view(dtype).reshape(shape)


LINE_BYTES = 64
"""Of a cache line, which is what the widest vector registers hold."""


class block_memories:
    """Memory of a block for each of some types; the next block that asks has it, warm in cache.

    Who takes it, has it alone: threads run blocks at the same time.
    """

    __slots__ = ("_dtypes", "_taken")

    def __init__(self, dtypes: Sequence[np.dtype[Any]]) -> None:
        self._dtypes = dtypes
        self._taken: list[Array] = []

    def __enter__(self) -> list[Array]:
        for dtype in self._dtypes:
            try:
                memory = _idle(dtype).pop()  # asked for at once: a thread may take the last one
            except IndexError:
                memory = aligned_empty((BLOCK_ELEMENTS,), dtype)
            self._taken.append(memory)
        return self._taken

    def __exit__(self, *error: object) -> None:
        for dtype, memory in zip(self._dtypes, self._taken, strict=False):
            idle = _idle(dtype)
            if len(idle) < _MOST_IDLE:
                idle.append(memory)


@lru_cache(maxsize=32)
def _idle(dtype: np.dtype[Any]) -> list[Array]:
    """Return memories of a type that no block has."""
    return []


_MOST_IDLE = 16
"""Of one type, 4 MiB of f32; *assumed*: long expressions have fewer values at a time."""


def like(x: Array, dtype: np.dtype[Any] | None = None) -> Array:
    """Return an uninitialised array of the shape of `x`, in its memory order."""
    return np.empty_like(x, dtype=dtype, subok=False)


def put(places: Sequence[Array | None], values: Sequence[Array]) -> None:
    """Copy values to the places that they are not at yet; None takes nothing.

    A value may be a view of an operand that an earlier value overwrites: types stored alike are
    converted without a copy.
    """
    waiting = [
        (place, value)
        for place, value in zip(places, values, strict=True)
        if place is not None and place is not value
    ]
    for n, (place, value) in enumerate(waiting):
        for later in range(n + 1, len(waiting)):
            target, source = waiting[later]
            if np.may_share_memory(place, source):
                waiting[later] = target, source.copy()
        np.copyto(place, value)


def repeats(x: Array) -> bool:
    """Whether an axis longer than 1 is broadcast (stride 0), so that elements are stored once."""
    return 0 in x.strides and _repeats(x.strides, x.shape)


@lru_cache(maxsize=1024)
def _repeats(strides: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return any(s == 0 and n > 1 for s, n in zip(strides, shape, strict=True))


def compact(x: Array) -> Array:
    """Return `x` with every broadcast (stride 0) axis cut to size 1; broadcasting restores it."""
    if not repeats(x):
        return x
    return x[_stored_once(x.strides)]


@lru_cache(maxsize=1024)
def _stored_once(strides: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple([slice(0, 1) if s == 0 else slice(None) for s in strides])
