"""Lowering of custom calls: annotations, LAPACK routines."""

from collections.abc import Sequence

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.hlo.attributes.frontend_attributes import read_backend_config
from hloipu_compiler.interpret.ops.custom_calls import OPAQUE
from hloipu_compiler.interpret.ops.routine_forms import (
    how_to_define,
    require_library_form,
    typed_attributes,
)
from hloipu_compiler.ir.annotations import is_identity
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import TileTensor, Value
from hloipu_compiler.lowering.core.views import compute_spread
from hloipu_compiler.lowering.ops.blocked_algebra import (
    blocked_cholesky,
    blocked_solve,
    has_failed,
    is_worth_cutting,
    triangle_of,
)
from hloipu_runtime.codelets.dense.custom import LapackCall
from hloipu_runtime.codelets.dense.linear_algebra import TriangularSolve
from hloipu_runtime.codelets.ops.generate import OpaqueWork
from hloipu_runtime.kernels.linear_algebra.lapack import LAPACK_TARGETS
from hloipu_runtime.kernels.linear_algebra.lapack_batches import letter


@lowers("custom-call")
def _custom_call(context: LoweringContext) -> Sequence[Value]:
    target = context.attributes.text("custom_call_target")
    if is_identity(context.instruction):
        return [leaf for leaves in context.operands for leaf in leaves][: len(context.results)]
    if target == OPAQUE:
        operands = [context.tile_tensor(n) for n in range(len(context.operands))]
        work = OpaqueWork(int(read_backend_config(context.instruction.backend_config)))
        return context.builder.compute(work, operands, context.results)
    if target in LAPACK_TARGETS:
        instructions = context.computation.instructions
        shapes = [instructions[n].shape for n in context.instruction.operands]
        require_library_form(context.instruction, shapes)
        operands = [context.tile_tensor(n) for n in range(len(context.operands))]
        call = LapackCall(target, _attributes(context))
        if call.routine == "trsm":
            return _trsm(context, call, operands)
        if call.routine == "potrf" and is_worth_cutting(context.builder, operands[0]):
            return _potrf(context.builder, call, operands)
        return compute_spread(context.builder, call, operands, context.results)
    error = CodegenError(
        "E0470",
        f"custom call {context.instruction.name!r}: no codelet is known for the target {target!r}",
        hint=how_to_define(
            target,
            [context.computation.instructions[n].shape for n in context.instruction.operands],
            context.instruction.shape,
        ),
    )
    error.span = context.module.span(context.instruction)
    raise error


def _potrf(builder: Builder, call: LapackCall, operands: Sequence[TileTensor]) -> Sequence[Value]:
    """Return the factor, the other triangle as it was, and whether there is none."""
    (a,) = operands
    lower = letter(dict(call.attributes), "uplo") == "L"
    factor = blocked_cholesky(builder, a, lower=lower)
    return [triangle_of(builder, factor, a, lower=lower), has_failed(builder, factor)]


def _trsm(
    context: LoweringContext, call: LapackCall, operands: Sequence[TileTensor]
) -> Sequence[Value]:
    """Solve as `triangular-solve` does: right-hand sides over tiles, a large matrix in blocks."""
    builder = context.builder
    given = dict(call.attributes)
    codelet = TriangularSolve(
        letter(given, "side") == "L",
        letter(given, "uplo") == "L",
        letter(given, "diag") == "U",
        {"T": "TRANSPOSE", "C": "ADJOINT"}.get(letter(given, "trans_x"), "NO_TRANSPOSE"),
        call.element_type,
    )
    if is_worth_cutting(builder, operands[0]):
        return [blocked_solve(builder, codelet, operands[0], operands[1])]
    return compute_spread(builder, codelet, operands, context.results)


def _attributes(context: LoweringContext) -> tuple[tuple[str, int | bool | str], ...]:
    attributes = typed_attributes(context.instruction.backend_config)
    return tuple((name, x) for name, x in sorted(attributes.items()) if isinstance(x, int | str))
