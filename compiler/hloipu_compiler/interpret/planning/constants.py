"""Values of constants, read once while planning."""

from collections.abc import Sequence

from hloipu_compiler.hlo.literals.values import literal_array
from hloipu_compiler.interpret.planning.plan import TOKEN_VALUE, Array
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import Shape


def constant_leaves(instruction: Instruction) -> Sequence[Array]:
    """Return the leaves of a constant in storage form, read-only.

    Raises ElidedConstantError where the values were elided (`{...}`): they do not exist.
    """
    return literal_leaves(instruction.literal or Literal(), instruction.shape, instruction.name)


def literal_leaves(literal: Literal, shape: Shape, name: str = "") -> Sequence[Array]:
    """Return the leaves of a literal of a shape in storage form, read-only.

    Raises ElidedConstantError naming the instruction `name` where the values were elided.
    """
    leaves = _flat(literal_array(literal, shape, name))
    for leaf in leaves:
        leaf.flags.writeable = False
    return leaves


def _flat(value: object) -> list[Array]:
    if isinstance(value, list | tuple):
        return [leaf for element in value for leaf in _flat(element)]
    return [TOKEN_VALUE] if value is None else [value]  # type: ignore[list-item]
