"""Cycles of x + s * y, which popops has a vertex for.

Formula: graphcore/poplibs: lib/popops/PerformanceEstimation.cpp,
getScaledArithmeticSupervisorCycleEstimate, without constraints on memory.
"""

from collections.abc import Sequence

from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.costs.elementwise_rates import vector_elements
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import shared_vertex_cycles
from hloipu_runtime.machine.model import Machine

_SUPERVISOR = 21 + 11 + 13 + 12 + 6
_SUBTRACT = 7
_WORKER = 16 + 6 + 3
"""Prologue, around the loop, and out again."""
_LAST = 7
"""Elements that fill no vector."""
_INNER = 3
"""Slots of a vector: two loads, a store, the arithmetic beside them."""


def scaled_add_cycles(
    machine: Machine,
    expression: Expression,
    nodes: Sequence[Node],
    scalars: frozenset[int],
    elements: int,
) -> int | None:
    """Return the cycles of an expression that is a scaled addition; None if it is none.

    `scalars` are operands that are one number.
    """
    if not _is_scaled_add(expression, nodes, scalars):
        return None
    vector = vector_elements(nodes[1].element_type)
    vectors = over(over(elements, vector), machine.tile.worker_contexts)
    supervisor = _SUPERVISOR + (_SUBTRACT if nodes[1].op == "subtract" else 0)
    return shared_vertex_cycles(machine, supervisor, _WORKER + _LAST + _INNER * max(0, vectors - 1))


def _is_scaled_add(expression: Expression, nodes: Sequence[Node], scalars: frozenset[int]) -> bool:
    if len(nodes) != 2 or len(expression.operand_types) != 3 or len(expression.nodes) != 2:
        return False
    product, total = nodes
    made = len(expression.operand_types)
    if product.op != "multiply" or total.op not in ("add", "subtract"):
        return False
    if total.element_type not in ("f32", "f16") or {*expression.operand_types} != {
        total.element_type
    }:
        return False
    scales = [x for x in product.arguments if x in scalars]
    added = [x for x in total.arguments if x != made]
    if total.op == "subtract" and total.arguments[1] != made:
        return False
    return (
        expression.results == (made + 1,)
        and len(scales) == 1
        and len(added) == 1
        and added[0] not in scalars
        and sorted((*product.arguments, *added)) == [0, 1, 2]
    )
