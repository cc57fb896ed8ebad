"""Statements that need more than their operands' positions: checks across operands, rewrites."""

from typing import TYPE_CHECKING

from hloipu_compiler.hlo.statements import Statement

if TYPE_CHECKING:
    from hloipu_compiler.hlo.build_computation import ComputationBuilder

FAILED = -1
"""Position of a statement that could not be built; what uses it is not reported again."""


def add_special(
    builder: "ComputationBuilder", statement: Statement, operands: tuple[int, ...]
) -> int:
    """Check and add a statement of an opcode with rules of its own; return its position."""
    shape = statement.shape or builder.infer(statement, statement.prepared, operands)
    if shape is None:
        return FAILED
    return builder.add(statement, shape, operands)
