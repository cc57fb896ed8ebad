"""Elementwise operations on one array.

Functions that numpy lacks are rational approximations over whole arrays. Their coefficients are our
own relative minimax fits (reweighted least squares at Chebyshev points, 50 digits); the stated
errors are those of the fit, before rounding.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES, ElementType, Kind
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.core.blocks import Array, blocks, compact, like, repeats
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.core.rounding import is_narrow, origin_of, round_block, rounds_in_place
from hloipu_runtime.kernels.core.storage import storage_dtype, to_bits, wrap
from hloipu_runtime.kernels.elementwise.complex_unary import COMPLEX_UNARY

ERF_F32 = (
    # -log(erfc(x)) / x on 0 <= x <= 3.95, where f32 erf has become 1. The error, 3.5e-8, is that
    # of erf: it was weighted with x / (1 / erfc(x) - 1), what a change here does to erf.
    1.128379207035619, 0.6366164977230009, 0.10281439927442684, -0.019321667359875113,
    0.0002056224071204225, 0.0012518340794158444, -0.0003810391131558939, 4.071427727653922e-05,
)  # fmt: skip
ERF_F32_END = 3.95
"""From here on f32 erf is 1."""
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
    np.minimum(size, np.float32(ERF_F32_END), out=size)
    exponent = _polynomial(size, ERF_F32)
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


RealKernel = Callable[[Array, Array], object]
"""Writes the values for f32 or f64 `x` into `out`, which may be `x` itself; rounds nothing."""


Parts = tuple[tuple[np.ufunc, float | None], ...]

PARTS: dict[str, Parts] = {
    "logistic": ((np.negative, None), (np.exp, None), (np.add, 1.0), (np.reciprocal, None)),
    "rsqrt": ((np.sqrt, None), (np.reciprocal, None)),
}
"""Opcodes that are ufuncs of numpy one after another, some with a number as second operand."""


def _in_parts(opcode: str, x: Array, out: Array) -> None:
    for ufunc, number in PARTS[opcode]:
        if number is None:
            ufunc(x, out)
        else:
            ufunc(x, x.dtype.type(number), out)
        x = out


def _round_away_from_zero(x: Array, out: Array) -> None:
    # The number just below one half: one half itself would carry 0.49999997 to 1.
    half = np.nextafter(x.dtype.type(0.5), x.dtype.type(0))
    np.trunc(np.add(x, np.copysign(half, x)), out)


def _sign(x: Array, out: Array) -> None:
    # Two steps carry the smallest subnormal beyond 1; zeros and NaN stay what they are.
    number, powers = x.dtype.type, (127, 23) if x.dtype == np.float32 else (1023, 52)
    np.multiply(x, number(2.0 ** powers[0]), out)
    np.multiply(out, number(2.0 ** powers[1]), out)
    np.clip(out, number(-1), number(1), out)


def _zeros(x: Array, out: Array) -> None:
    out[...] = 0


REAL_KERNELS: dict[str, RealKernel] = {
    "abs": np.absolute,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "cosine": np.cos,
    "cosh": np.cosh,
    "erf": erf,
    "exponential": np.exp,
    "exponential-minus-one": np.expm1,
    "floor": np.floor,
    "imag": _zeros,
    "log": np.log,
    "log-plus-one": np.log1p,
    "logistic": partial(_in_parts, "logistic"),
    "negate": np.negative,
    "real": np.positive,
    "round-nearest-afz": _round_away_from_zero,
    "round-nearest-even": np.rint,
    "rsqrt": partial(_in_parts, "rsqrt"),
    "sign": _sign,
    "sine": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}
"""What each opcode computes on f32 and f64 pieces; narrow floats are f32 rounded afterwards."""

_CHAINS = {"erf", "logistic", "round-nearest-afz", "rsqrt", "sign"}
"""Opcodes of several numpy calls: run in pieces, so that what is between them stays in cache."""

ON_GRID = {
    "abs",
    "ceil",
    "floor",
    "imag",
    "negate",
    "real",
    "round-nearest-afz",
    "round-nearest-even",
    "sign",
}
"""Opcodes that keep f16 and bf16 values on the grid: no rounding (smaller formats may overflow)."""


def _leading_zeros(x: Array, element: ElementType) -> Array:
    if element.bits <= 16:
        return _leading_zeros_by_count(x, element)
    return _leading_zeros_by_exponent(x, element)


def _leading_zeros_by_count(x: Array, element: ElementType) -> Array:
    """Set every bit below the highest one, and count."""
    result = like(x)
    for target, piece in blocks(result, x):
        bits = np.array(to_bits(piece, element.name))
        shifted = np.empty_like(bits)
        step = 1
        while step < element.bits:
            np.right_shift(bits, bits.dtype.type(step), out=shifted)
            np.bitwise_or(bits, shifted, out=bits)
            step *= 2
        counts = np.bitwise_count(bits).astype(bits.dtype, copy=False)
        np.subtract(bits.dtype.type(element.bits), counts, out=target.view(bits.dtype))
    return result


def _leading_zeros_by_exponent(x: Array, element: ElementType) -> Array:
    """Read the highest bit off the exponent that a conversion to a float gives."""
    number, mantissa_bits, bias = (
        (np.float32, 23, 127) if element.bits < 64 else (np.float64, 52, 1023)
    )
    result = like(x)
    for target, piece in blocks(result, x):
        bits = np.asarray(to_bits(piece, element.name))
        # Without the bit below the highest one, rounding cannot carry to the next power of two.
        lower = np.right_shift(bits, bits.dtype.type(1))
        np.invert(lower, out=lower)
        np.bitwise_and(bits, lower, out=lower)
        exponent = lower.astype(number)
        # One half has the exponent that the answer for zero asks for; it carries into no other.
        np.add(exponent, number(0.5), out=exponent)
        bits = exponent.view(np.dtype(f"i{np.dtype(number).itemsize}"))
        np.right_shift(bits, mantissa_bits, out=bits)
        np.subtract(element.bits - 1 + bias, bits, out=target.view(bits.dtype))
    return result


def _bit_count(x: Array, element: ElementType) -> Array:
    return np.asarray(np.bitwise_count(to_bits(x, element.name)))


_INTEGER: dict[str, Callable[[Array, ElementType], Array]] = {
    "abs": lambda x, _: np.absolute(x),
    "count-leading-zeros": _leading_zeros,
    "negate": lambda x, _: np.negative(x),
    "not": lambda x, _: np.invert(x),
    "popcnt": _bit_count,
    "real": lambda x, _: x,
    "imag": lambda x, _: np.zeros_like(x),
    "sign": lambda x, _: np.sign(x),
}


def unary_has_meaning(opcode: str, element_type: str) -> bool:
    """Whether `unary` computes an operation on an operand of a type."""
    element = ELEMENT_TYPES[element_type]
    if element.is_float:
        return opcode in REAL_KERNELS or opcode == "is-finite"
    if element.is_complex:
        return opcode in COMPLEX_UNARY or opcode == "is-finite"
    return opcode in _INTEGER if element.is_integer else opcode in ("not", "real")


def unary(opcode: str, x: Array, element_type: str, out: Array | None = None) -> Array:
    """Compute the elementwise operation `opcode` on `x`, whose element type is `element_type`.

    The result has the shape of `x`, in storage form of the result's element type: pred for
    `is-finite`, the component type for `abs`, `real` and `imag` of complex numbers, else that of
    `x`. `out` takes it if given (`x` itself is allowed where the types agree). Raises
    `UnsupportedError` where the operation has no meaning for the type.
    """
    element = ELEMENT_TYPES[element_type]
    if out is None and repeats(x):
        return np.broadcast_to(unary(opcode, compact(x), element_type), x.shape)
    if element.kind is Kind.FLOAT and opcode in REAL_KERNELS:
        return _real(opcode, x, element_type, out)
    if opcode == "is-finite" and (element.is_float or element.is_complex):
        return np.isfinite(x, out=_target(x, out, np.dtype(np.bool_)))
    if element.is_complex and opcode in COMPLEX_UNARY:
        return _store(COMPLEX_UNARY[opcode](x), out)
    if (element.is_integer and opcode in _INTEGER) or (
        element.kind is Kind.PREDICATE and opcode in ("not", "real")
    ):
        return _integer(opcode, x, element, out)
    raise UnsupportedError(
        "E0457",
        f"{opcode} of {element_type} has no meaning",
        hint="convert the operand to a type that the operation is defined for",
    )


def _target(x: Array, out: Array | None, dtype: np.dtype[np.generic]) -> Array:
    return like(x, dtype) if out is None else out


def _store(result: Array, out: Array | None) -> Array:
    if out is None:
        return np.asarray(result)
    np.copyto(out, result, casting="unsafe")
    return out


def _real(opcode: str, x: Array, element_type: str, out: Array | None) -> Array:
    kernel = REAL_KERNELS[opcode]
    out = _target(x, out, x.dtype)
    on_grid = element_type in ("f16", "bf16") and opcode in ON_GRID
    rounds = is_narrow(element_type) and not on_grid
    origin = origin_of(opcode)
    apart = rounds and not rounds_in_place(element_type, origin)
    with quietly():
        if not rounds and opcode not in _CHAINS:
            kernel(x, out)
            return out
        for target, piece in blocks(out, x):
            exact = np.empty(target.shape, np.float32) if apart else target
            kernel(piece, exact)
            if rounds:
                round_block(exact, element_type, target, origin)
    return out


def _integer(opcode: str, x: Array, element: ElementType, out: Array | None) -> Array:
    result = np.asarray(_INTEGER[opcode](x, element))
    if element.bits < 8:
        result = wrap(result.astype(storage_dtype(element.name), copy=False), element.name)
    if out is None and result.dtype != x.dtype:
        return result.astype(x.dtype)
    return _store(result, out)


UNARY: dict[str, Callable[..., Array]] = {
    opcode: partial(unary, opcode)
    for opcode in sorted({*REAL_KERNELS, *_INTEGER, *COMPLEX_UNARY, "is-finite"})
}
"""`unary` by opcode: each takes `(x, element_type, out=None)`."""
