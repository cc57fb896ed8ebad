"""Operands of ops that indices decide: where they lie, and the scalars that say where to read."""

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import Site
from hloipu_compiler.lowering.core.values import Held, Leaf, Spread
from hloipu_compiler.planners.indexed_grids import Option
from hloipu_compiler.planners.placing import Placement, moved
from hloipu_compiler.planners.stages import Lying
from hloipu_runtime.codelets.core.codelet import Tensor
from hloipu_runtime.codelets.ops.move import StridedSlice


def lying(builder: Builder, leaf: Leaf) -> Lying:
    """Return where a leaf lies; constant numbers are written where they are used."""
    tensor = Tensor(leaf.element_type, leaf.shape)
    if isinstance(leaf, Held):
        return Lying(tensor, builder.variables[leaf.variable].mapping)
    if isinstance(leaf, Spread) and isinstance(leaf.source, Held):
        return Lying(tensor, builder.home(leaf.element_type, leaf.shape))
    return Lying(tensor, None)


def settled(builder: Builder, option: Option) -> Placement:
    """Return the chosen grid; small ones do not all begin on tile 0."""
    count = option.placement.tiles.count
    if option.stays or 2 * count > builder.tile_count:
        return option.placement
    return moved(option.placement, builder.first_tile(count), builder.tile_count)


def starts_of(site: Site, first: int) -> list[Held]:
    """Return the scalars that say where, from operand `first` on.

    Dumps before 2019 print them as one vector.
    """
    numbers = range(first, len(site.operands))
    if len(numbers) != 1 or not site.operand_shape(first).dimensions:
        return [site.held(n) for n in numbers]
    builder, vector = site.builder, site.held(first)
    kind = vector.element_type
    singles = [
        builder.compute(StridedSlice((k,), (1,)), [vector], [(kind, (1,))])[0]
        for k in range(vector.shape[0])
    ]
    from hloipu_compiler.lowering.core.views import seen_as

    return seen_as(builder, singles, ()) if singles else []
