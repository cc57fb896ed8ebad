"""Elementwise operations on two arrays of complex numbers; each writes to `out`."""

from collections.abc import Callable

import numpy as np

from hloipu_runtime.kernels.blocks import Array

COMPLEX_BINARY: dict[str, Callable[[Array, Array, Array], object]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
}
