"""Special functions that numpy lacks, as rational approximations.

Coefficients are our own relative minimax fits (reweighted least squares at Chebyshev points, 50
digits); the stated errors are those of the fit, before rounding.
"""

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array

_ERF_F32 = (
    # -log(erfc(x)) / x on 0 <= x <= 3.95, where f32 erf has become 1. The error, 3.5e-8, is that
    # of erf: it was weighted with x / (1 / erfc(x) - 1), what a change here does to erf.
    1.128379207035619, 0.6366164977230009, 0.10281439927442684, -0.019321667359875113,
    0.0002056224071204225, 0.0012518340794158444, -0.0003810391131558939, 4.071427727653922e-05,
)  # fmt: skip
_ERF_F64_SMALL = (
    # erf(x) / x in x^2 on 0 <= x <= 1; error 2.2e-18.
    (1.1283791670955126, 0.14214929175864352, 0.045303904479628475, 0.0018272940957394562,
     0.00019495597516130467),
    (1.0, 0.45930986312388267, 0.09325282768595843, 0.010582210620705362, 0.0006812154990118736,
     2.0297397149854018e-05),
)  # fmt: skip
_ERFCX_F64 = (
    # erfc(x) * exp(x^2) on 1 <= x <= 6, where f64 erf has become 1; error 1.5e-18.
    (0.9999999922278634, 1.8454933191358966, 1.6795496686908185, 0.9464705368434769,
     0.35330877677115125, 0.08739561093615357, 0.013393370339846136, 0.0010093966736395429),
    (1.0, 2.973872401486408, 4.03520577697152, 3.2780915444927143, 1.754140667033599,
     0.6380924966201119, 0.15579927235564925, 0.02373912979258477, 0.001789109038105486),
)  # fmt: skip

Rational = tuple[tuple[float, ...], tuple[float, ...]]


def erf(x: Array, out: Array) -> None:
    """Write the error function of f32 or f64 `x` into `out`, to about 2 units in the last place."""
    if x.dtype == np.float32:
        _erf_f32(x, out)
    else:
        _erf_f64(x, out)


def _erf_f32(x: Array, out: Array) -> None:
    """Use erf(x) = -expm1(log(erfc(x))), which loses nothing at either end."""
    size = np.absolute(x)
    np.minimum(size, np.float32(3.95), out=size)
    exponent = _polynomial(size, _ERF_F32)
    np.negative(size, out=size)
    np.multiply(exponent, size, out=exponent)
    np.expm1(exponent, out=exponent)
    # Every value is negative here, or -0: keep that sign bit only where x has it.
    keep = np.bitwise_or(x.view(np.uint32), np.uint32(0x7FFFFFFF), out=size.view(np.uint32))
    np.bitwise_and(exponent.view(np.uint32), keep, out=out.view(np.uint32))


def _erf_f64(x: Array, out: Array) -> None:
    size = np.minimum(np.absolute(x), 6.0)
    small = np.minimum(size, 1.0)
    result = _rational(small * small, _ERF_F64_SMALL)
    np.multiply(result, small, out=result)
    large = size > 1
    if large.any():
        tail = size[large]
        result[large] = 1 - np.exp(-tail * tail) * _rational(tail, _ERFCX_F64)
    np.copysign(result, x, out=out)


def _rational(x: Array, coefficients: Rational) -> Array:
    numerator, denominator = (_polynomial(x, side) for side in coefficients)
    return np.divide(numerator, denominator, out=numerator)


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Evaluate a polynomial, lowest coefficient first, by Horner's rule."""
    number = x.dtype.type
    total: Array = np.multiply(x, number(coefficients[-1]))
    for coefficient in coefficients[-2:0:-1]:
        np.add(total, number(coefficient), out=total)
        np.multiply(total, x, out=total)
    np.add(total, number(coefficients[0]), out=total)
    return total
