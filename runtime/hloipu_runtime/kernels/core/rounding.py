"""Rounding to the grids of the narrow floats, to nearest and ties to even.

Four ways, all exact. bf16 shares its exponent range with f32: an integer addition carries into the
kept bits. Every other format: adding and taking away 1.5 * 2^k, with k chosen per element so that
one unit in the last place of the sum is one step of the grid; subnormals fall out of a lower bound
on k. Where no element can be subnormal or overflow there is a shorter one, Veltkamp's splitting.
Few elements are converted to the type and back, one after the other: two calls instead of ten.
Where calls on few are prepared, to look for what is to be settled takes longer than to settle it.
"""

import math
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any, Literal

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES, GRIDS, Grid
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.blocks import (
    BLOCK_ELEMENTS,
    ROUNDED_NATIVELY,
    Array,
    blocks,
    like,
)
from hloipu_runtime.kernels.core.quiet import are_off, quietly
from hloipu_runtime.kernels.native.settings import settings

Origin = Literal["any", "arithmetic", "sum", "small sum"]
"""Where f32 values to be rounded come from.

`arithmetic`: an op on numbers of the grid made them, so that a NaN is one of theirs or the
processor's own, whose payload is short. `sum`: they are sums or differences of two numbers of the
grid, so multiples of its smallest step too. `small sum`: such that surely stay below the largest.
"""

Take = Callable[[tuple[int, ...], np.dtype[Any]], Array]
"""Returns an array to work in."""

_F32, _BITS = np.dtype(np.float32), np.dtype(np.uint32)


@dataclass(frozen=True, slots=True)
class _Rounder:
    """Bit patterns to round values of one wide dtype to one grid with; see `_constant`."""

    grid: Grid
    bits: np.dtype[Any]
    """The integer of the values' width."""
    infinity: Array
    sign: Array
    highest: int
    """Exponent bits of the grid's largest number: from there on a value may overflow."""
    highest_power: Array
    """The power of two with these exponent bits."""
    lowest: Array
    """The smallest normal number of the grid."""
    lift: Array
    """From an element's exponent bits to its addend."""
    beyond: Array
    """The power of two that makes the wide dtype overflow just where the grid does."""
    back: Array
    """One over it."""
    kept: Array
    """The bits that a number of the grid may have."""


def _constant(value: float, dtype: Any) -> Array:
    """Return a number as an array without axes: numpy takes twice as long to call with a scalar."""
    constant = np.array(value, dtype)
    constant.flags.writeable = False
    return constant


@lru_cache(maxsize=64)
def _rounder(element_type: str, dtype: np.dtype[Any]) -> _Rounder:
    grid = GRIDS[element_type]
    mantissa_bits, bias = (23, 127) if dtype.itemsize == 4 else (52, 1023)
    sign = 1 << (8 * dtype.itemsize - 1)
    lift = (mantissa_bits - grid.mantissa_bits) << mantissa_bits | 1 << (mantissa_bits - 1)
    bits = np.dtype(np.uint32 if dtype.itemsize == 4 else np.uint64)
    highest = math.frexp(grid.largest)[1] - 1
    return _Rounder(
        grid=grid,
        bits=bits,
        infinity=_constant(sign - (1 << mantissa_bits), bits),
        sign=_constant(sign, bits),
        highest=(bias + highest) << mantissa_bits,
        highest_power=_constant(2.0**highest, dtype),
        lowest=_constant(2.0**grid.min_exponent, dtype),
        lift=_constant(lift, bits),
        beyond=_constant(2.0 ** (bias - highest), dtype),
        back=_constant(2.0 ** (highest - bias), dtype),
        kept=_constant(-(1 << (mantissa_bits - grid.mantissa_bits)) % (2 * sign), bits),
    )


def origin_of(opcode: str) -> Origin:
    """Return what an elementwise op's f32 result on numbers of one narrow grid is."""
    if opcode in ("add", "subtract"):
        return "sum"
    # What is left of a division is cut off digit by digit, without the processor's arithmetic.
    return "any" if opcode == "remainder" else "arithmetic"


def is_narrow(element_type: str) -> bool:
    """Whether values of `element_type` live in float32 arrays on a coarser grid."""
    return element_type in GRIDS or element_type == "f8e8m0fnu"


def round_to(x: Array, element_type: str, out: Array | None = None) -> Array:
    """Round f32 or f64 values to the grid of `element_type`, once, to nearest and ties to even.

    `out` (float32, or float64 for f64; it may be `x`) takes the result in storage form. f32 values
    asked for as f32, and f64 as f64, come back as they are.
    """
    if not is_narrow(element_type):
        dtype = np.dtype(ELEMENT_TYPES[element_type].storage)
        if out is None:
            return x if x.dtype == dtype else x.astype(dtype)
        np.copyto(out, x, casting="same_kind")
        return out
    if out is None:
        out = like(x, np.dtype(np.float32))
    if 0 < x.size <= BLOCK_ELEMENTS and x.ndim and are_off():
        round_block(x, element_type, out)
        return out
    if x.size > BLOCK_ELEMENTS and _rounded_natively(x, element_type, out):
        return out
    with quietly():
        for target, piece in blocks(out, x):
            round_block(piece, element_type, target)
    return out


def round_block(x: Array, element_type: str, out: Array, origin: Origin = "any") -> None:
    """Round one piece, f32 or f64, to a narrow grid into `out`; floating-point warnings are off.

    `out` may be `x`; see `rounds_in_place`.
    """
    elements = x.size
    if elements >= ROUNDED_NATIVELY and _rounded_natively(x, element_type, out):
        return
    is_sum, is_f32 = origin in ("sum", "small sum"), x.dtype == np.float32
    if element_type == "f16" and elements < (FEW_SUMS if is_sum else FEW_F16):
        out[...] = x.astype(np.float16)
        return
    is_small = origin == "small sum"
    if element_type == "bf16" and is_f32 and elements < FEW_BF16 and not is_small:
        squares = _squares(x)
        if squares == squares:  # there is no NaN, whose payload ml_dtypes would drop
            out[...] = x.astype(_bfloat16())
            return
    if element_type == "bf16" and is_f32 and origin in ("arithmetic", "sum"):
        _round_to_bf16_on_grid(x, out)
        return
    factor = _SPLITS.get(element_type) if is_sum else None
    if factor is not None and (is_small or _surely_within(x, SPLIT_LIMITS[element_type])):
        scaled = np.multiply(x, factor)
        np.subtract(scaled, x, out)
        np.subtract(scaled, out, out)
    elif element_type == "f8e8m0fnu":
        _round_to_powers_of_two(x, out)
    elif element_type == "bf16" and x.dtype == np.float32:
        _round_to_bf16(x, out)
    else:
        _round_to_grid(x, element_type, out)


FEW_F16, FEW_SUMS, FEW_BF16 = 1 << 9, 1 << 8, 1 << 11
"""Fewer are converted: numpy takes 4.4 ns for an f16 there and back, 70 ns where it underflows,
ml_dtypes 0.5 ns for a bf16, beside 0.6 us of calls; other ways take 6 us, sums of f16 2 us, and 0.4
to 0.7 ns (on Zen 5)."""
_FEW_PREPARED, _UNSEEN_F16 = 3 << 7, 1 << 13
"""The same of f16 where calls are prepared, so that other ways take 2 us; and up to where all are
settled without a look for what there is, as two extrema take 4 us."""


def rounding_calls(
    x: Array, element_type: str, out: Array, origin: Origin, take: Take
) -> list[Callable[[], object]]:
    """Return what `round_block` does as calls on these very arrays, `x` being f32."""
    calls: list[Callable[[], object]] = []

    def later(function: Callable[..., object], *given: object) -> None:
        calls.append(partial(function, *given))

    if element_type == "f16" and x.size < _FEW_PREPARED:
        half = take(x.shape, np.dtype(np.float16))
        later(half.__setitem__, ..., x)
        later(out.__setitem__, ..., half)
    elif element_type == "f16" and x.size < _UNSEEN_F16:
        by, bits, whole = _rounder("f16", _F32), x.view(_BITS), out.view(_BITS)
        addend, signs = take(x.shape, _BITS), take(x.shape, _BITS)
        powers = addend.view(_F32)
        later(np.bitwise_and, bits, by.sign, signs)
        later(np.bitwise_and, bits, by.infinity, addend)
        later(powers.clip, by.lowest, by.highest_power, powers)
        later(np.add, addend, by.lift, addend)
        later(np.add, x, powers, out)
        later(np.subtract, out, powers, out)
        later(np.bitwise_or, whole, signs, whole)
        later(np.multiply, out, by.beyond, out)
        later(np.multiply, out, by.back, out)
    elif element_type == "bf16" and origin != "any":
        # Not in place: of one element numpy takes three times as long there.
        bits, first, second = x.view(_BITS), take(x.shape, _BITS), take(x.shape, _BITS)
        later(np.right_shift, bits, _BF16_SHIFT, first)
        later(np.bitwise_and, first, _ONE, second)
        later(np.add, second, _BELOW_TIE, first)
        later(np.add, first, bits, second)
        later(np.bitwise_and, second, _BF16_BITS, out.view(_BITS))
    else:
        later(round_block, x, element_type, out, origin)
    return calls


@cache
def _bfloat16() -> np.dtype[Any]:
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def _rounded_natively(x: Array, element_type: str, out: Array) -> bool:
    if not settings().compiles:
        return False
    from hloipu_runtime.kernels.native.rounding import round_natively

    return round_natively(x, element_type, out)


def rounds_in_place(element_type: str, origin: Origin) -> bool:
    """Whether `round_block` to where the values stand is as cheap as to another place."""
    return origin in ("sum", "small sum") or element_type == "bf16"


_SPLITS = {
    name: _constant(2 ** (23 - grid.mantissa_bits) + 1, np.float32)
    for name, grid in GRIDS.items()
    if grid.negative_zero and grid.nan
}
"""The c with which c*x - (c*x - x) is a sum x on the grid, ties to even.

T. J. Dekker, "A floating-point technique for extending the available precision", Numerische
Mathematik 18 (1971): c = 2^s + 1 leaves 24 - s significant bits. What is a multiple of the smallest
step has no more bits than that below twice the smallest normal number.
"""
SPLIT_LIMITS = {name: min(GRIDS[name].largest, 2.0**104) for name in _SPLITS}
"""Up to here neither the result overflows nor what is scaled by the factor."""


_SQUARES = 1 << 13
"""Terms of one sum of squares: few enough that BLAS does not wake a second thread (10,000)."""


def _surely_within(x: Array, limit: float) -> bool:
    """Whether all of one piece lies in [-limit, limit]; NaN does not.

    A sum of squares takes a third of the time of two extrema; where it is too large they decide.
    """
    if x.flags.c_contiguous:
        flat = x.reshape(-1)
        most = 0.99 * limit * limit  # the sum is rounded
        whole = flat.size - flat.size % _SQUARES
        rest = flat[whole:]
        if not rest.size or rest.dot(rest) < most:
            rows = flat[:whole].reshape(-1, _SQUARES)
            if not whole or np.vecdot(rows, rows).max() < most:
                return True
    return bool(x.max() <= limit and x.min() >= -limit)


def _squares(x: Array) -> Any:
    """Return a sum of squares, NaN where there is one: in a third of the time of an extremum."""
    flat = x.reshape(-1)
    return flat.dot(flat)


_BF16_SHIFT, _ONE, _BELOW_TIE, _BF16_BITS, _QUIET_SHIFT = (
    _constant(bits, np.uint32) for bits in (16, 1, 0x7FFF, 0xFFFF0000, 22)
)


def _round_to_bf16_on_grid(x: Array, out: Array) -> None:
    """Round what has no NaN of a payload that carries."""
    bits = x.view(_BITS)
    carry = np.right_shift(bits, _BF16_SHIFT)
    np.bitwise_and(carry, _ONE, carry)
    np.add(carry, _BELOW_TIE, carry)
    np.add(carry, bits, carry)
    np.bitwise_and(carry, _BF16_BITS, out.view(_BITS))


def _round_to_bf16(x: Array, out: Array) -> None:
    bits = x.view(np.uint32)
    carry = np.right_shift(bits, _BF16_SHIFT)
    np.bitwise_and(carry, _ONE, carry)
    np.add(carry, _BELOW_TIE, carry)
    if np.isnan(_squares(x) if x.size <= _SQUARES and x.flags.c_contiguous else x.max()):
        # A carry out of a NaN's payload would reach the exponent: none there, but the quiet bit.
        nans = np.isnan(x)
        np.multiply(carry, ~nans, out=carry, casting="unsafe")
        np.add(carry, bits, carry)
        np.bitwise_or(carry, np.left_shift(nans, _QUIET_SHIFT, dtype=np.uint32), carry)
    else:
        np.add(carry, bits, carry)
    np.bitwise_and(carry, _BF16_BITS, out.view(np.uint32))


def _round_to_grid(x: Array, element_type: str, out: Array) -> None:
    by = _rounder(element_type, x.dtype)
    grid, unsigned = by.grid, by.bits
    bits = x.view(unsigned)
    addend = np.bitwise_and(bits, by.infinity)
    overflow = addend.max() >= by.highest
    nans = np.isnan(x) if overflow and not grid.nan else None
    # Exponent bits alone are powers of two, 0 and infinity. With numbers numpy's clip is twice as
    # fast as its maximum.
    powers = addend.view(x.dtype)
    powers.clip(by.lowest, by.highest_power, out=powers)
    np.add(addend, by.lift, addend)
    # The signs of x are needed once more after the sum.
    apart = out is not x and out.dtype == x.dtype and not np.may_share_memory(out, x)
    rounded = np.add(x, powers, out=out if apart else None)
    np.subtract(rounded, powers, rounded)
    whole = rounded.view(unsigned)
    if grid.negative_zero and not whole.min():
        # Every zero came out as +0; nothing else has lost its sign.
        np.bitwise_or(whole, np.bitwise_and(bits, by.sign, addend), whole)
    if overflow:
        _settle_overflow(rounded, nans, by)
    if rounded is not out:
        np.copyto(out, rounded, casting="same_kind")


def _settle_overflow(rounded: Array, nans: Array | None, by: _Rounder) -> None:
    """Replace numbers beyond the largest, and NaN where the format has none, in place."""
    largest = by.grid.largest
    if by.grid.overflow == "saturate":
        np.clip(rounded, -largest, largest, out=rounded)
    elif by.grid.overflow == "infinity":
        np.multiply(rounded, by.beyond, rounded)
        np.multiply(rounded, by.back, rounded)
    else:
        beyond = np.absolute(rounded) > largest
        np.copyto(rounded, np.copysign(rounded.dtype.type(np.nan), rounded), where=beyond)
    if nans is not None:
        np.copyto(rounded, -0.0, where=nans)
    whole = rounded.view(by.bits)
    np.bitwise_and(whole, by.kept, whole)  # a NaN's payload, too, is one of the grid


def _round_to_powers_of_two(x: Array, out: Array) -> None:
    """Round to f8e8m0fnu: halves up; zero, negative, infinite and too large values are NaN.

    Below 2^-126 all values up to 2^-127 become 2^-127 and the others 2^-126, as XLA converts f32.
    The bits decide, as a processor that flushes subnormals takes 2^-127 for zero in f32.
    """
    fraction, bias = (23, 127) if x.dtype == np.float32 else (52, 1023)
    bits = x.view(np.dtype(f"u{x.dtype.itemsize}"))
    one = bits.dtype.type(1)
    exponents = (bits + (one << bits.dtype.type(fraction - 1)) >> bits.dtype.type(fraction)).astype(
        np.int64
    ) - (bias - 127)
    lowest = bits.dtype.type(bias - 126 << fraction)
    half_lowest = lowest >> one if fraction == 23 else lowest - (one << bits.dtype.type(fraction))
    exponents[bits < lowest] = 1
    exponents[bits <= half_lowest] = 0
    codes = np.where(exponents == 0, 1 << 22, exponents << 23)
    positive = (bits > 0) & (bits >> bits.dtype.type(8 * bits.itemsize - 1) == 0)
    codes[~positive | (exponents > 254)] = 0x7FC00000
    out[...] = codes.astype(np.uint32).view(np.float32)
