"""The operation `reduce-precision`: values of a shorter format kept in a longer one."""

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.blocks import Array, blocks, like
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.core.rounding import is_narrow, round_block
from hloipu_runtime.kernels.core.storage import from_bits, to_bits

_WORKED_ON = {"bf16": "bf16", "f16": "f16", "f8e8m0fnu": "f32"}


def reduce_precision(x: Array, exponent_bits: int, mantissa_bits: int, element_type: str) -> Array:
    """Round to `mantissa_bits`, then make what `exponent_bits` cannot hold infinite or zero.

    Ties go to even, numbers below the smallest normal one of the shorter format become zero of
    their sign, NaN stays NaN, and bits beyond those of the type change nothing. As in XLA this
    happens to the type's own bits, for 8-bit and narrower floats to their f16 form (f8e8m0fnu:
    f32), which is then rounded to the type.
    """
    result = like(x)
    worked_on = _WORKED_ON.get(element_type, "f16" if is_narrow(element_type) else element_type)
    for target, piece in blocks(result, x):
        bits = np.array(to_bits(piece, worked_on))
        _round_mantissa(bits, mantissa_bits, worked_on)
        _bound_exponent(bits, exponent_bits, worked_on)
        np.copyto(target, from_bits(bits, worked_on))
        np.copyto(target, piece, where=np.isnan(piece))
        if worked_on != element_type:
            with quietly():
                round_block(target, element_type, target)
    return result


def _round_mantissa(bits: Array, mantissa_bits: int, element_type: str) -> None:
    dropped = ELEMENT_TYPES[element_type].mantissa_bits - mantissa_bits
    if dropped <= 0:
        return
    number = bits.dtype.type
    last_kept = np.right_shift(bits, number(dropped))
    np.bitwise_and(last_kept, number(1), out=last_kept)
    np.add(last_kept, number((1 << (dropped - 1)) - 1), out=last_kept)
    np.add(bits, last_kept, out=bits)
    np.right_shift(bits, number(dropped), out=bits)
    np.left_shift(bits, number(dropped), out=bits)


def _bound_exponent(bits: Array, exponent_bits: int, element_type: str) -> None:
    element = ELEMENT_TYPES[element_type]
    if exponent_bits >= element.exponent_bits:
        return
    number = bits.dtype.type
    infinity = ((1 << element.exponent_bits) - 1) << element.mantissa_bits
    bias = (1 << (element.exponent_bits - 1)) - 1
    reduced_bias = (1 << (exponent_bits - 1)) - 1
    exponent = np.bitwise_and(bits, number(infinity))
    sign = np.bitwise_and(bits, number(1 << (element.bits - 1)))
    overflows = exponent > number((bias + reduced_bias) << element.mantissa_bits)
    underflows = exponent <= number((bias - reduced_bias) << element.mantissa_bits)
    np.copyto(bits, sign | number(infinity), where=overflows)
    np.copyto(bits, sign, where=underflows)
