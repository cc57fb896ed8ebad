"""Expressions: elementwise ops on arrays that broadcast together, written down as plain data.

`expression_form` says what they are, `expression_planning` and `expression_plan` compute them; here
is what others call.
"""

from collections.abc import Callable, Sequence

from hloipu_runtime.codelets.core.expression_form import Expression, Node, monoid_of
from hloipu_runtime.codelets.core.expression_plan import Plan
from hloipu_runtime.codelets.core.expression_planning import plan_of
from hloipu_runtime.kernels.core.blocks import Array

__all__ = ["Expression", "Node", "Plan", "evaluate", "monoid_of", "plan_of", "region"]


def evaluate(
    expression: Expression,
    arrays: Sequence[Array],
    outs: Sequence[Array | None] | None = None,
    shape: tuple[int, ...] | None = None,
) -> list[Array]:
    """Compute an expression on arrays, in storage form, that broadcast together.

    Returns one array of the common shape for each result: its array of `outs`, written, a fresh
    one, or a view of an operand. An array of `outs` may be one of the operands, not overlap it
    otherwise. `shape` is the common shape, if the caller knows it. Who calls often keeps the plan:
    looking it up walks the whole expression. Raises UnsupportedError E0457 where an op has no
    meaning for a type, UsageError E3091 where the data is no expression.
    """
    return list(plan_of(expression).run(arrays, outs, shape))


def region(expression: Expression) -> Callable[..., list[Array]]:
    """Return an expression as a function of arrays: reducer, comparator, combiner."""
    plan = plan_of(expression)
    return lambda *arrays: list(plan.run(arrays))
