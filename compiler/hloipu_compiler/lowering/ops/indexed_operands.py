"""Operands of indexed ops: their layouts, and the scalars of their start indices."""

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext
from hloipu_compiler.lowering.core.values import Spread, TileTensor, Value
from hloipu_compiler.planners.indexed_grids import Option
from hloipu_compiler.planners.placing import Placement, moved
from hloipu_compiler.planners.stages import PlacedOperand
from hloipu_runtime.codelets.core.codelet import Tensor
from hloipu_runtime.codelets.ops.move import StridedSlice


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
