"""Converts between users' arrays (numpy, ml_dtypes) and the kernels' storage form."""

from functools import lru_cache
from typing import Any

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES, GRIDS, Kind
from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.core.blocks import Array, blocks, like
from hloipu_runtime.kernels.core.rounding import is_narrow, round_to

_ML_DTYPES: dict[str, str] = {
    "s1": "int1",
    "u1": "uint1",
    "s2": "int2",
    "u2": "uint2",
    "s4": "int4",
    "u4": "uint4",
    "bf16": "bfloat16",
    "f8e5m2": "float8_e5m2",
    "f8e4m3": "float8_e4m3",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e4m3b11fnuz": "float8_e4m3b11fnuz",
    "f8e3m4": "float8_e3m4",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e8m0fnu": "float8_e8m0fnu",
    "f4e2m1fn": "float4_e2m1fn",
    "f6e2m3fn": "float6_e2m3fn",
    "f6e3m2fn": "float6_e3m2fn",
}
"""Element type -> its name in ml_dtypes, which few programs need."""


@lru_cache(maxsize=64)
def storage_dtype(element_type: str) -> np.dtype[Any]:
    """Return the numpy dtype of arrays in storage form; tokens and opaque values have none."""
    named = ELEMENT_TYPES[element_type].storage
    if not named:
        raise UsageError(
            "E3106",
            f"element type {element_type} holds no numbers, so there is no array of it",
            hint="tokens and opaque values are passed as None",
        )
    return np.dtype(named)


@lru_cache(maxsize=64)
def user_dtype(element_type: str) -> np.dtype[Any]:
    """Return the numpy or ml_dtypes dtype in which users see values of `element_type`."""
    if element_type in _ML_DTYPES:
        import ml_dtypes

        scalar: type[Any] = getattr(ml_dtypes, _ML_DTYPES[element_type])
        return np.dtype(scalar)
    if element_type == "f16":
        return np.dtype(np.float16)
    return storage_dtype(element_type)


def cast_scalar(array: Array, wanted: np.dtype[Any]) -> Array | None:
    """Return an array of no dimensions in a user's type; None where that cannot hold the number."""
    if array.dtype == wanted:
        return array
    with np.errstate(all="ignore"):
        cast = array.astype(wanted)
    if array.dtype.kind in "iu" and not _is_floating(wanted):
        return cast if int(cast) == int(array) else None
    if array.dtype.kind in "iuf" and abs(array) > 1 and np.isfinite(array):
        return cast if np.isfinite(cast.astype(np.complex128)) else None
    return cast


def _is_floating(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fc" or (dtype.kind == "V" and "int" not in dtype.name)


@lru_cache(maxsize=64)
def bits_dtype(element_type: str) -> np.dtype[Any]:
    """Return the unsigned dtype that holds one element's bits, in its low end if wider."""
    width = ELEMENT_TYPES[element_type].byte_width
    if width not in (1, 2, 4, 8):
        raise UsageError(
            "E3106",
            f"the bits of one {element_type} fit no unsigned integer",
            hint="use a type of at most 64 bits",
        )
    return np.dtype(f"u{width}")


def to_storage(array: Any, element_type: str) -> Array:
    """Return a user's array in storage form; without a copy where the two are the same.

    Accepted are the user dtype and the storage dtype of `element_type`. Values in the storage
    dtype that are not values of the element type are brought to it: floats are rounded, integers
    wrap. Any other dtype raises `UsageError` E3106.
    """
    array = np.asarray(array)
    dtype, stored = array.dtype, storage_dtype(element_type)
    if dtype == stored:
        if dtype is not stored:  # unpickled arrays bring an equal one; kernels ask for this one
            array = array.view(stored)
        if is_narrow(element_type):
            return round_to(array, element_type)
        return wrap(array, element_type) if ELEMENT_TYPES[element_type].bits < 8 else array
    if dtype == user_dtype(element_type):
        if is_narrow(element_type):
            return _decode(array, element_type)
        return np.asarray(array.astype(storage_dtype(element_type)))
    raise UsageError(
        "E3106",
        f"an array of dtype {dtype} was given where {element_type} is expected",
        hint=f"convert it to {user_dtype(element_type)} first",
    )


def from_storage(array: Array, element_type: str) -> Array:
    """Return an array in storage form as the user's dtype; without a copy where they agree."""
    dtype = user_dtype(element_type)
    if array.dtype == dtype:
        return array
    if not is_narrow(element_type):
        return array.astype(dtype)
    if element_type == "f16":
        with np.errstate(all="ignore"):
            return array.astype(np.float16)
    return to_bits(array, element_type).view(dtype)


def to_bits(array: Array, element_type: str) -> Array:
    """Return each element's bits as an unsigned integer (unused high bits are zero)."""
    element = ELEMENT_TYPES[element_type]
    bits = bits_dtype(element_type)
    if not is_narrow(element_type):
        if element.bits < 8:
            return np.asarray(array.view(np.uint8) & np.uint8((1 << element.bits) - 1))
        if not element.is_complex:
            return array.view(bits)
        return np.ascontiguousarray(array).view(bits).reshape(array.shape)
    if element_type == "f16":
        with np.errstate(all="ignore"):
            return array.astype(np.float16).view(np.uint16)
    codes = like(array, bits)
    for target, piece in blocks(codes, array):
        # A value of any 8-bit format is a bf16 value: its upper 16 bits say all.
        upper = (piece.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        np.copyto(target, upper if element_type == "bf16" else _encoder(element_type)[upper])
    return codes


def from_bits(bits: Array, element_type: str) -> Array:
    """Return the storage form of values given by their bits, as `to_bits` yields them."""
    element = ELEMENT_TYPES[element_type]
    if element.kind is Kind.PREDICATE:
        return np.asarray(bits & 1).astype(np.bool_)
    if element.bits < 8 and not element.is_float:
        return wrap(bits.view(storage_dtype(element_type)), element_type)
    if is_narrow(element_type):
        return _decode(bits, element_type)
    if element.is_complex:
        return np.ascontiguousarray(bits).view(storage_dtype(element_type)).reshape(bits.shape)
    return bits.view(storage_dtype(element_type))


def wrap(array: Array, element_type: str, out: Array | None = None) -> Array:
    """Bring 8-bit integers into the range of s1 to u4 by dropping high bits."""
    element = ELEMENT_TYPES[element_type]
    if element.kind is Kind.UNSIGNED:
        out = like(array) if out is None else out
        return np.bitwise_and(array, np.uint8((1 << element.bits) - 1), out=out)
    shift = np.int8(8 - element.bits)
    out = like(array) if out is None else out
    np.left_shift(array, shift, out=out)
    return np.right_shift(out, shift, out=out)


def _decode(array: Array, element_type: str) -> Array:
    """Widen codes of a narrow float (its user dtype, or its bits) to float32."""
    if element_type == "f16":
        return array.view(np.float16).astype(np.float32)
    bits = array.view(bits_dtype(element_type))
    if element_type == "bf16":
        widened = like(bits, np.dtype(np.uint32))
        np.left_shift(bits, np.uint32(16), out=widened)
        return widened.view(np.float32)
    return np.asarray(np.take(_decoder(element_type), bits, mode="clip"))


@lru_cache(maxsize=64)
def _decoder(element_type: str) -> Array:
    """Return the float32 value of every code of an 8-bit or narrower float."""
    element = ELEMENT_TYPES[element_type]
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    with np.errstate(all="ignore"):
        table: Array = codes.view(user_dtype(element_type)).astype(np.float32)
    if _has_nan_payloads(element_type):
        # ml_dtypes makes all NaNs one; data movement must bring every code back.
        wide = codes.astype(np.uint32)
        bits = (wide >> 7) << 31 | 0x7F800000 | (wide << (23 - element.mantissa_bits) & 0x7FFFFF)
        table = np.where(np.isnan(table), bits.view(np.float32), table)
    return table


@lru_cache(maxsize=64)
def _encoder(element_type: str) -> Array:
    """Return the code for every bf16 bit pattern; only patterns on the grid are ever looked up."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    values = patterns.view(user_dtype("bf16"))
    with np.errstate(all="ignore"):
        table: Array = values.astype(user_dtype(element_type)).view(np.uint8)
        nans = np.isnan(values)
    if _has_nan_payloads(element_type):
        element = ELEMENT_TYPES[element_type]
        quiet = 1 << (element.mantissa_bits - 1)
        payload = patterns >> (7 - element.mantissa_bits) & (2 * quiet - 1)
        payload[payload == 0] = quiet
        exponent = ((1 << element.exponent_bits) - 1) << element.mantissa_bits
        codes = (patterns >> 15 << 7 | exponent | payload).astype(np.uint8)
        table = np.where(nans, codes, table)
    return table


def _has_nan_payloads(element_type: str) -> bool:
    """Whether an 8-bit format has infinities and several NaNs, as IEEE 754 has them."""
    return element_type in GRIDS and GRIDS[element_type].overflow == "infinity"
