"""Recognise literals in printed form with one regular expression.

Recognition is one-sided: what is recognised is certainly what XLA accepts; what is not may be.
"""

import re
from functools import lru_cache

from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.element_types import ElementType, Kind

_COMMENT = re.compile(r"/\*[^*\0]*\*/")
_NO_MARK = b"0123456789.eE+-nafitrusl \t\r\n"
"""All characters of printed numbers and blanks; what is left are braces, parentheses, commas."""

LONGEST_INTEGER = 18
"""Digits that surely fit a signed 64-bit word; XLA wraps or refuses what does not."""

_SAFE_DIGITS = {8: 2, 16: 4, 32: 9, 64: LONGEST_INTEGER}
_DECIMAL = r"-?+\d{1,%d}+(?>(?:\.\d*+)?)(?>(?:[eE](?:-\d++|\+?+%s))?)"
_NONFINITE = "|-?+inf|nan"


def _safe_element(element_type: ElementType) -> str | None:
    """Return a pattern of elements that are in range for sure; None where there is no such form."""
    if element_type.kind is Kind.PREDICATE:
        return r"\d{1,18}+|(?:true|false)"
    if element_type.is_integer and element_type.bits >= 8:
        sign = "-?+" if element_type.bits == 64 or element_type.kind is Kind.SIGNED else ""
        return rf"{sign}\d{{1,{_SAFE_DIGITS[element_type.bits]}}}+"
    if element_type.name in ("f32", "f64", "bf16"):
        return _DECIMAL % (LONGEST_INTEGER, r"[01]?\d") + _NONFINITE
    if element_type.name == "f16":
        return _DECIMAL % (4, "0?0") + _NONFINITE
    if element_type.is_complex:
        part = _DECIMAL % (LONGEST_INTEGER, r"[01]?\d")
        return rf"\([ ]*{part}[ ]*,[ ]*{part}[ ]*\)"
    return None


def _any_element(element_type: ElementType) -> str | None:
    """Return a pattern of elements that numpy reads as XLA does, in range or not."""
    if element_type.is_complex:
        part = _DECIMAL % (LONGEST_INTEGER, r"\d++")
        return rf"\([ ]*{part}[ ]*,[ ]*{part}[ ]*\)"
    if element_type.is_integer or element_type.kind is Kind.PREDICATE:
        return r"-?+\d{1,18}+"
    return _DECIMAL % (LONGEST_INTEGER, r"\d++") + _NONFINITE


@lru_cache(maxsize=64)
def _forms(element_type: ElementType, *, safe: bool) -> tuple[re.Pattern[str], ...] | None:
    element = _safe_element(element_type) if safe else _any_element(element_type)
    if element is None:
        return None
    blank = r"[ \t\r\n]*+"
    scalar = rf"{blank}(?:{element}){blank}"
    array = (
        rf"[ \t\r\n{{]*+(?:{element})(?:[ \t\r\n}}]*+,[ \t\r\n{{]*+(?:{element}))*+[ \t\r\n}}]*+"
    )
    return re.compile(scalar, re.ASCII), re.compile(array, re.ASCII)


def without_comments(text: str) -> str:
    """Return the text with `/*…*/` comments blanked, as printers put them into arrays of rank 4."""
    return _COMMENT.sub(" ", text) if "/" in text else text


def printed_form(text: str, shape: ArrayShape, *, safe: bool = True) -> bool:
    """Whether a literal is in printed form, complete for its shape, and (if `safe`) in range."""
    forms = _forms(shape.element_type, safe=safe)
    if forms is None:
        return False
    scalar, array = forms
    if not shape.dimensions:
        return scalar.fullmatch(text) is not None
    text = without_comments(text)
    return has_marks_of(text, shape) and array.fullmatch(text) is not None


def has_marks_of(text: str, shape: ArrayShape) -> bool:
    """Whether the braces, parentheses and commas are those of a full array of the shape."""
    if not text.isascii() or 0 in shape.dimensions:
        return False
    marks = text.encode().translate(None, _NO_MARK)
    length = 3 if shape.element_type.is_complex else 0
    for size in reversed(shape.dimensions):
        length = 2 + size * length + max(0, size - 1)
    # The length is compared first: a short text may claim a shape of any size.
    return len(marks) == length and marks == _marks(shape.dimensions, shape.element_type.is_complex)


def _marks(dimensions: tuple[int, ...], is_complex: bool) -> bytes:
    marks = b"(,)" if is_complex else b""
    for size in reversed(dimensions):
        marks = b"{" + b",".join([marks] * size) + b"}"
    return marks
