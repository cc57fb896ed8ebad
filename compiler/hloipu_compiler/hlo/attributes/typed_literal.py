"""`literal=` of custom calls: a shape and a literal, or a tuple of these."""

import re

from hloipu_compiler.hlo.attributes.shape_text import ShapeReader
from hloipu_compiler.hlo.literals.values import check_literal
from hloipu_compiler.hlo.syntax.lexer import BLANKS
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.shapes import ArrayShape

ARRAY = re.compile(r"[a-z]\w*\s*\[[^\]]*+\]\s*(?>(?:\{\s*[0-9:][^{}]*+\})?)", re.ASCII)
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
    layout = shape.layout if isinstance(shape, ArrayShape) else None
    if layout is not None and sorted(layout.minor_to_major) != list(
        range(len(layout.minor_to_major))
    ):
        # Elsewhere nobody looks at such a layout; here XLA lays values out by it and dies.
        raise TextFault(
            "E0121", f"layout {layout} is no order of the dimensions", offset=typed[0].find("{")
        )
    blanks = BLANKS.match(text, typed.end())
    value = blanks.end() if blanks else typed.end()
    try:
        check_literal(text[value:], shape)
    except TextFault as fault:
        fault.offset += value
        raise
