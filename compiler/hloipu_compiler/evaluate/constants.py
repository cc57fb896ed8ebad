"""Values of constants, read once while planning."""

from collections.abc import Sequence

from hloipu_compiler.evaluate.plan import TOKEN_VALUE, Array
from hloipu_compiler.hlo.literal_values import literal_array
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.literals import Literal
from hloipu_runtime.errors import UnsupportedError


def constant_leaves(instruction: Instruction) -> Sequence[Array]:
    """Return the leaves of a constant in storage form, read-only.

    Raises UnsupportedError where the values were elided (`{...}`): they do not exist.
    """
    literal = instruction.literal or Literal()
    if literal.is_elided:
        raise UnsupportedError(
            "E0454",
            f"constant {instruction.name!r} of shape {instruction.shape} has no values: "
            "they were left out when the text was printed",
            hint="print the module with its large constants (print_large_constants=True, "
            "--xla_dump_large_constants), or let them be filled: --fill-elided",
        )
    leaves = _flat(literal_array(literal, instruction.shape))
    for leaf in leaves:
        leaf.flags.writeable = False
    return leaves


def _flat(value: object) -> list[Array]:
    if isinstance(value, list | tuple):
        return [leaf for element in value for leaf in _flat(element)]
    return [TOKEN_VALUE] if value is None else [value]  # type: ignore[list-item]
