"""Short names for small arrays of a given dtype."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]


def f32(values: ArrayLike) -> Array:
    """Return `values` as float32."""
    return np.array(values, np.float32)


def s8(values: ArrayLike) -> Array:
    """Return `values` as int8."""
    return np.array(values, np.int8)


def u8(values: ArrayLike) -> Array:
    """Return `values` as uint8."""
    return np.array(values, np.uint8)


def s32(values: ArrayLike) -> Array:
    """Return `values` as int32."""
    return np.array(values, np.int32)


def u32(values: ArrayLike) -> Array:
    """Return `values` as uint32."""
    return np.array(values, np.uint32)
