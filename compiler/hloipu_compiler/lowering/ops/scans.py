"""Lowering of scan, whose body must be elementwise."""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.expressions import expression_of
from hloipu_compiler.lowering.core.values import Value
from hloipu_compiler.lowering.core.views import compute_spread
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.ops.scan import Scan


@lowers("scan")
def _scan(context: LoweringContext) -> Sequence[Value]:
    (dimension,) = context.attributes.integers("dimensions")
    operands = [context.tile_tensor(n) for n in range(len(context.operands))]
    carries = context.attributes.integer("num_carries")
    inputs = len(operands) - carries
    body = _on_elements(context, context.module.computation[context.attributes.text("to_apply")])
    length = operands[0].shape[dimension] if inputs else 0
    outputs = len(context.results) - carries
    reverse = context.attributes.flag("is_reverse")
    codelet = Scan(dimension, body, inputs, outputs, length, reverse)
    return compute_spread(context.builder, codelet, operands, context.results)


def _on_elements(context: LoweringContext, body: Computation) -> Expression:
    shapes = {
        op.shape.dimensions
        for op in body.instructions
        if isinstance(op.shape, ArrayShape) and op.shape.dimensions
    }
    sizes = min(shapes, default=())
    if len(shapes) > 1 or not all(_is_elementwise(body, op, sizes) for op in body.instructions):
        raise CodegenError(
            "E0471",
            f"{context.instruction.name!r}: a scan whose body is not elementwise on one shape "
            "has no codelet",
            hint="write the scan as a while loop",
        )
    scalars = tuple(
        op._replace(shape=replace(op.shape, dimensions=(), layout=None, dynamic=None))
        if isinstance(op.shape, ArrayShape)
        else op
        for op in body.instructions
    )
    cut = replace(body, instructions=scalars, name=f"{body.name}@elements")
    module: Module = replace(context.module, computations=(*context.module.computations, cut))
    return expression_of(module, cut.name)


def _is_elementwise(body: Computation, instruction: Instruction, sizes: tuple[int, ...]) -> bool:
    """Whether every element of a result depends on its own place alone."""
    if instruction.opcode == "parameter":
        return isinstance(instruction.shape, ArrayShape) and instruction.shape.dimensions == sizes
    if instruction.opcode in ("tuple", "copy"):
        return True
    if instruction.opcode == "constant":
        return isinstance(instruction.shape, ArrayShape) and not instruction.shape.dimensions
    if instruction.opcode == "broadcast":
        source = body.instructions[instruction.operands[0]].shape
        return isinstance(source, ArrayShape) and not source.dimensions
    op = OPS.get(instruction.opcode)
    return op is not None and Trait.ELEMENTWISE in op.traits
