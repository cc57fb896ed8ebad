"""Lowering of dynamic slice and gather.

No exchange depends on data. What reads a place that data decides either has all of the dimension
on each tile, or each tile offers what it has of it and the offers are put together.
"""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import Scalar, Spread, TileTensor, Value
from hloipu_compiler.planners.indexed_grids import Option, best_of, planned_options
from hloipu_compiler.planners.placing import Placement, moved
from hloipu_compiler.planners.reading_plans import gather_codelet, readings
from hloipu_compiler.planners.stages import PlacedOperand
from hloipu_runtime.codelets.core.codelet import Tensor
from hloipu_runtime.codelets.indexed.or_bits import OrBits
from hloipu_runtime.codelets.ops.move import StridedSlice

if TYPE_CHECKING:
    from hloipu_compiler.planners.reading_plans import Direct


def lying(builder: Builder, leaf: Value) -> PlacedOperand:
    """Return where a leaf lies; constant numbers are written where they are used."""
    tensor = Tensor(leaf.element_type, leaf.shape)
    if isinstance(leaf, TileTensor):
        return PlacedOperand(tensor, builder.variables[leaf.variable].mapping)
    if isinstance(leaf, Spread) and isinstance(leaf.source, TileTensor):
        return PlacedOperand(tensor, builder.default_mapping(leaf.element_type, leaf.shape))
    return PlacedOperand(tensor, None)


def settled(builder: Builder, option: Option) -> Placement:
    """Return the chosen grid; small ones do not all begin on tile 0."""
    count = option.placement.tiles.count
    if option.stays or 2 * count > builder.tile_count:
        return option.placement
    return moved(option.placement, builder.first_tile(count), builder.tile_count)


def starts_of(context: LoweringContext, first: int) -> list[TileTensor]:
    """Return the scalars that say where, from operand `first` on.

    Dumps before 2019 print them as one vector.
    """
    numbers = range(first, len(context.operands))
    if len(numbers) != 1 or not context.operand_shape(first).dimensions:
        return [context.tile_tensor(n) for n in numbers]
    builder, vector = context.builder, context.tile_tensor(first)
    kind = vector.element_type
    singles = [
        builder.compute(StridedSlice((k,), (1,)), [vector], [(kind, (1,))])[0]
        for k in range(vector.shape[0])
    ]
    from hloipu_compiler.lowering.core.views import seen_as

    return seen_as(builder, singles, ()) if singles else []


@lowers("dynamic-slice")
def _dynamic_slice(context: LoweringContext) -> Sequence[Value]:
    shape = context.shape.dimensions
    source = context.leaf(0)
    if isinstance(source, Spread) and isinstance(source.source, Scalar):
        return [Spread(source.source, (), shape)]
    tensor = context.tile_tensor(0)
    if tensor.shape == shape:
        return [tensor]
    moving = [d for d, n in enumerate(shape) if n != tensor.shape[d]]
    operands = [tensor, *starts_of(context, 1)]
    from hloipu_runtime.codelets.indexed.dynamic_slice import DynamicSlice

    return [_read(context, DynamicSlice(), moving, operands)]


@lowers("gather")
def _gather(context: LoweringContext) -> Sequence[Value]:
    source = context.leaf(0)
    if isinstance(source, Spread) and isinstance(source.source, Scalar):
        return [Spread(source.source, (), context.shape.dimensions)]
    codelet, moving = gather_codelet(context.instruction, source.shape)
    return [_read(context, codelet, moving, [context.tile_tensor(0), context.tile_tensor(1)])]


def _read(
    context: LoweringContext,
    direct: "Direct",
    moving: Sequence[int],
    operands: Sequence[TileTensor],
) -> TileTensor:
    """Read in one step, or in candidates that a second step puts together: what takes less."""
    builder = context.builder
    ((kind, shape),) = context.results
    if not prod(shape):
        return builder.compute(direct, operands, [(kind, shape)])[0]
    given = tuple(lying(builder, tensor) for tensor in operands)
    options = readings(
        builder.machine, direct, tuple(moving), given, Tensor(kind, shape), builder.code_price
    )
    chosen = best_of(builder.machine, options)
    builder.explains(
        lambda: planned_options(
            builder.machine,
            builder.origin,
            context.instruction.opcode,
            given,
            [Tensor(kind, shape)],
            chosen,
            options,
        )
    )
    candidates = builder.compute(
        chosen.codelet,
        operands,
        [(kind, chosen.results[0].shape)],
        placement=settled(builder, chosen),
    )
    if chosen.codelet == direct:
        return candidates[0]
    return builder.compute(OrBits(), candidates, [(kind, shape)])[0]
