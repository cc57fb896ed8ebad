"""State that counts: numbers to which each step adds the same."""

from collections.abc import Set

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.framework.constant_values import scalar_constant


def counts_by(entry: Computation, own: Set[int], result: int) -> float | None:
    """Return what is added to a number to make its new value; None where it is no constant."""
    x = entry.instructions[result]
    if x.opcode not in ("add", "subtract") or own.isdisjoint(x.operands):
        return None
    if not isinstance(x.shape, ArrayShape) or x.shape.element_count != 1:
        return None
    values = [scalar_constant(entry.instructions[i]) for i in x.operands]
    return next((float(x.item()) for x in values if x is not None and x.dtype.kind in "iuf"), None)
