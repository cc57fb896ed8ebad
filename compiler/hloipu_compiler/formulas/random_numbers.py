"""Random numbers from a seed, reproducible.

Which numbers a seed gives differs from machine to machine; here they come from Threefry
(`rng-bit-generator`), with the seed as its key.
"""

import math
from collections.abc import Sequence

from hloipu_compiler.formulas.call import Call
from hloipu_compiler.formulas.text import Value

FRACTION_BITS = 8
"""Bits of 32 that are dropped, so that the rest are a float's 24."""


def random_bits(call: Call, seed: Value, count: int) -> Value:
    """Return `count` random u32 from a seed of two numbers."""
    call.need(seed.dims == (2,), "a seed is two numbers")
    return numbered_bits(seed, count, seed.text.full("u64", (1,), 0))


def numbered_bits(seed: Value, count: int, number: Value) -> Value:
    """Return `count` random u32 of a seed's stream, from position u64[1] on."""
    text = seed.text
    if seed.kind in ("s32", "u32"):
        key = text.add("bitcast-convert", "u32", (2,), seed.name) if seed.kind == "s32" else seed
    else:
        key = seed.converted("u32")
    wide = key.converted("u64")
    low, high = (wide.sliced(0, n, n + 1).reshaped(()) for n in (0, 1))
    mixed = (low + high * text.number("u64", 2**32)).reshaped((1,))
    state = mixed.concatenated([number], 0)
    op = f"rng-bit-generator({state.name}), algorithm=rng_three_fry"
    return text.several([("u64", (2,)), ("u32", (count,))], op)[1]


def fraction(bits: Value) -> Value:
    """Return f32 from 0 up to, and without, 1 of random u32."""
    shift = bits.text.full("u32", bits.dims, FRACTION_BITS)
    mantissas = bits.binary("shift-right-logical", shift).converted("f32")
    return mantissas * 2.0 ** (FRACTION_BITS - 32)


def below(call: Call, seed: Value, dims: Sequence[int], share: float) -> Value:
    """Return truth values of a seed, of which such a share is true."""
    drawn = fraction(random_bits(call, seed, math.prod(dims)))
    return drawn.compared("LT", share).reshaped(dims)
