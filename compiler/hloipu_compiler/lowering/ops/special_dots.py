"""Lowering of ragged and scaled dots: their free dimensions over tiles."""

from collections.abc import Sequence

from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import Value
from hloipu_compiler.lowering.core.views import compute_spread
from hloipu_compiler.planners.dot_placement import dot_codelet
from hloipu_runtime.codelets.dense.scaled_dot import RaggedDot, ScaledDot


@lowers("ragged-dot")
def _ragged_dot(context: LoweringContext) -> Sequence[Value]:
    groups = context.attributes.integers("rhs_group_dims")
    (ragged,) = context.attributes.integers("lhs_ragged_dims")
    codelet = RaggedDot(dot_codelet(context.instruction), ragged, groups[0] if groups else -1)
    operands = [context.tile_tensor(n) for n in range(3)]
    return compute_spread(context.builder, codelet, operands, context.results)


@lowers("scaled-dot")
def _scaled_dot(context: LoweringContext) -> Sequence[Value]:
    operands = [context.tile_tensor(n) for n in range(4)]
    a, b, c, d = (tensor.element_type for tensor in operands)
    codelet = ScaledDot(dot_codelet(context.instruction), (a, b, c, d))
    return compute_spread(context.builder, codelet, operands, context.results)
