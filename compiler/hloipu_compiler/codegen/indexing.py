"""Lowering of ops that read where operands say: dynamic slice and gather.

No exchange depends on data. What reads a place that data decides either has all of the dimension
on each tile, or each tile offers what it has of it and the offers are put together.
"""

from collections.abc import Callable, Sequence
from math import prod

from hloipu_compiler.codegen.builder import Builder
from hloipu_compiler.codegen.indexed_grids import (
    MOST_GATHERED_BYTES,
    Option,
    best_of,
    bytes_of,
    exchange_cycles,
    placed,
    priced,
    settled,
    starts_of,
    tensors_of,
    tiles_worth,
    where_it_lies,
)
from hloipu_compiler.codegen.leaves import Held, Leaf, Scalar, Spread
from hloipu_compiler.codegen.searching import Way, descend
from hloipu_compiler.codegen.site import Site, lowers
from hloipu_runtime.codelets.codelet import Codelet, Tensor
from hloipu_runtime.codelets.dynamic_slice import DynamicSlice
from hloipu_runtime.codelets.dynamic_slice_candidates import DynamicSliceCandidates
from hloipu_runtime.codelets.gather import Gather, GatherCandidates
from hloipu_runtime.codelets.or_bits import OrBits
from hloipu_runtime.kernels.gather import GatherDimensions

CandidatesOf = Callable[[int, int], Codelet]
"""The codelet that offers what ranges of a dimension have; of the dimension and their size."""


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
    operands = [held, *starts_of(site, 1)]
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
        ranges = -(-table.shape[dimension] // block)
        return GatherCandidates(dims, sizes, dimension, block, ranges)

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
    if not prod(shape):
        return builder.compute(direct, operands, [(kind, shape)])[0]
    result = Tensor(kind, shape)
    chosen = best_of(_readings(builder, direct, candidates, moving, operands, result))
    made = builder.compute(
        chosen.codelet,
        operands,
        [(kind, chosen.results[0].shape)],
        placement=settled(builder, chosen),
    )
    if chosen.codelet is direct:
        return made[0]
    return builder.compute(OrBits(), made, [(kind, shape)])[0]


def _readings(
    builder: Builder,
    direct: Codelet,
    candidates: CandidatesOf,
    moving: Sequence[int],
    operands: Sequence[Held],
    result: Tensor,
) -> list[Option]:
    """Return ways to read: directly, and from ranges of the longest and of split dimensions."""
    table = operands[0]
    found: list[Option] = []
    _search(builder, direct, operands, [result], 0, found)
    if not moving:
        return found
    spans = builder.variables[table.variable].mapping.spans
    split = {d for d in moving if spans[d].axis >= 0}
    for d in sorted(split | {max(moving, key=lambda d: table.shape[d])}):
        kept = {spans[d].size} if d in split else set()
        _search_ranges(builder, candidates, d, kept, operands, result, found)
    return found


def _search(
    builder: Builder,
    codelet: Codelet,
    operands: Sequence[Leaf],
    results: Sequence[Tensor],
    ranges: int,
    found: list[Option],
) -> None:
    """Add grids for a codelet: where its first operand lies, and what a search finds.

    The search is over parts of what table and result share, and of what the table has not, such as
    the indices' own dimensions. With ranges, label 0 counts them; each is a part.
    """
    indexing = codelet.indexing(tensors_of(operands), results)
    for placement in where_it_lies(builder, indexing, 0, operands[0]):
        found.append(priced(builder, codelet, operands, results, placement, stays=True))
    first = [0] if ranges else []
    of_table = {index.label for index in indexing.operands[0]}
    every = [label for label in range(len(indexing.sizes)) if label not in first]
    groups = [
        [label for label in every if label in of_table],
        [label for label in every if label not in of_table],
    ]
    tiles = builder.tile_count // max(1, ranges)

    def price(way: Way) -> float:
        wanted = [(first, ranges), *zip(groups, way, strict=True)]
        placement = placed(indexing.sizes, wanted, builder.tile_count)
        found.append(priced(builder, codelet, operands, results, placement))
        return _worth(found[-1])

    limits = tuple(prod(indexing.sizes[label] for label in group) for group in groups)
    limits = tuple(max(1, min(tiles, n)) for n in limits)
    descend(
        [(limits[0], tiles // limits[0]), (tiles // limits[1], limits[1])], limits, tiles, price
    )


def _search_ranges(
    builder: Builder,
    candidates: CandidatesOf,
    dimension: int,
    kept: set[int],
    operands: Sequence[Held],
    result: Tensor,
    found: list[Option],
) -> None:
    """Add readings from ranges of a dimension, and their price with what follows.

    `kept`: sizes of ranges in which the dimension lies already.
    """
    size = operands[0].shape[dimension]
    most = min(builder.tile_count, size)
    share = -(-result.elements // tiles_worth(builder, [result]))
    for block in sorted(kept | {-(-size // parts) for parts in _twofold(most)}):
        parts = -(-size // block)
        if parts < 2:
            continue
        offers = Tensor(result.element_type, (parts, *result.shape))
        taken = Tensor(result.element_type, (parts, share))
        work = OrBits().work(builder.machine, [taken], [Tensor(result.element_type, (share,))])
        after = work.cycles + exchange_cycles(builder, bytes_of(taken), parts)
        if found and after > 2 * min(x.cycles for x in found):
            continue
        options: list[Option] = []
        _search(builder, candidates(dimension, block), operands, [offers], parts, options)
        found += [option.then(after, bytes_of(taken)) for option in options]


def _twofold(most: int) -> list[int]:
    """Return 2, 4, 8, .. below a number, and the number."""
    return [1 << n for n in range(1, most.bit_length()) if 1 << n < most] + [most]


def _worth(option: Option) -> float:
    """Return what a search makes less: cycles, far more of them for what fills a tile."""
    too_much = max(0, option.held_bytes - MOST_GATHERED_BYTES)
    return option.cycles + 4 * too_much
