"""Constant numbers of the graph as exact text."""

from functools import lru_cache

from hloipu_compiler.hlo.literals.values import ElidedConstantError
from hloipu_compiler.interpret.planning.constants import literal_leaves
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.codelets.core.constants import text_of
from hloipu_runtime.element_types import ELEMENT_TYPES


def scalar_text(instruction: Instruction) -> str:
    """Return the exact text of a constant number."""
    if not isinstance(instruction.shape, ArrayShape):
        raise TypeError(f"{instruction.name} is not a number")
    literal = instruction.literal or Literal()
    if literal.is_elided:
        raise ElidedConstantError(instruction.name)
    return _text_of(literal, instruction.shape)


@lru_cache(1 << 10)
def _text_of(literal: Literal, shape: ArrayShape) -> str:
    """Return the text of a number; the same few are read in op after op."""
    (array,) = literal_leaves(literal, shape)
    return text_of(array, shape.element_type.name)


def zero_text(kind: str) -> str:
    """Return the exact text of zero; minus zero for floats, which changes no sum."""
    element = ELEMENT_TYPES[kind]
    if element.is_complex:
        return "-0x0.0p+0,-0x0.0p+0"
    return "-0x0.0p+0" if element.is_float else "false" if kind == "pred" else "0"
