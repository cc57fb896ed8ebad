"""Integer arithmetic on two arrays, with XLA:CPU's answers where C has none.

Division by zero yields -1 (all ones), its remainder the dividend; the quotient that does not fit,
min / -1, wraps to min with remainder 0; shift amounts count as unsigned, and at or beyond the width
nothing but sign bits or zeros is left. Every function writes to `out`, which may be an operand.
Types below 8 bits are computed in 8 and wrapped by the caller.
"""

from collections.abc import Callable

import numpy as np

from hloipu_runtime.element_types import ElementType
from hloipu_runtime.kernels.core.blocks import Array, blocks
from hloipu_runtime.kernels.core.storage import to_bits, wrap

IntegerKernel = Callable[[Array, Array, Array, ElementType], object]


def _divide(x: Array, y: Array, out: Array, element: ElementType) -> None:
    """Divide towards zero; a wider float holds the quotient well enough up to 32 bits.

    For n-bit operands a quotient that is no integer is at least 1/|y| from one, 2^-n relative to
    itself, which half a unit in the last place of f32 (n = 16) or f64 (n = 32) does not bridge.
    """
    divisor = 0 if any(y.strides) or not y.size else int(y.flat[0])
    if divisor > 0:
        np.floor_divide(_towards_zero(x, divisor), y, out=out)
        return
    if x.dtype.itemsize == 8:
        quotient = _divide_64(x, y)
    else:
        real, integer = (np.float32, np.int32) if x.dtype.itemsize < 4 else (np.float64, np.int64)
        quotient = np.divide(x, y, dtype=real, casting="unsafe").astype(integer)
    zero = y == 0
    np.copyto(out, quotient, casting="unsafe")
    out[zero] = -1 if out.dtype.kind == "i" else np.iinfo(out.dtype).max


def _towards_zero(x: Array, divisor: int) -> Array:
    """Return the dividends whose floored quotients are those of `x` cut towards zero.

    numpy divides whole arrays by one number in vector registers, but rounds down.
    """
    if x.dtype.kind == "u":
        return x
    lifted: Array = np.right_shift(x, x.dtype.type(8 * x.dtype.itemsize - 1))  # -1 of negative ones
    np.bitwise_and(lifted, x.dtype.type(divisor - 1), out=lifted)
    np.add(lifted, x, out=lifted)
    return lifted


def _divide_64(x: Array, y: Array) -> Array:
    quotient = np.floor_divide(x, y)
    if x.dtype.kind == "i":
        inexact_below = (quotient * y != x) & ((x < 0) != (y < 0))
        quotient += inexact_below
    return quotient


def _remainder(x: Array, y: Array, out: Array, element: ElementType) -> None:
    quotient = np.empty_like(x)
    _divide(x, y, quotient, element)
    quotient *= y
    np.subtract(x, quotient, out=out)


def _multiply_high(x: Array, y: Array, out: Array, element: ElementType) -> None:
    if element.bits == 64:
        np.copyto(out, _multiply_high_64(x, y))
        return
    wide = np.dtype(f"{x.dtype.kind}{max(2 * x.dtype.itemsize, 2)}")
    product = np.multiply(x, y, dtype=wide)
    np.copyto(out, product >> wide.type(element.bits), casting="unsafe")


def _multiply_high_64(x: Array, y: Array) -> Array:
    """Take the product apart into halves of 32 bits; the signs are settled at the end."""
    a, b = x.view(np.uint64), y.view(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + (a0 * b0 >> half)
    other = a0 * b1 + (middle & low)
    high = a1 * b1 + (middle >> half) + (other >> half)
    if x.dtype.kind == "i":
        high -= np.where(x < 0, b, np.uint64(0)) + np.where(y < 0, a, np.uint64(0))
    return np.asarray(high.view(x.dtype))


def _power(x: Array, y: Array, out: Array, element: ElementType) -> None:
    """Raise to a power, wrapping; for negative exponents only 1 and -1 leave anything but 0."""
    if x.dtype.kind == "u":
        np.power(x, y, out=out)
        return
    powers = np.power(x, np.maximum(y, 0))
    negative = y < 0
    if negative.any():
        units = np.where(x == 1, 1, np.where(x == -1, np.where(y & 1, -1, 1), 0))
        np.copyto(powers, units, where=negative, casting="unsafe")
    np.copyto(out, powers)


def _shift_left(x: Array, y: Array, out: Array, element: ElementType) -> None:
    np.left_shift(x, y, out=out)


def _shift_right_arithmetic(x: Array, y: Array, out: Array, element: ElementType) -> None:
    signed = np.dtype(f"i{x.dtype.itemsize}")
    value = x.view(signed)
    if element.bits < 8:
        value = wrap(value, f"s{element.bits}")
    np.right_shift(value, y.view(signed), out=out.view(signed))


def _shift_right_logical(x: Array, y: Array, out: Array, element: ElementType) -> None:
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    amount = to_bits(y, element.name)
    np.right_shift(to_bits(x, element.name), amount, out=out.view(unsigned))


def _in_blocks(kernel: IntegerKernel) -> IntegerKernel:
    def walked(x: Array, y: Array, out: Array, element: ElementType) -> None:
        for target, a, b in blocks(out, x, y):
            kernel(a, b, target, element)

    return walked


INTEGER_BINARY: dict[str, IntegerKernel] = {
    "add": lambda x, y, out, _: np.add(x, y, out=out),
    "subtract": lambda x, y, out, _: np.subtract(x, y, out=out),
    "multiply": lambda x, y, out, _: np.multiply(x, y, out=out),
    "maximum": lambda x, y, out, _: np.maximum(x, y, out=out),
    "minimum": lambda x, y, out, _: np.minimum(x, y, out=out),
    "and": lambda x, y, out, _: np.bitwise_and(x, y, out=out),
    "or": lambda x, y, out, _: np.bitwise_or(x, y, out=out),
    "xor": lambda x, y, out, _: np.bitwise_xor(x, y, out=out),
    "divide": _in_blocks(_divide),
    "remainder": _in_blocks(_remainder),
    "mulhi": _in_blocks(_multiply_high),
    "power": _in_blocks(_power),
    "shift-left": _in_blocks(_shift_left),
    "shift-right-arithmetic": _in_blocks(_shift_right_arithmetic),
    "shift-right-logical": _in_blocks(_shift_right_logical),
}
"""What each opcode computes, in the storage dtype."""

NEVER_WRAPS = {"maximum", "minimum", "and", "or", "xor"}
"""Opcodes that stay in the range of a type below 8 bits by themselves."""
