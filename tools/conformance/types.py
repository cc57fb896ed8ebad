"""The element types of conformance cases, and the shapes that every family goes through."""

from tools.conformance.case import Dimensions

WIDE_FLOATS = ("f32", "f64")
HALF_FLOATS = ("f16", "bf16")
FLOATS = (*WIDE_FLOATS, *HALF_FLOATS)
FLOATS_8 = (
    "f8e5m2", "f8e4m3", "f8e4m3fn", "f8e4m3b11fnuz", "f8e3m4", "f8e5m2fnuz", "f8e4m3fnuz",
)  # fmt: skip
SCALES = ("f8e8m0fnu", "f4e2m1fn")
COMPLEX = ("c64", "c128")
SIGNED = ("s8", "s16", "s32", "s64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = (*SIGNED, *UNSIGNED)
PACKED = ("s4", "u4", "s2", "u2")
ARITHMETIC = (*FLOATS, *INTEGERS, *COMPLEX)
ALL = ("pred", *PACKED, *INTEGERS, *FLOATS, *FLOATS_8, *SCALES, *COMPLEX)
"""Every element type whose arrays jaxlib's buffers carry (not s1, u1, f6e2m3fn, f6e3m2fn)."""

RANKS: tuple[Dimensions, ...] = ((), (131,), (0, 3), (1, 1, 1), (2, 3, 1, 5), (2, 1, 3, 2, 3))
"""Ranks 0 to 5 with a zero-size, a one-element and non-divisible shapes."""
