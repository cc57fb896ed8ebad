"""Sort: by recognised keys through integer keys, by any other comparator through a network.

A comparator that compares one operand's elements is given as a `SortKey`. Its values become
unsigned integers that ascend in the wanted order, so that one integer sort serves every dtype,
direction and treatment of zeros and NaNs. All sorts are stable, asked for or not.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.extrema import from_total_order_keys, total_order_keys
from hloipu_runtime.kernels.core.movement import contiguous
from hloipu_runtime.kernels.sort_networks import argsort_by_comparator

Order = Literal["total", "equal_zeros", "ieee"]

Comparator = Callable[..., Array]
"""`comparator(a_1, b_1, .., a_n, b_n)` on whole arrays: whether a goes before b, as bools."""


@dataclass(frozen=True, slots=True)
class SortKey:
    """One operand that a comparator orders by, and how.

    `order` matters to floats. `total`: IEEE total order (-nan < -inf < .. -0 < +0 .. < nan).
    `equal_zeros`: both zeros are equal, all NaNs are equal and greatest (what jax prints).
    `ieee`: a plain LT or GT, under which NaNs have no place: they go where `equal_zeros` puts them.
    """

    operand: int
    descending: bool = False
    order: Order = "total"


def sort(
    operands: Sequence[Array], dimension: int, keys: Sequence[SortKey] | Comparator
) -> list[Array]:
    """Sort operands together along one dimension, by keys (first key first) or a comparator."""
    if operands[0].size == 0 or operands[0].shape[dimension] < 2:
        return list(operands)
    rows = [contiguous(np.moveaxis(x, dimension, -1)) for x in operands]
    if callable(keys):
        order = argsort_by_comparator(rows, keys)
    else:
        alone = len(keys) == 1 and len(rows) == 1
        if alone:
            return [_back(_sorted_values(rows[0], keys[0]), dimension)]
        ranks = [ascending_keys(rows[k.operand], k) for k in keys]
        order = argsort_by_keys(ranks)
    return [_back(np.take_along_axis(x, order, axis=-1), dimension) for x in rows]


def _back(rows: Array, dimension: int) -> Array:
    """Move the sorted last axis back to where it was."""
    return np.moveaxis(rows, -1, dimension)


def _sorted_values(x: Array, key: SortKey) -> Array:
    """Sort values without their places: those that are equal cannot be told apart, or hardly.

    Zeros that are equal, or NaNs, stand together in each row, and so do those of all rows in turn:
    they are written again in the order in which they came.
    """
    ranks = x if key.order == "total" or x.dtype.kind != "f" else _equal(x)
    if x.dtype.kind == "f":
        keys = np.sort(total_order_keys(ranks), axis=-1)
        ascending = from_total_order_keys(keys, x.dtype)
    elif x.dtype.kind == "b":
        ascending = np.sort(x.view(np.uint8), axis=-1).view(np.bool_)
    else:
        ascending = np.sort(x, axis=-1)
    in_order: Array = ascending[..., ::-1] if key.descending else ascending
    if ranks is not x:
        for are_equal in (np.isnan, np.logical_not):
            before = are_equal(ranks)
            if before.any():
                in_order[are_equal(in_order)] = x[before]
    return in_order


def _equal(x: Array) -> Array:
    """Return values with one kind of zero, and of NaN, that goes last."""
    equal: Array = x + x.dtype.type(0)  # -0.0 becomes +0.0
    np.copyto(equal, np.nan, where=np.isnan(x))
    return equal


def ascending_keys(x: Array, key: SortKey) -> Array:
    """Map values to unsigned integers of their width that ascend in the order of `key`."""
    if x.dtype.kind == "f":
        signed = total_order_keys(x if key.order == "total" else _equal(x))
    elif x.dtype.kind == "b":
        signed = x.view(np.int8)
    else:
        signed = x
    unsigned = signed.view(f"u{signed.itemsize}")
    if signed.dtype.kind == "i":
        unsigned = unsigned ^ unsigned.dtype.type(1 << (8 * signed.itemsize - 1))
    return ~unsigned if key.descending else unsigned


def values_of_keys(ranks: Array, key: SortKey, like: Array) -> Array:
    """Invert `ascending_keys`."""
    if key.descending:
        ranks = ~ranks
    if like.dtype.kind == "u":
        return ranks
    signed = (ranks ^ ranks.dtype.type(1 << (8 * ranks.itemsize - 1))).view(f"i{ranks.itemsize}")
    if like.dtype.kind == "f":
        return from_total_order_keys(signed, like.dtype)
    return np.asarray(signed.view(like.dtype))


def put_keys(x: Array, key: SortKey, out: Array) -> None:
    """Write 32-bit integers that ascend in the order of `key`, of values of no more bits."""
    if x.dtype.kind == "f":
        total_order_keys(x if key.order == "total" else _equal(x), out)
    elif x.dtype == np.uint32:
        np.bitwise_xor(x, np.uint32(1 << 31), out=out.view(np.uint32))
    else:
        out[...] = x
    if key.descending:
        np.invert(out, out=out)


def put_values(keys: Array, key: SortKey, out: Array) -> None:
    """Invert `put_keys`."""
    if key.descending:
        keys = ~keys
    if out.dtype.kind == "f":
        from_total_order_keys(np.ascontiguousarray(keys), out.dtype, out)
    elif out.dtype == np.uint32:
        np.bitwise_xor(keys.view(np.uint32), np.uint32(1 << 31), out=out)
    else:
        out[...] = keys


def packed_with(high: Array, low: Array) -> Array:
    """Return 64-bit integers of two halves, the shape being that of the low ones."""
    halves = np.empty((*low.shape, 2), "<u4")
    halves[..., 0] = low
    halves[..., 1] = high
    return halves.view("<u8")[..., 0]


def argsort_by_keys(keys: Sequence[Array]) -> Array:
    """Return, along the last axis, the stable order by the first key, ties by the next, and so on.

    Keys are unsigned integers of one shape.
    """
    order: Array | None = None
    for key in reversed(keys):
        ranked = key if order is None else np.take_along_axis(key, order, axis=-1)
        step = stable_argsort(ranked)
        order = step if order is None else np.take_along_axis(order, step, axis=-1)
    if order is None:
        raise ValueError("a sort needs at least one key")
    return order


SORTED_BY_DIGITS = 256
"""Keys of up to 16 bits in a row from which on numpy's radix sort takes less than a packed sort."""


def stable_argsort(keys: Array) -> Array:
    """Argsort unsigned keys; those of 32 bits carry their places through one integer sort."""
    count = keys.shape[-1]
    is_short = keys.itemsize <= 2
    if keys.itemsize == 8 or count > 1 << 32 or (is_short and count >= SORTED_BY_DIGITS):
        return np.argsort(keys, axis=-1, kind="stable")
    if is_short:
        places = np.arange(count, dtype=np.uint32)
        packed = keys.astype(np.uint32) << np.uint32(16) | places
        packed.sort(axis=-1)
        return (packed & np.uint32(0xFFFF)).astype(np.int64)
    packed = keys.astype(np.uint64) << np.uint64(32) | np.arange(count, dtype=np.uint64)
    packed.sort(axis=-1)
    return (packed & np.uint64(0xFFFFFFFF)).view(np.int64)
