"""Literal text to arrays in storage form; the only part of reading that imports numpy."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.hlo.literals.patterns import printed_form, without_comments
from hloipu_compiler.hlo.literals.rounding import PAYLOAD_BITS, integer_range, round_array
from hloipu_compiler.hlo.literals.tokens import Nan
from hloipu_compiler.hlo.literals.walk import ArrayWalk, Number
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.element_types import F32, F64, ElementType, Kind

Array = NDArray[np.generic]

_LARGEST_PLAIN = 1e18
"""Integers from 2**63 on wrap when XLA reads them, so larger numbers are left to the walk."""

_WHOLE_ZERO = re.compile(rb"-(0+)(?![\d.eE])")
"""XLA reads `-0` as an integer, which has no sign; `-0.0` is the negative zero."""

_BLANK_MARKS = bytes.maketrans(b"{}()", b"    ")


def from_printed_form(text: str, shape: ArrayShape) -> Array | None:
    """Return the values of a literal in printed form; None for any other, and where in doubt."""
    element_type = shape.element_type
    text = without_comments(text)
    if not shape.dimensions or not printed_form(text, shape, safe=False):
        return None
    plain = text.encode().translate(_BLANK_MARKS)
    if element_type.is_integer or element_type.kind is Kind.PREDICATE:
        return _integers(np.fromstring(plain, dtype=np.int64, sep=","), shape)
    doubles = np.fromstring(plain, dtype=np.float64, sep=",")
    if (np.signbit(doubles) & (doubles == 0)).any():
        plain = _WHOLE_ZERO.sub(rb" \1", plain)
        doubles = np.fromstring(plain, dtype=np.float64, sep=",")
    if not _plainly_sized(doubles, text):
        return None
    if element_type.is_complex:
        return _shaped(doubles.view(np.complex128).astype(element_type.storage), shape)
    rounded = round_array(doubles, element_type)
    if not (np.isfinite(rounded) | ~np.isfinite(doubles)).all():
        return None
    return _shaped(rounded, shape)


def _plainly_sized(doubles: NDArray[np.float64], text: str) -> bool:
    """Whether no number overflowed, and none is an integer that XLA wraps."""
    if "n" in text:
        if np.isinf(doubles).sum() != text.count("inf"):
            return False
        doubles = doubles[np.isfinite(doubles)]
    return bool(np.abs(doubles).max(initial=0.0) < _LARGEST_PLAIN)


def _integers(words: NDArray[np.int64], shape: ArrayShape) -> Array | None:
    if words.size == 0 or max(-int(words.min()), int(words.max())) >= 2**63 - 1:
        return None  # numpy saturates where XLA wraps
    storage = np.dtype(shape.element_type.storage)
    if shape.element_type.kind is Kind.PREDICATE:
        return _shaped(words != 0, shape)
    low, high = integer_range(shape.element_type)
    if words.min() < low or words.max() > high:
        return None
    return _shaped(words.astype(storage), shape)


def _shaped(values: Array, shape: ArrayShape) -> Array:
    values = values.reshape(shape.dimensions)
    values.flags.writeable = False
    return values


def from_walk(walk: ArrayWalk) -> Array:
    """Return the elements that a walk read; those left out at the end are zero, as in XLA."""
    shape, element_type = walk.shape, walk.shape.element_type
    count = shape.element_count
    if element_type.is_integer or element_type.kind is Kind.PREDICATE:
        words = np.zeros(count, np.int64)
        words[: len(walk.elements)] = [int(e) for e in walk.elements if isinstance(e, int)]
        storage = np.dtype(element_type.storage)
        elements = words != 0 if element_type.kind is Kind.PREDICATE else words.astype(storage)
        return _shaped(elements, shape)
    if not element_type.is_complex:
        numbers = [e for e in walk.elements if not isinstance(e, tuple)]
        return _shaped(_floats(numbers, count, element_type), shape)
    pairs = [e for e in walk.elements if isinstance(e, tuple)]
    part = F32 if element_type.name == "c64" else F64
    complex_elements = np.zeros(count, element_type.storage)
    complex_elements.real = _floats([real for real, _ in pairs], count, part)
    # XLA writes the real part's nan over the imaginary part.
    imaginary = [re if isinstance(re, Nan) else float(im) for re, im in pairs]
    complex_elements.imag = _floats(imaginary, count, part)
    return _shaped(complex_elements, shape)


def _floats(elements: Sequence[Number], count: int, element_type: ElementType) -> Array:
    # What is not written is zero bits, which in f8e8m0fnu are no zero.
    fill = 2.0**-127 if element_type.name == "f8e8m0fnu" else 0.0
    doubles = np.full(count, fill)
    doubles[: len(elements)] = [float(e) for e in elements]
    rounded = np.array(round_array(doubles, element_type))
    payload_bits = PAYLOAD_BITS.get(element_type.name)
    if payload_bits is not None:
        words = rounded.view(np.uint64 if rounded.dtype == np.float64 else np.uint32)
        for i, e in enumerate(elements):
            if isinstance(e, Nan):
                words[i] = nan_bits(e, payload_bits, rounded.dtype.itemsize)
    return rounded


def nan_bits(nan: Nan, payload_bits: int, itemsize: int) -> int:
    """Return the stored word of a nan; a narrow payload stands at the top of the mantissa."""
    exponent, mantissa_bits = (0x7FF, 52) if itemsize == 8 else (0xFF, 23)
    payload = 1 << (payload_bits - 1) if nan.is_plain else nan.payload
    sign_bit = 8 * itemsize - 1
    return (
        int(nan.negative) << sign_bit
        | exponent << mantissa_bits
        | payload << (mantissa_bits - payload_bits)
    )
