"""Lowering of Cholesky decomposition and triangular solve: a batch over tiles."""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import Value
from hloipu_compiler.lowering.core.views import compute_spread
from hloipu_compiler.lowering.ops.blocked_algebra import (
    blocked_cholesky,
    blocked_solve,
    converted,
    in_wide_type,
    is_worth_cutting,
)
from hloipu_runtime.codelets.dense.linear_algebra import Cholesky, TriangularSolve


@lowers("cholesky")
def _cholesky(context: LoweringContext) -> Sequence[Value]:
    builder, a, lower = context.builder, context.tile_tensor(0), context.attributes.flag("lower")
    if is_worth_cutting(builder, a):
        factor = blocked_cholesky(builder, in_wide_type(builder, a), lower=lower)
        return [converted(builder, factor, a.element_type)]
    codelet = Cholesky(lower, context.shape.element_type.name)
    return compute_spread(context.builder, codelet, [context.tile_tensor(0)], context.results)


@lowers("triangular-solve")
def _triangular_solve(context: LoweringContext) -> Sequence[Value]:
    read = context.attributes.flag
    codelet = TriangularSolve(
        read("left_side"),
        read("lower"),
        read("unit_diagonal"),
        context.attributes.text("transpose_a", "NO_TRANSPOSE"),
        context.shape.element_type.name,
    )
    builder, a, b = context.builder, context.tile_tensor(0), context.tile_tensor(1)
    if is_worth_cutting(builder, a):
        wide, other = in_wide_type(builder, a), in_wide_type(builder, b)
        solving = replace(codelet, element_type=wide.element_type)
        solution = blocked_solve(builder, solving, wide, other)
        return [converted(builder, solution, b.element_type)]
    return compute_spread(builder, codelet, [a, b], context.results)
