"""How tests of the shape rules state a case: shapes as text, attributes by keyword.

Keywords are of type Any because most cases are spread from dictionaries.
"""

from typing import Any

import pytest

from hloipu_compiler.hlo.attributes.shape_text import parse_shape
from hloipu_compiler.inference.faults import ShapeFault
from hloipu_compiler.inference.rules import infer_shape
from hloipu_compiler.inference.site import ONE_DEVICE
from hloipu_compiler.ir.attributes import Attributes, ProgramShape
from hloipu_compiler.ir.shapes import without_layouts


def signature(text: str) -> ProgramShape:
    """Read `(f32[], f32[]) -> f32[]`."""
    parameters, result = text.split(" -> ")
    inside = parse_shape(parameters)
    return ProgramShape(getattr(inside, "elements", ()), parse_shape(result))


def infer(
    opcode: str,
    *operands: str,
    to: Any = None,
    programs: Any = None,
    devices: Any = ONE_DEVICE,
    **attributes: Any,
) -> str:
    """Return the inferred shape as text without layouts.

    `to` is the declared shape (None: the parser's view), `programs` maps computation names to
    signatures; attribute names are keywords.
    """
    named = {name: signature(text) for name, text in (programs or {}).items()}
    shape = infer_shape(
        opcode,
        tuple(map(parse_shape, operands)),
        Attributes(attributes),
        None if to is None else parse_shape(to),
        named.__getitem__,
        devices,
    )
    return str(without_layouts(shape))


def refuse(code: str, opcode: str, *operands: str, at: Any = None, **case: Any) -> ShapeFault:
    """Check that a case is refused with a code, pointing at an operand number or an attribute."""
    with pytest.raises(ShapeFault) as caught:
        infer(opcode, *operands, **case)
    fault = caught.value
    assert fault.code == code, fault
    if isinstance(at, int):
        assert fault.operand == at
    elif at is not None:
        assert fault.attribute == at
    assert fault.expected
    return fault
