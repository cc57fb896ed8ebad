"""The monoids that reductions, windows, scatters and collectives know by name, and the region type.

A region is a callable on whole arrays: it takes the accumulators, then the values, one array per
operand each and all of one shape (or broadcasting to one), and returns the new accumulators.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.rounding import is_narrow, round_to
from hloipu_runtime.kernels.core.storage import wrap

Monoid = Literal["add", "multiply", "minimum", "maximum", "and", "or", "xor"]

Region = Callable[..., Sequence[Array]]
"""`region(acc_1, .., acc_n, value_1, .., value_n) -> (acc_1, .., acc_n)`."""

Combiner = Monoid | Region

UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "multiply": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def identity(monoid: str, dtype: np.dtype[Any]) -> Any:
    """Return the neutral element of a monoid as a scalar of the storage dtype.

    For floats `add` starts at -0.0, the only sum that keeps the sign of a lone -0.0.
    """
    if monoid == "add":
        return dtype.type(-0.0 if dtype.kind in "fc" else 0)
    if monoid == "multiply":
        return dtype.type(1)
    if monoid in ("or", "xor"):
        return dtype.type(0)
    if monoid == "and":
        return dtype.type(True) if dtype.kind == "b" else ~dtype.type(0)
    lowest = monoid == "maximum"
    if dtype.kind == "f":
        return dtype.type(-np.inf if lowest else np.inf)
    if dtype.kind == "b":
        return dtype.type(not lowest)
    limits = np.iinfo(dtype)
    return dtype.type(limits.min if lowest else limits.max)


def wrap_integer(values: Array, element_type: str) -> Array:
    """Wrap storage values to the width of a narrow integer; other types pass through."""
    element = ELEMENT_TYPES[element_type]
    return wrap(values, element_type) if element.is_integer and element.bits < 8 else values


def finish(values: Array, element_type: str) -> Array:
    """Bring accumulated values back to the grid or the width of their element type."""
    if is_narrow(element_type):
        return round_to(values, element_type)
    return wrap_integer(values, element_type)
