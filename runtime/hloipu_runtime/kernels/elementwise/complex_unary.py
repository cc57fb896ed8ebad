"""Elementwise operations on one array of complex numbers.

Most are put together from functions of the real and imaginary parts: that is what XLA does, so that
infinities and NaNs come out alike, and numpy has vector code for real functions only. Where sums of
squares occur, c64 is computed in f64, which neither overflows nor cancels.
"""

from collections.abc import Callable

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array, blocks, like
from hloipu_runtime.kernels.elementwise.complex_binary import divide, join


def absolute(x: Array) -> Array:
    """Return magnitudes; unlike C's hypot, NaN with an infinite part is NaN, as in XLA."""
    a, b = np.absolute(x.real), np.absolute(x.imag)
    size = np.maximum(a, b)
    ratio: Array = np.divide(np.minimum(a, b), size)
    undefined = np.isnan(ratio)
    if undefined.any():
        # 0/0 and inf/inf; what else is NaN stays NaN through `size`.
        ratio[undefined] = 1
    np.multiply(ratio, ratio, out=ratio)
    np.add(ratio, ratio.dtype.type(1), out=ratio)
    np.sqrt(ratio, out=ratio)
    np.multiply(ratio, size, out=ratio)
    return ratio


def _squared_size(x: Array) -> Array:
    """Return |x|^2 of c64 values in f64."""
    real, imag = x.real.astype(np.float64), x.imag.astype(np.float64)
    return np.asarray(real * real + imag * imag)


def log(x: Array) -> Array:
    """Return natural logarithms, with the imaginary part in [-pi, pi]."""
    if x.dtype == np.complex64:
        real = 0.5 * np.log(_squared_size(x))
    else:
        real = np.where(np.isnan(x.imag) | np.isnan(x.real), np.nan, np.log(x).real)
    return join(real, np.arctan2(x.imag, x.real), x.dtype)


def _log_plus_one(x: Array) -> Array:
    a, b = x.real.astype(np.float64), x.imag.astype(np.float64)
    # |1 + x|^2 - 1: keeps what 1 + x would round away, unless 1 + x is itself small or huge.
    excess = a * (2 + a) + b * b
    near_one = (excess > -0.5) & (excess < 1e10)
    real = np.where(
        near_one, 0.5 * np.log1p(excess), np.log(absolute(join(1 + a, b, np.complex128)))
    )
    return join(real, np.arctan2(b, 1 + a), x.dtype)


def _rotate(size: Array, real: Array, x: Array) -> Array:
    """Join `real` with size * sin(imag); real arguments stay real even when size is not finite."""
    imag = size * np.sin(x.imag)
    imag = np.where((x.imag == 0) & ~np.isfinite(size), 0, imag)
    return join(real, imag, x.dtype)


def exponential(x: Array) -> Array:
    """Return e^x."""
    size = np.exp(x.real)
    values = _rotate(size, size * np.cos(x.imag), x)
    # e^a may overflow where neither part of the result does.
    large = np.isinf(size) & np.isfinite(x.real) & (x.imag != 0)
    if large.any():
        half = np.exp(0.5 * x.real[large])
        parts = half * np.cos(x.imag[large]), half * np.sin(x.imag[large])
        values[large] = join(half * parts[0], half * parts[1], x.dtype)
    return values


def _exponential_minus_one(x: Array) -> Array:
    half = np.sin(0.5 * x.imag)
    real = np.expm1(x.real) * np.cos(x.imag) - 2 * half * half
    return _rotate(np.exp(x.real), real, x)


def _sine(x: Array) -> Array:
    a, b = x.real, x.imag
    return join(np.sin(a) * np.cosh(b), np.cos(a) * np.sinh(b), x.dtype)


def _cosine(x: Array) -> Array:
    a, b = x.real, x.imag
    return join(np.cos(a) * np.cosh(b), -(np.sin(a) * np.sinh(b)), x.dtype)


def _principal_root(x: Array) -> Array:
    """Return square roots with C's signs; finite c64 values by half-angle formulas, in f64."""
    if x.dtype != np.complex64:
        return np.sqrt(x)
    real, imag = x.real.astype(np.float64), x.imag.astype(np.float64)
    larger = np.sqrt(0.5 * (np.sqrt(real * real + imag * imag) + np.absolute(real)))
    smaller = np.absolute(imag) / (2 * larger)
    right = real >= 0
    roots = join(np.where(right, larger, smaller), np.where(right, smaller, larger), x.dtype)
    roots.imag = np.copysign(roots.imag, x.imag)
    special = ~np.isfinite(roots) | (x == 0)
    if special.any():
        roots[special] = np.sqrt(x[special])
    return roots


def sqrt(x: Array) -> Array:
    """Return square roots; on the branch cut that of x + 0i, whatever the sign of the zero."""
    roots = _principal_root(x)
    on_axis = (x.imag == 0) & ((x.real < 0) | np.isposinf(x.real))
    if on_axis.any():
        roots.imag = np.where(on_axis, np.absolute(roots.imag), roots.imag)
    return np.where(np.isnan(x), x.dtype.type(complex(np.nan, np.nan)), roots)


def _rsqrt(x: Array) -> Array:
    root, size = _principal_root(x), absolute(x)
    real, imag = root.real / size, -root.imag / size
    infinite = np.isinf(x.real) | np.isinf(x.imag)
    real = np.where(infinite, 0, np.where(size == 0, np.inf, real))
    return join(real, np.where(infinite, -np.copysign(0, x.imag), imag), x.dtype)


def _logistic(x: Array) -> Array:
    one = np.ones_like(x)
    return divide(one, one + exponential(-x))


def _sign(x: Array) -> Array:
    size = np.absolute(x)
    return np.where(size == 0, x, join(x.real / size, x.imag / size, x.dtype))


def _tanh(x: Array) -> Array:
    t, denominator, turned = _tanh_parts(x.real, x.imag)
    values = join(t / denominator, turned, x.dtype)
    special = ~np.isfinite(x)
    if special.any():
        values[special] = _tanh_special(x[special])
    return values


def _tanh_parts(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Return tanh a, the denominator and the imaginary part of tanh(a + bi).

    tanh(a + bi) = (tanh a + i sin b cos b / cosh^2 a) / (cos^2 b + tanh^2 a sin^2 b).
    """
    t, s, c, decay = np.tanh(a), np.sin(b), np.cos(b), 1 / np.cosh(a)
    denominator = c * c + (t * t) * (s * s)
    return t, denominator, s * c * decay * decay / denominator


def _tanh_special(x: Array) -> Array:
    undefined = ~np.isfinite(x.imag) & (x.real == 0)
    values = np.where(undefined, x.dtype.type(complex(np.nan, np.nan)), np.tanh(x))
    values.imag = np.where(np.isnan(x.real) & (x.imag == 0), 0, values.imag)
    return values


def _tan(x: Array) -> Array:
    # tan z = -i tanh(iz)
    t, denominator, turned = _tanh_parts(x.imag, x.real)
    values = join(turned, t / denominator, x.dtype)
    special = ~np.isfinite(x)
    if special.any():
        rest = x[special]
        undefined = ~np.isfinite(rest.real) & (rest.imag == 0)
        nan = x.dtype.type(complex(np.nan, np.nan))
        values[special] = np.where(undefined, nan, np.tan(rest))
    return values


def _walked(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def walked(x: Array) -> Array:
        dtype = x.real.dtype if function is absolute else x.dtype
        result = like(x, dtype)
        with np.errstate(all="ignore"):
            for target, piece in blocks(result, x):
                np.copyto(target, function(piece))
        return result

    return walked


COMPLEX_UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": _walked(absolute),
    "acos": _walked(np.arccos),
    "acosh": _walked(np.arccosh),
    "asin": _walked(np.arcsin),
    "asinh": _walked(np.arcsinh),
    "atanh": _walked(np.arctanh),
    "cosine": _walked(_cosine),
    "cosh": _walked(np.cosh),
    "exponential": _walked(exponential),
    "exponential-minus-one": _walked(_exponential_minus_one),
    "imag": lambda x: x.imag,
    "log": _walked(log),
    "log-plus-one": _walked(_log_plus_one),
    "logistic": _walked(_logistic),
    "negate": np.negative,
    "real": lambda x: x.real,
    "rsqrt": _walked(_rsqrt),
    "sign": _walked(_sign),
    "sine": _walked(_sine),
    "sinh": _walked(np.sinh),
    "sqrt": _walked(sqrt),
    "tan": _walked(_tan),
    "tanh": _walked(_tanh),
}
"""What each opcode computes on c64 and c128 arrays."""
