"""Literals as printers wrote them until December 2018, rewritten to today's form.

Arrays of rank 2 and more, and tuples, then carried their shape inside (`f32[2,2] { { 1, … } }`),
and predicate arrays had no commas (`{101}`). A shape is blanked, which keeps the offsets.
"""

import re

from hloipu_compiler.ir.shapes import ArrayShape, Shape
from hloipu_runtime.element_types import ELEMENT_TYPES, Kind

_SHAPE = rf"(?:{'|'.join(ELEMENT_TYPES)})\[[\d, ]*\](?:\{{[\d, ]*\}})?"
_INNER_SHAPE = re.compile(rf"(?<![\w.%-]){_SHAPE}(?=[ \t\r\n]*[\w{{(-])")
_TUPLE_SHAPE = re.compile(
    rf"[ \t\r\n]*\((?:[ ]*(?:/\*[^*]*\*/)?[ ]*{_SHAPE},?)*[ ]*\)(?=[ \t\r\n]*\()"
)
_DIGIT_RUN = re.compile(r"\{[ ]*[01]{2,}[ ]*\}")


def modern_text(text: str, shape: Shape) -> str:
    """Return a literal's text in today's form; the same string where it already is.

    Only a text that today's parser refuses is ever changed: no type name and no unseparated
    predicate row stands in a valid one.
    """
    if "[" in text:
        text = _TUPLE_SHAPE.sub(_blank, text)
        text = _INNER_SHAPE.sub(_blank, text)
    if _rows_of_digits(shape):
        text = _DIGIT_RUN.sub(_separated, text)
    return text


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _rows_of_digits(shape: Shape) -> bool:
    """Whether the shape is a predicate array with rows of two and more."""
    return (
        isinstance(shape, ArrayShape)
        and shape.element_type.kind is Kind.PREDICATE
        and bool(shape.dimensions)
        and shape.dimensions[-1] > 1
    )


def _separated(match: re.Match[str]) -> str:
    return "{" + ",".join(match[0].strip("{} ")) + "}"
