"""Lowering of bitcast-convert, and of getting and setting dimension sizes."""

from collections.abc import Sequence

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import Scalar, Value
from hloipu_compiler.lowering.ops.elementwise import apply
from hloipu_runtime.codelets.core.expression_form import Node
from hloipu_runtime.codelets.ops.move import BitcastConvert


@lowers("bitcast-convert")
def _bitcast_convert(context: LoweringContext) -> Sequence[Value]:
    source, target = context.operand_shape(0), context.shape
    kinds = source.element_type.name, target.element_type.name
    if source.dimensions == target.dimensions and source.rank:
        node = Node("bitcast-convert", (), kinds[1])
        return [apply(context, node, [context.leaf(0)], context.last_uses)]
    return context.builder.compute(
        BitcastConvert(*kinds), [context.tile_tensor(0)], context.results
    )


@lowers("get-dimension-size")
def _get_dimension_size(context: LoweringContext) -> Sequence[Value]:
    """Sizes are static here: the run-time size is the size."""
    (dimension,) = context.attributes.integers("dimensions")
    return [Scalar("s32", str(context.operand_shape(0).dimensions[dimension]))]


@lowers("set-dimension-size")
def _set_dimension_size(context: LoweringContext) -> Sequence[Value]:
    """Keep the value where the size set is the whole size; a shorter one is a dynamic shape."""
    (dimension,) = context.attributes.integers("dimensions")
    whole, size, name = (
        context.shape.dimensions[dimension],
        context.leaf(1),
        context.instruction.name,
    )
    if isinstance(size, Scalar) and size.text == str(whole):
        return context.operands[0]
    size_text = size.text if isinstance(size, Scalar) else "a size that is known at run time only"
    raise CodegenError(
        "E0401",
        f"{name!r} sets a dimension of {whole} to {size_text}",
        hint="pad to the bound and mask instead: shapes are static here",
    )
