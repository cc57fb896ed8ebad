"""Lowering of ops whose operands say where: dynamic slices and updates, gather, scatter.

No exchange depends on data. What reads a place that data decides either has all of the dimension
on each tile, or each tile offers what it has of it and the offers are put together. What writes
there does so on every tile, as far as the place lies in the tile's range.
"""

from collections.abc import Iterator, Sequence
from math import prod

from hloipu_compiler.codegen.builder import Builder
from hloipu_compiler.codegen.indexed_grids import (
    Option,
    best_of,
    placed,
    powers,
    priced,
    tiles_worth,
    where_it_lies,
)
from hloipu_compiler.codegen.leaves import Held, Leaf, Scalar, Spread
from hloipu_compiler.codegen.placing import Placement, moved
from hloipu_compiler.codegen.site import Site, lowers
from hloipu_compiler.codegen.views import seen_as
from hloipu_compiler.evaluate.reductions import assigned_parameter
from hloipu_runtime.codelets.codelet import Codelet, Indexing, Tensor
from hloipu_runtime.codelets.dynamic_slice import (
    DynamicSlice,
    DynamicSliceCandidates,
    DynamicUpdateSlice,
)
from hloipu_runtime.codelets.elementwise import Elementwise
from hloipu_runtime.codelets.expression import Expression, Node, monoid_of
from hloipu_runtime.codelets.gather import Gather, GatherCandidates
from hloipu_runtime.codelets.move import Copy, StridedSlice
from hloipu_runtime.codelets.or_bits import OrBits
from hloipu_runtime.codelets.scatter import Scatter
from hloipu_runtime.kernels.gather import GatherDimensions
from hloipu_runtime.kernels.scatter import ScatterDimensions
from hloipu_runtime.program.mapping import Mapping, Sizes

# --- reading --------------------------------------------------------------------------------------


@lowers("dynamic-slice")
def _dynamic_slice(site: Site) -> Sequence[Leaf]:
    shape = site.shape.dimensions
    source = site.leaf(0)
    if isinstance(source, Spread) and isinstance(source.source, Scalar):
        return [Spread(source.source, (), shape)]
    held = site.held(0)
    if held.shape == shape:
        return [held]
    moving = [d for d, n in enumerate(shape) if n != held.shape[d]]
    operands = [held, *_starts(site, 1)]
    return [_read(site, DynamicSlice(), DynamicSliceCandidates, moving, operands)]


@lowers("gather")
def _gather(site: Site) -> Sequence[Leaf]:
    read = site.attributes.integers
    source = site.leaf(0)
    if isinstance(source, Spread) and isinstance(source.source, Scalar):
        return [Spread(source.source, (), site.shape.dimensions)]
    table, sizes = site.held(0), read("slice_sizes")
    dims = GatherDimensions(
        read("offset_dims"),
        read("collapsed_slice_dims"),
        read("start_index_map"),
        site.attributes.integer("index_vector_dim"),
        read("operand_batching_dims"),
        read("start_indices_batching_dims"),
    )
    moving = [d for d in dims.start_index_map if sizes[d] != table.shape[d]]

    def candidates(dimension: int, block: int) -> Codelet:
        return GatherCandidates(dims, sizes, dimension, block)

    return [_read(site, Gather(dims, sizes), candidates, moving, [table, site.held(1)])]


def _read(
    site: Site,
    direct: Codelet,
    candidates: CandidatesOf,
    moving: Sequence[int],
    operands: Sequence[Held],
) -> Held:
    """Read in one step, or in candidates that a second step puts together: what takes less."""
    builder = site.builder
    ((kind, shape),) = site.results
    options = _reading_options(builder, direct, candidates, moving, operands, Tensor(kind, shape))
    chosen = best_of(options)
    placement = settled(builder, chosen.placement)
    if chosen.codelet is direct:
        return builder.compute(direct, operands, [(kind, shape)], placement=placement)[0]
    parts = _part_count(operands[0], chosen.codelet)
    made = builder.compute(
        chosen.codelet, operands, [(kind, (parts, *shape))], placement=placement
    )
    return builder.compute(OrBits(), made, [(kind, shape)])[0]
