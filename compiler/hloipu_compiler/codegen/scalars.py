"""Constants of the graph: numbers as exact text, arrays in storage form."""

from hloipu_compiler.hlo.literal_values import literal_array
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.codelets.constants import text_of
from hloipu_runtime.program.program import Array


def constant_arrays(instruction: Instruction) -> list[Array]:
    """Return the leaves of a constant, read-only, in storage form.

    Raises ElidedConstantError where the values were elided (`{...}`): they do not exist.
    """
    literal = instruction.literal or Literal()
    leaves = _flat(literal_array(literal, instruction.shape, instruction.name))
    for leaf in leaves:
        leaf.flags.writeable = False
    return leaves


def scalar_text(instruction: Instruction) -> str:
    """Return the exact text of a constant number."""
    if not isinstance(instruction.shape, ArrayShape):
        raise TypeError(f"{instruction.name} is no number")
    (array,) = constant_arrays(instruction)
    return text_of(array, instruction.shape.element_type.name)


def _flat(value: object) -> list[Array]:
    if isinstance(value, list | tuple):
        return [leaf for element in value for leaf in _flat(element)]
    return [] if value is None else [value]  # type: ignore[list-item]
