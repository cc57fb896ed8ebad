"""Elementwise operations on two arrays of complex numbers."""

from collections.abc import Callable

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array


def join(real: Array, imag: Array, dtype: np.dtype[np.generic] | type[np.generic]) -> Array:
    """Return complex numbers of `dtype` made of their parts."""
    joined = np.empty(np.shape(real), dtype)
    joined.real = real
    joined.imag = imag
    return joined


def divide(x: Array, y: Array) -> Array:
    """Return quotients, infinities and zeros recovered as in C99, annex G.5.1."""
    quotient = np.array(np.divide(x, y), ndmin=1).reshape(x.shape)
    lost = (np.isnan(quotient.real) & np.isnan(quotient.imag)) | (y == 0)
    if lost.any():
        quotient[lost] = _recovered(x[lost], y[lost], quotient[lost])
    return quotient


def _recovered(x: Array, y: Array, quotient: Array) -> Array:
    a, b, c, d = x.real, x.imag, y.real, y.imag
    by_zero = (y == 0) & ~(np.isnan(a) & np.isnan(b))
    infinity = np.copysign(np.inf, c)
    from_zero = join(infinity * a, infinity * b, x.dtype)
    top_infinite = (np.isinf(a) | np.isinf(b)) & np.isfinite(c) & np.isfinite(d)
    u, v = np.copysign(np.isinf(a), a), np.copysign(np.isinf(b), b)
    from_infinity = join(np.inf * (u * c + v * d), np.inf * (v * c - u * d), x.dtype)
    bottom_infinite = (np.isinf(c) | np.isinf(d)) & np.isfinite(a) & np.isfinite(b)
    u, v = np.copysign(np.isinf(c), c), np.copysign(np.isinf(d), d)
    to_zero = join(0 * (a * u + b * v), 0 * (b * u - a * v), x.dtype)
    return np.select(
        [by_zero, top_infinite, bottom_infinite], [from_zero, from_infinity, to_zero], quotient
    )


def power(x: Array, y: Array) -> Array:
    """Return x^y as |x|^c e^(-d arg x) turned by c arg x + d log |x|, for y = c + di.

    x^0 and 1^y are 1; a power of 0 is 0 for real c > 0 and NaN for others, as in XLA; so are those
    of infinite x, but for real powers of positive real infinity.
    """
    a, b = x.real.astype(np.float64), x.imag.astype(np.float64)
    c, d = y.real.astype(np.float64), y.imag.astype(np.float64)
    size, angle = np.hypot(a, b), np.arctan2(b, a)
    grown = np.power(size, c)
    scale = grown * np.exp(-d * angle)
    turn = c * angle + d * np.log(size)
    value = join(scale * np.cos(turn), scale * np.sin(turn), x.dtype)
    one, nan = x.dtype.type(1), x.dtype.type(complex(np.nan, np.nan))
    real_power = ((x == 0) & (c > 0) | np.isposinf(a) & (b == 0)) & (d == 0)
    cases = [(y == 0) | (x == 1), real_power, x == 0]
    return np.select(cases, [one, join(grown, np.zeros_like(b), x.dtype), nan], value)


def atan2(y: Array, x: Array) -> Array:
    """Return -i log((x + iy) / sqrt(x^2 + y^2)).

    With u = x + iy and v = x - iy that is half the angle of u / v, up to a half turn, which the
    formula decides, and -log(|u|^2 / |v|^2) / 4, which `log1p` of their difference gives without
    cancellation. Infinite values and poles follow the formula.
    """
    plain = np.asarray(-1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y))).astype(x.dtype)
    a, b = x.real.astype(np.float64), x.imag.astype(np.float64)
    c, d = y.real.astype(np.float64), y.imag.astype(np.float64)
    u_size, v_size = np.square(a - d) + np.square(b + c), np.square(a + d) + np.square(b - c)
    # Near a pole u or v is small, and its own parts are what is exact.
    near_pole = np.minimum(u_size, v_size) < np.maximum(u_size, v_size) / 4
    sine = np.where(near_pole, (b + c) * (a + d) - (a - d) * (b - c), 2 * (a * c + b * d))
    half = np.arctan2(sine, (a - d) * (a + d) + (b + c) * (b - c)) / 2
    real = half + np.pi * np.rint((plain.real - half) / np.pi)
    close = np.log1p(4 * (b * c - a * d) / v_size)
    imag = np.where(near_pole, np.log(u_size / v_size), close) / -4
    value = join(real, imag, x.dtype)
    tame = np.isfinite(u_size) & np.isfinite(v_size) & (u_size > 0) & (v_size > 0)
    return np.where(tame & np.isfinite(value), value, plain)


COMPLEX_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": divide,
    "power": power,
    "atan2": atan2,
}
"""What each opcode computes on c64 and c128 arrays."""
