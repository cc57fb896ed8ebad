"""Order-preserving integer keys of floats: total order, and exact minimum and maximum of zeros.

numpy's `maximum` may return either zero of -0.0 and +0.0; XLA's returns the one that IEEE 754-2019
orders higher. Where both zeros may meet, extrema are taken on the keys instead.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array

_BLOCK_ELEMENTS = 1 << 16


def total_order_keys(x: Array, out: Array | None = None) -> Array:
    """Return signed integers ordered as IEEE total order: -nan < -inf < .. -0 < +0 .. inf < nan."""
    bits = x.view(f"i{x.itemsize}")
    magnitude = _highest(bits)
    # Negative floats order backwards in their bits: flip all but the sign.
    keys = np.empty(bits.shape, bits.dtype)
    np.right_shift(bits, bits.itemsize * 8 - 1, out=keys)
    np.bitwise_and(keys, magnitude, out=keys)
    return np.asarray(np.bitwise_xor(keys, bits, out=keys if out is None else out))


def _highest(x: Array) -> int:
    """Return the largest of the signed integers of a type: numpy's own way takes a call's time."""
    return (1 << 8 * x.itemsize - 1) - 1


def from_total_order_keys(keys: Array, dtype: np.dtype[Any], out: Array | None = None) -> Array:
    """Invert `total_order_keys`."""
    bits = np.empty(keys.shape, keys.dtype)
    np.right_shift(keys, keys.itemsize * 8 - 1, out=bits)
    np.bitwise_and(bits, _highest(keys), out=bits)
    made = np.bitwise_xor(bits, keys, out=bits if out is None else out.view(keys.dtype))
    return np.asarray(made).view(dtype)


def extremum_keys(x: Array, monoid: str) -> Array:
    """Return keys whose integer minimum or maximum is the float one: a NaN of any sign wins.

    All become one NaN, whose payload is as short as that of narrow floats is.
    """
    keys = total_order_keys(x)
    winner = total_order_keys(np.array(np.nan, x.dtype))
    np.copyto(keys, winner if monoid == "maximum" else ~winner, where=np.isnan(x))
    return keys


def bits_decide(arrays: Sequence[Array]) -> bool:
    """Whether any float array holds -0.0 or subnormals, which numpy's extrema may take for equal.

    One pass in cache-sized blocks.
    """
    for x in arrays:
        smallest = 1 << (23 if x.itemsize == 4 else 52)  # of normal numbers
        bits = np.ascontiguousarray(x).reshape(-1).view(f"u{x.itemsize}")
        one = bits.dtype.type(1)
        for start in range(0, bits.size, _BLOCK_ELEMENTS):
            block = bits[start : start + _BLOCK_ELEMENTS]
            signed = block.view(f"i{x.itemsize}")
            if np.minimum.reduce(signed) < ~_highest(signed) + smallest:
                return True
            if np.minimum.reduce(block) < smallest and (block - one < smallest - 1).any():
                return True
    return False


def has_smallest(x: Array) -> bool:
    """Whether a row-major float array holds zeros or subnormals; in cache-sized blocks."""
    smallest = 2 << (23 if x.itemsize == 4 else 52)  # of normal numbers, without a sign
    bits = x.reshape(-1).view(f"u{x.itemsize}")
    one = bits.dtype.type(1)
    return any(
        np.minimum.reduce(bits[start : start + _BLOCK_ELEMENTS] << one) < smallest
        for start in range(0, bits.size, _BLOCK_ELEMENTS)
    )


def has_negative_zero(arrays: Sequence[Array]) -> bool:
    """Whether any float array holds -0.0; one pass in cache-sized blocks."""
    for x in arrays:
        if x.dtype.kind != "f":
            return False
        if not x.flags.c_contiguous:
            # A broadcast view repeats few values: look at each once.
            x = np.ascontiguousarray(x[(*(slice(None) if s else slice(1) for s in x.strides), ...)])
        bits = x.reshape(-1).view(f"i{x.itemsize}")
        lowest = ~_highest(bits)
        for start in range(0, bits.size, _BLOCK_ELEMENTS):
            if np.minimum.reduce(bits[start : start + _BLOCK_ELEMENTS]) == lowest:
                return True
    return False
