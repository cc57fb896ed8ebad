"""Constants of expressions as exact text, and back.

Integers and `true`/`false` as they read, floats in hexadecimal (Python's `float.hex`, C's `%a`),
`inf` and `-inf`; a NaN by its bits in storage form (`nan:0x7fc00000`), for its sign and payload
count where data is only moved; complex numbers as two floats with a comma between.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from hloipu_runtime.codelets.core.expression_form import Node
from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.core.storage import storage_dtype, to_storage, user_dtype

Array = np.ndarray[Any, Any]


def text_of(value: Array, element_type: str) -> str:
    """Return the exact text of one value in storage form."""
    element = ELEMENT_TYPES[element_type]
    scalar = np.asarray(value, storage_dtype(element_type)).reshape(())
    if element.kind is Kind.PREDICATE:
        return "true" if scalar else "false"
    if element.is_complex:
        return f"{_float_text(scalar.real)},{_float_text(scalar.imag)}"
    return _float_text(scalar) if element.is_float else str(int(scalar))


@lru_cache(maxsize=1024)
def number_node(number: float, element_type: str) -> Node:
    """Return an expression's constant: the value of its type that is nearest to a number.

    Raises UsageError E3092 for a fraction, or a number out of range, in a type of integers.
    """
    element = ELEMENT_TYPES[element_type]
    if element.is_float or element.is_complex:
        rounded = np.asarray(number, user_dtype(element_type))
        text = text_of(to_storage(rounded, element_type), element_type)
    elif element.kind is Kind.PREDICATE:
        text = "true" if number else "false"
    else:
        text = str(int(number)) if number == int(number) else repr(number)
        value_of(text, element_type)
    return text_node(text, element_type)


def text_node(text: str, element_type: str) -> Node:
    """Return an expression's constant of which `text_of` has given the text."""
    return Node("constant", (), element_type, (("value", text),))


def value_of(text: str, element_type: str) -> Array:
    """Return the value of a text, read-only, without dimensions; UsageError E3092 if it has none.

    Integers beyond the type's range and floats that it does not hold are not brought to it.
    """
    element = ELEMENT_TYPES[element_type]
    dtype = storage_dtype(element_type)
    try:
        if element.kind is Kind.PREDICATE:
            value = np.array({"true": True, "false": False}[text])
        elif element.is_complex:
            real, imag = text.split(",")
            value = np.empty((), dtype)
            value.real = _float_value(real, value.real.dtype)
            value.imag = _float_value(imag, value.imag.dtype)
        elif element.is_float:
            value = _float_value(text, dtype)
        else:
            value = np.array(int(text), dtype)
    except (ValueError, KeyError, OverflowError) as error:
        raise UsageError(
            "E3092",
            f"{text[:40]!r} is not a value of type {element_type}",
            hint="write integers plainly, floats in hexadecimal, true or false, re,im",
        ) from error
    value.flags.writeable = False
    return value


def _float_text(value: Array) -> str:
    number = float(value)
    if math.isnan(number):
        bits = int(value.view(np.dtype(f"u{value.dtype.itemsize}")))
        return f"nan:{bits:#x}"
    return number.hex()


def _float_value(text: str, dtype: np.dtype[Any]) -> Array:
    if text.startswith("nan:"):
        bits = np.array(int(text[4:], 16), np.dtype(f"u{dtype.itemsize}"))
        return bits.view(dtype)
    if text.lstrip("+-")[:2] not in ("0x", "in"):
        # `float.fromhex` would read decimal digits as hexadecimal ones.
        raise ValueError(f"{text!r} is neither hexadecimal nor infinite")
    return np.array(float.fromhex(text), dtype)
