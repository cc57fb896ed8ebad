"""Reduce over dimensions: monoids by numpy, any other region in `reduction_regions`.

Narrow floats accumulate in float32 and are rounded once, which is what XLA:CPU does for f16 and
bf16. Sums run in blocks, so their error grows with the logarithm of the count, not with the count.
Blocks of large arrays are multiplied by ones, which takes BLAS a third of numpy's time; but along
rows that compiled kernels may compute, numpy's order is kept, which is theirs.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.kernels.contractions.blas_threads import blas_matmul
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.extrema import (
    extremum_keys,
    from_total_order_keys,
    has_negative_zero,
)
from hloipu_runtime.kernels.core.monoids import UFUNCS, Combiner, finish, identity
from hloipu_runtime.kernels.core.movement import contiguous
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.native.settings import settings
from hloipu_runtime.kernels.reduction_regions import reduce_region

Sizes = tuple[int, ...]

SUM_BLOCK_ROWS = 64
"""Rows added one after another when the reduced axis is not the innermost."""

SHORT_AXIS = 32
"""An innermost axis this short is folded column by column: numpy's inner loop is set up per row."""

MANY_ROWS = 512
"""Rows enough for folding columns to pay."""

SHORT_ELEMENTS = 1 << 14
"""Fewer are reduced in one go."""

LONGEST_ROW = 2048
"""Elements up to which numpy goes from row to row of one run in half the time of rows of their own:
30 ns against 60, beside what it does for each element (measured on x86-64)."""

SUMMED_COLUMNS = 1024
"""Elements of a row that BLAS adds up at once, in vectors: some 64 one after another."""

BLOCK_ROWS = 4096
"""Rows of a short innermost axis folded at once: their columns stay in cache."""


def reduce(
    operands: Sequence[Array],
    inits: Sequence[Array],
    dimensions: Sequence[int],
    combiner: Combiner,
    element_types: Sequence[str],
    *,
    associative: bool | None = None,
    out: Array | None = None,
) -> list[Array]:
    """Reduce operands over `dimensions`, each init taken in once; one result per operand.

    `combiner` is a monoid's name, for each operand alone, or a region on (accumulators..,
    values..), whose order of evaluation `associative` decides (see `reduce_region`). Error bound
    of float sums and products: c * log2(n) * eps * sum of magnitudes. The result may be `out`,
    written.
    """
    if callable(combiner):
        return reduce_region(operands, inits, dimensions, combiner, associative=associative)
    return [
        take_in(
            init,
            reduce_monoid(x, combiner, dimensions, any_order=True),
            combiner,
            kind,
            None if n else out,
        )
        for n, (x, init, kind) in enumerate(zip(operands, inits, element_types, strict=True))
    ]


def take_in(
    init: Array, reduced: Array, monoid: str, element_type: str, out: Array | None = None
) -> Array:
    """Combine an init value with a reduced array and bring the result to its element type.

    Sums and products may be written to `out`.
    """
    ufunc = UFUNCS[monoid]
    if monoid in ("minimum", "maximum"):
        if reduced.dtype.kind == "f":
            if init == identity(monoid, reduced.dtype):
                return reduced
            if init != 0:  # so no two zeros can meet
                return np.asarray(ufunc(init, reduced))
            keys = ufunc(extremum_keys(init, monoid), extremum_keys(reduced, monoid))
            return from_total_order_keys(np.asarray(keys), reduced.dtype)
        return np.asarray(ufunc(init, reduced))
    with quietly():
        if out is None or out.shape != reduced.shape or out.dtype != reduced.dtype:
            out = np.empty(reduced.shape, reduced.dtype)
        combined = ufunc(init, reduced, out=out)
    return finish(combined, element_type)


def reduce_monoid(
    x: Array, monoid: str, dimensions: Sequence[int], *, any_order: bool = False
) -> Array:
    """Reduce one array by a monoid, without an init value and without rounding narrow floats.

    An empty extent gives the monoid's neutral element. Sums along rows are numpy's unless they may
    be added up in any order.
    """
    strides = None if x.flags.c_contiguous else x.strides
    return monoid_reduction(x.shape, strides, x.dtype, monoid, tuple(dimensions), any_order)(x)


@lru_cache(maxsize=4096)
def monoid_reduction(
    shape: Sizes, strides: Sizes | None, dtype: np.dtype[Any], monoid: str, dimensions: Sizes,
    any_order: bool,
) -> Callable[[Array], Array]:  # fmt: skip
    """Return what `reduce_monoid` does with arrays that lie so; strides None: row-major ones."""
    folds, order, kept_shape, back, axis = _folding(shape, strides, dimensions)
    if 0 in shape:
        return lambda x: np.full(kept_shape, identity(monoid, dtype))
    ufunc, item, has_zeros = UFUNCS[monoid], dtype.itemsize, monoid in ("minimum", "maximum")

    def run(x: Array) -> Array:
        if order is not None:
            x = x.transpose(order)
        if not x.ndim or x.strides[-1] != item:
            x = np.ascontiguousarray(x)
        with quietly():
            if axis is None or x.flags.c_contiguous:
                result = _folded(x, ufunc, folds, any_order=any_order)
            else:
                result = np.asarray(ufunc.reduce(x, axis=axis, dtype=dtype))
            if has_zeros and _zeros_doubtful(x, result, monoid):
                keys = _folded(extremum_keys(x, monoid), ufunc, folds)
                result = from_total_order_keys(keys, dtype)
        result = result.reshape(kept_shape)
        return result if back is None else result.transpose(back)

    return run


def order_of_sum(
    shape: Sizes, strides: Sizes | None, dimensions: Sizes
) -> tuple[Sizes, int | None, Sizes]:
    """Return the order in which dimensions of an array that lies so are seen to add it up.

    Then the only axis in that order that is reduced, one element after another, and what brings the
    others back; no axis where several are, or sums go side by side.
    """
    _, order, kept, back, _ = _folding(shape, strides, dimensions)
    order = order or tuple(range(len(shape)))
    along = [k for k, d in enumerate(order) if d in dimensions]
    is_plainly_added = len(along) == 1 and shape[order[along[0]]] <= 2 * SUM_BLOCK_ROWS
    inner = prod(shape[d] for d in order[along[0] + 1 :]) if is_plainly_added else 1
    return order, along[0] if inner > 1 else None, back or tuple(range(len(kept)))


def sums_by_ones(x: Array, axis: int) -> bool:
    """Whether the sum of an array along an axis, as `order_of_sum` sees it, is a product."""
    count, inner = x.shape[axis], prod(x.shape[axis + 1 :])
    return x.flags.c_contiguous and _is_worth_ones(x.dtype, x.size, count, inner)


def is_short(shape: Sizes, axis: int) -> bool:
    """Whether numpy's own reduction along an axis of a small array is the kernel's."""
    return prod(shape) <= SHORT_ELEMENTS and is_plain(shape, axis)


@lru_cache(maxsize=4096)
def is_plain(shape: Sizes, axis: int) -> bool:
    """Whether numpy's own reduction along an axis of a row-major array is the kernel's."""
    size, count = prod(shape), shape[axis]
    if not size:
        return False
    if prod(shape[axis + 1 :]) > 1:
        return count <= 2 * SUM_BLOCK_ROWS
    return size // count < MANY_ROWS or count > SHORT_AXIS


class _Folding(NamedTuple):
    """How dimensions of an array are reduced, one run of neighbours after the other."""

    folds: tuple[Sizes, ...]
    """Each: the array as (outer, the run, inner); the run is taken away. Innermost first."""
    order: Sizes | None
    """What brings the array to the order of its memory, which a monoid does not mind."""
    kept: Sizes
    """Sizes of the result, in that order."""
    back: Sizes | None
    """What brings the result's dimensions back."""
    axis: int | None = None
    """In that order, a short one that alone is reduced and not the last: numpy needs no copy."""


@lru_cache(maxsize=4096)
def _folding(shape: Sizes, strides: Sizes | None, dimensions: Sizes) -> _Folding:
    """Return how arrays of a shape are reduced; strides None: row-major ones."""
    if strides is None or 0 in shape:
        kept = tuple(n for d, n in enumerate(shape) if d not in dimensions)
        return _Folding(_folds(shape, dimensions), None, kept, None)
    order = sorted(range(len(shape)), key=lambda axis: -abs(strides[axis]))
    sizes = tuple(shape[axis] for axis in order)
    moved = tuple(order.index(d) for d in dimensions)
    folds, _, kept, *_ = _folding(sizes, None, moved)
    long = [k for k in moved if sizes[k] > 1]
    is_alone = len(long) == 1 and sizes[long[0]] <= 2 * SUM_BLOCK_ROWS and folds[0][2] > 1
    only = long[0] if is_alone else None
    if order == list(range(len(shape))):
        return _Folding(folds, None, kept, None, only)
    back = np.argsort([axis for axis in order if axis not in dimensions])
    return _Folding(folds, tuple(order), kept, tuple(int(axis) for axis in back), only)


def _folds(shape: Sizes, dimensions: Sizes) -> tuple[Sizes, ...]:
    folds = []
    after = 1
    last = len(shape) - 1
    while last >= 0:
        if last not in dimensions:
            after *= shape[last]
            last -= 1
            continue
        first = last
        while first - 1 in dimensions:
            first -= 1
        count = prod(shape[first : last + 1])
        if count > 1:
            folds.append((prod(shape[:first]), count, after))
        last = first - 1
    return tuple(folds)


def folds_in_order(shape: Sizes, dimensions: Sizes, *, rounds: bool) -> tuple[Sizes, ...] | None:
    """Return how few elements that lie row-major are reduced: as (outer, count, inner).

    None where sums, which round, are not along the middle axis in one go.
    """
    folds = _folds(shape, dimensions)
    if rounds and any(inner > 1 and count > 2 * SUM_BLOCK_ROWS for _, count, inner in folds):
        return None
    return folds


def is_by_columns(outer: int, count: int) -> bool:
    """Whether columns of rows are combined pairwise, and not one after another."""
    return count <= SHORT_AXIS and outer >= MANY_ROWS


def _folded(x: Array, ufunc: np.ufunc, folds: Sequence[Sizes], *, any_order: bool = False) -> Array:
    for fold in folds:
        rows = x.reshape(fold)
        if ufunc is np.add and (any_order or fold[2] > 1) and _sums_by_ones(rows):
            x = _summed(rows)
        else:
            x = _fold_middle(rows, ufunc)
    return x


def _sums_by_ones(x: Array) -> bool:
    """Whether ones are worth multiplying the middle axis by."""
    return _is_worth_ones(x.dtype, x.size, *x.shape[1:])


def _is_worth_ones(dtype: np.dtype[Any], size: int, count: int, inner: int) -> bool:
    if dtype not in (np.float32, np.float64) or size < SHORT_ELEMENTS:
        return False
    return bool(count * inner >= MANY_ROWS and max(count, inner) > SHORT_AXIS)


def _summed(x: Array) -> Array:
    """Add up the middle axis of (outer, count, inner), block by block as BLAS does."""
    outer, count, inner = x.shape
    most = SUMMED_COLUMNS if inner == 1 else SUM_BLOCK_ROWS
    size = count if count <= 2 * most else most
    whole = count - count % size
    blocks = x[:, :whole].reshape(outer, whole // size, size, inner)
    if inner == 1:
        summed = _product(blocks.reshape(-1, size), _ones(size, x.dtype))
    else:
        summed = _product(_ones(size, x.dtype).T, blocks)
    partial = summed.reshape(outer, whole // size, inner)
    if whole < count:
        rest = np.add.reduce(x[:, whole:], axis=1, keepdims=True)
        partial = np.concatenate([partial, rest], axis=1)
    if partial.shape[1] == 1:
        return partial[:, 0]
    return _summed(partial) if _sums_by_ones(partial) else _fold_middle(partial, np.add)


def _product(a: Array, b: Array) -> Array:
    return blas_matmul(a, b, 2.0 * max(a.size, b.size), None)


@lru_cache(maxsize=256)
def _ones(count: int, dtype: np.dtype[np.generic]) -> Array:
    return np.ones((count, 1), dtype)


def _zeros_doubtful(x: Array, result: Array, monoid: str) -> bool:
    """Whether a zero of the wrong sign may have won: -0.0 in a maximum, +0.0 in a minimum."""
    if x.dtype.kind != "f":
        return False
    if monoid == "maximum":
        return has_negative_zero([result])
    return bool((result == 0).any()) and has_negative_zero([x])


def _fold_middle(x: Array, ufunc: np.ufunc) -> Array:
    """Reduce the middle axis of (outer, count, inner), all in the dtype of `x`."""
    outer, count, inner = x.shape
    dtype = x.dtype
    rounds = dtype.kind in "fc" and ufunc in (np.add, np.multiply)
    if inner > 1:
        if inner <= SHORT_AXIS and count > 2 * SUM_BLOCK_ROWS:
            return _fold_middle(_halved(x, ufunc), ufunc)
        if rounds and count > 2 * SUM_BLOCK_ROWS:
            whole = count - count % SUM_BLOCK_ROWS
            blocked = x[:, :whole].reshape(outer, -1, SUM_BLOCK_ROWS, inner)
            partial = ufunc.reduce(blocked, axis=2, dtype=dtype)
            if whole != count:
                rest = ufunc.reduce(x[:, whole:], axis=1, dtype=dtype, keepdims=True)
                partial = np.concatenate([partial, rest], axis=1)
            return _fold_middle(partial, ufunc)
        if ufunc is np.add and settings().compiles:
            from hloipu_runtime.kernels.native.short_rows import sum_natively

            summed = sum_natively(x)
            if summed is not None:
                return summed
        return np.asarray(ufunc.reduce(x, axis=1, dtype=dtype))
    rows = x.reshape(outer, count)
    if is_by_columns(outer, count):
        return _fold_columns(rows, ufunc)
    if ufunc is np.multiply and rows.size > MANY_ROWS and count > SHORT_AXIS:
        # numpy's product is one chain of dependent multiplications; halves fold side by side.
        half = count // 2
        folded = np.multiply(rows[:, :half], rows[:, half : 2 * half])
        if count % 2:
            np.multiply(folded[:, :1], rows[:, -1:], out=folded[:, :1])
        return _fold_middle(folded.reshape(outer, half, 1), ufunc)
    return rows_reduced(rows, ufunc)


def rows_reduced(x: Array, ufunc: np.ufunc) -> Array:
    """Reduce the last axis, in its dtype; what rounds is numpy's own reduction, in its order."""
    *kept, count = x.shape
    outer = prod(kept)
    exact = x.dtype.kind in "iub" or ufunc in (np.maximum, np.minimum)
    if exact and outer > 1 and 0 < count <= LONGEST_ROW and x.flags.c_contiguous:
        reduced = ufunc.reduceat(x.reshape(-1), _starts(outer, count), dtype=x.dtype)
        return np.asarray(reduced).reshape(kept)
    return np.asarray(ufunc.reduce(x, axis=-1, dtype=x.dtype))


@lru_cache(maxsize=64)
def _starts(outer: int, count: int) -> Array:
    return np.arange(0, outer * count, count)


def _halved(x: Array, ufunc: np.ufunc) -> Array:
    """Fold the middle axis of (outer, count, inner) onto itself until it is short.

    Each half is one long run of memory, whereas numpy's inner loop would have `inner` elements.
    """
    while (count := x.shape[1]) > SUM_BLOCK_ROWS:
        half = count // 2
        folded = ufunc(x[:, :half], x[:, half : 2 * half])
        if count % 2:
            ufunc(folded[:, :1], x[:, -1:], out=folded[:, :1])
        x = folded
    return x


def _fold_columns(rows: Array, ufunc: np.ufunc) -> Array:
    """Reduce a short innermost axis by combining its columns pairwise."""
    outer, count = rows.shape
    if settings().compiles:
        from hloipu_runtime.kernels.native.short_rows import combine_columns

        made = combine_columns(rows, str(ufunc.__name__))
        if made is not None:
            return made
    out = np.empty(outer, rows.dtype)
    for start in range(0, outer, BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS]
        columns = [block[:, k] for k in range(count)]
        while len(columns) > 2:
            paired = [ufunc(a, b) for a, b in zip(columns[::2], columns[1::2], strict=False)]
            columns = paired + columns[2 * len(paired) :]
        target = out[start : start + BLOCK_ROWS]
        if len(columns) == 2:
            ufunc(columns[0], columns[1], out=target)
        else:
            target[...] = columns[0]
    return out


def arg_extremum(x: Array, dimension: int, *, largest: bool, place_dtype: str) -> list[Array]:
    """Return the extreme values along one dimension and the first places where they stand.

    The first NaN wins over every number. This is the variadic reduction of (x, iota) by a region
    that keeps the better value, or the lower place of equal ones, from (-inf or inf, 0) on.
    """
    rows = contiguous(np.moveaxis(x, dimension, -1))
    places = np.asarray((np.argmax if largest else np.argmin)(rows, axis=-1))
    values = np.take_along_axis(rows, places[..., np.newaxis], axis=-1)[..., 0]
    return [np.asarray(values), places.astype(place_dtype)]
