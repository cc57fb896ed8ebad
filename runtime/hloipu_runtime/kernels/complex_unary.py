"""Elementwise operations on one array of complex numbers.

Real and imaginary parts are computed apart where the formula allows: numpy has vector code for the
real functions only.
"""

from collections.abc import Callable

import numpy as np

from hloipu_runtime.kernels.blocks import Array


def _join(real: Array, imag: Array, dtype: np.dtype[np.generic]) -> Array:
    joined = np.empty(np.broadcast(real, imag).shape, dtype)
    joined.real = real
    joined.imag = imag
    return joined


def _quiet(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def quiet(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return function(x)

    return quiet


def _logistic(x: Array) -> Array:
    return np.reciprocal(1 + np.exp(-x))


def _sign(x: Array) -> Array:
    size = np.absolute(x)
    signs = _join(x.real / size, x.imag / size, x.dtype)
    return np.where(size == 0, x, signs)


def _rsqrt(x: Array) -> Array:
    return np.reciprocal(np.sqrt(x))


COMPLEX_UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": _quiet(np.absolute),
    "acos": _quiet(np.arccos),
    "acosh": _quiet(np.arccosh),
    "asin": _quiet(np.arcsin),
    "asinh": _quiet(np.arcsinh),
    "atanh": _quiet(np.arctanh),
    "cosine": _quiet(np.cos),
    "cosh": _quiet(np.cosh),
    "exponential": _quiet(np.exp),
    "exponential-minus-one": _quiet(np.expm1),
    "imag": lambda x: x.imag,
    "log": _quiet(np.log),
    "log-plus-one": _quiet(np.log1p),
    "logistic": _quiet(_logistic),
    "negate": np.negative,
    "real": lambda x: x.real,
    "rsqrt": _quiet(_rsqrt),
    "sign": _quiet(_sign),
    "sine": _quiet(np.sin),
    "sinh": _quiet(np.sinh),
    "sqrt": _quiet(np.sqrt),
    "tan": _quiet(np.tan),
    "tanh": _quiet(np.tanh),
}
