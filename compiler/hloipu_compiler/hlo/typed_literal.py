"""`literal=` of custom calls: a shape and a literal, or a tuple of these."""

import re

from hloipu_compiler.hlo.lexer import BLANKS
from hloipu_compiler.hlo.literal_values import check_literal
from hloipu_compiler.hlo.shape_text import ShapeReader
from hloipu_compiler.hlo.text_fault import TextFault

ARRAY = re.compile(r"[a-z]\w*\s*\[[^\]]*+\]\s*(?:\{\s*[0-9:][^{}]*+\})?+", re.ASCII)
"""The shape before an array's value; as in XLA, `{` with a number after it is a layout."""


def check_typed_literal(text: str, shapes: ShapeReader) -> None:
    """Check a typed literal; TextFault where the shape is none or the value does not fit it.

    Of a tuple only the brackets are checked, which the grammar has done.
    """
    if text.startswith("("):
        return
    typed = ARRAY.match(text)
    if typed is None:
        raise TextFault("E0121", "a shape and a literal are expected", expected="s32[2]{0} {1, 2}")
    shape = shapes.read(typed[0].rstrip())
    blanks = BLANKS.match(text, typed.end())
    value = blanks.end() if blanks else typed.end()
    try:
        check_literal(text[value:], shape)
    except TextFault as fault:
        fault.offset += value
        raise
