"""Round doubles to an element type as XLA's parser does, one value or an array at a time.

XLA reads every number as a double and casts. f16 and bf16 are cast by way of f32 (Eigen), so they
round twice; the smaller floats are rounded once. Source: openxla/xla
`xla/hlo/parser/hlo_parser.cc`.
"""

import math
import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from hloipu_runtime.element_types import ElementType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PAYLOAD_BITS = {"f64": 52, "f32": 23, "f16": 10, "bf16": 7, "f8e5m2": 2, "f8e4m3": 3, "f8e3m4": 4}
"""Types whose nans carry a payload, and how wide; other floats have one nan per sign, or none."""


def small_float_dtype(element_type: ElementType) -> "np.dtype[np.generic]":
    """Return the ml_dtypes dtype of a float of at most 8 bits."""
    import ml_dtypes  # numpy comes with it, which most texts never need
    import numpy as np

    scalar_type: type = getattr(ml_dtypes, f"float{element_type.name[1]}_{element_type.name[2:]}")
    return np.dtype(scalar_type)


def round_value(value: float, element_type: ElementType) -> float:
    """Return a double rounded to a float type; infinite or nan where it overflows."""
    name = element_type.name
    if name == "f64":
        return value
    if element_type.bits <= 8:
        return _round_small(value, element_type)
    single = _round_single(value)
    if name == "f32" or not math.isfinite(single):
        return single
    if name == "f16":
        try:
            half: float = struct.unpack("<e", struct.pack("<e", single))[0]
        except OverflowError:
            return math.copysign(math.inf, single)
        return half
    bits: int = struct.unpack("<I", struct.pack("<f", single))[0]
    bits += 0x7FFF + (bits >> 16 & 1)
    brain: float = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]
    return brain


def _round_single(value: float) -> float:
    try:
        single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return single


@lru_cache(maxsize=4096)
def _round_small(value: float, element_type: ElementType) -> float:
    import numpy as np

    return float(_small_floats(np.array([value]), element_type)[0])


def round_array(values: "NDArray[np.float64]", element_type: ElementType) -> "NDArray[np.generic]":
    """Return doubles rounded to a float type, in its storage form; overflow gives inf or nan."""
    import numpy as np

    name = element_type.name
    if name == "f64":
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        if element_type.bits <= 8:
            return _small_floats(values, element_type)
        single = values.astype(np.float32)
        if name == "f16":
            return single.astype(np.float16).astype(np.float32)
    if name == "bf16":
        bits = single.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(
            0xFFFF0000
        )
        return np.where(np.isfinite(single), rounded.view(np.float32), single)
    return single


def _small_floats(
    values: "NDArray[np.float64]", element_type: ElementType
) -> "NDArray[np.float32]":
    """Return doubles rounded once to a float of at most 8 bits, in f32.

    ml_dtypes casts arrays of doubles by way of f32. Rounding to odd on that way, which keeps a last
    bit for whatever was cut off, makes the second rounding the only one that counts (Boldo and
    Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
        bits = single.view(np.int32)
        even = (bits & 1 == 0) & (single != values) & ~np.isnan(values)
        bits[even] += np.where(np.abs(single[even]) < np.abs(values[even]), 1, -1).astype(np.int32)
        return single.astype(small_float_dtype(element_type)).astype(np.float32)


def integer_range(element_type: ElementType) -> tuple[int, int]:
    """Return the range of the 64-bit integers that an integer type takes.

    The parser holds every integer as a signed 64-bit word, so u64 takes all of them.
    """
    bits = element_type.bits
    if bits == 64:
        return -(2**63), 2**63 - 1
    if element_type.name[0] == "u":
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
