"""Constant numbers of the graph as exact text."""

from hloipu_compiler.evaluate.constants import constant_leaves
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.codelets.constants import text_of


def scalar_text(instruction: Instruction) -> str:
    """Return the exact text of a constant number."""
    if not isinstance(instruction.shape, ArrayShape):
        raise TypeError(f"{instruction.name} is no number")
    (array,) = constant_leaves(instruction)
    return text_of(array, instruction.shape.element_type.name)
