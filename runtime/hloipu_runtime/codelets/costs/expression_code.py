"""Code bytes of vertices generated for whole expressions: assumed, no library has such vertices.

Assumed: such code has the frame of a vertex of poplibs that workers share. It loads, computes and
stores in a loop over vectors, and once more for what fills none, an instruction a slot. Ops that
take more slots than `_LONGEST` call code that their vertices share.
"""

from collections.abc import Iterable

from hloipu_runtime.codelets.core.code_sizes import SHARED_FRAME_BYTES
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.costs.elementwise_rates import rate_of

_INSTRUCTION_BYTES = 4
_COPIES = 2
_LONGEST = 32
_IN_FRAME = 3
"""Operands and results that the frame moves."""
_LOOP_BYTES = 64
"""Of a loop over rows within the frame: its beginning, end and what it moves."""
_REDUCTION_BYTES = 128
"""Of a reduction of rows: accumulators, how workers' parts meet, what it ends with."""


def single_op(expression: Expression) -> str:
    """Return the op of an expression of one, else nothing."""
    ops = [node.op for node in expression.nodes if node.op != "constant"]
    return ops[0] if len(ops) == 1 and len(expression.results) == 1 else ""


def expression_bytes(
    expressions: Iterable[Expression], moved: int, *, loops: int = 0, reductions: int = 0
) -> int:
    """Return the code of expressions in one vertex, of so many operands and results."""
    slots = 2 * max(0, moved - _IN_FRAME) + sum(
        _slots(expression, n) for expression in expressions for n in range(len(expression.nodes))
    )
    code_bytes = SHARED_FRAME_BYTES + _COPIES * _INSTRUCTION_BYTES * slots
    return code_bytes + loops * _LOOP_BYTES + reductions * _REDUCTION_BYTES


def _slots(expression: Expression, number: int) -> int:
    """Return the instructions of a node, without loads and stores; a constant is loaded once."""
    node = expression.nodes[number]
    if node.op in ("constant", "copy") or not node.arguments:
        return 1
    op = f"compare-{dict(node.parameters)['direction']}" if node.op == "compare" else node.op
    rate = rate_of(op, expression.type_of(node.arguments[0]))
    slots = rate.cycles - (len(node.arguments) + 1 if rate.complete else 0)
    return min(max(1, slots), _LONGEST)
