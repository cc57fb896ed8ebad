"""Read one value from an instruction's frontend attributes."""

from hloipu_compiler.hlo.attributes.frontend_attributes import read_frontend_attributes
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.graph import Instruction


def frontend_value(instruction: Instruction, key: str) -> str | None:
    """Return the value of a frontend attribute, None where it is absent."""
    raw = instruction.attributes.text("frontend_attributes")
    if key not in raw:
        return None
    try:
        return read_frontend_attributes(raw).get(key)
    except TextFault:
        return None  # the parser reports texts that it cannot read
