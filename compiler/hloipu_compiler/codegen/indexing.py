"""Lowering of ops that read where operands say: dynamic slice and gather.

No exchange depends on data. What reads a place that data decides either has all of the dimension
on each tile, or each tile offers what it has of it and the offers are put together.
"""

from collections.abc import Callable, Iterator, Sequence
from math import prod

from hloipu_compiler.codegen.builder import Builder
from hloipu_compiler.codegen.indexed_grids import (
    Option,
    best_of,
    bytes_of,
    exchange_cycles,
    placed,
    powers,
    priced,
    settled,
    starts_of,
    tensors_of,
    tiles_worth,
    where_it_lies,
)
from hloipu_compiler.codegen.leaves import Held, Leaf, Scalar, Spread
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
) -> Iterator[Option]:
    """Yield ways to read: directly, and from ranges of the longest and of split dimensions."""
    table = operands[0]
    tiles = tiles_worth(builder, [*tensors_of([table]), result])
    yield from _on_grids(builder, direct, operands, [result], tiles, 1)
    if not moving:
        return
    spans = builder.variables[table.variable].mapping.spans
    split = {d for d in moving if spans[d].axis >= 0}
    share = -(-result.elements // tiles_worth(builder, [result]))
    for d in sorted(split | {max(moving, key=lambda d: table.shape[d])}):
        blocks = {-(-table.shape[d] // parts) for parts in powers(min(tiles, table.shape[d]))}
        if d in split:
            blocks.add(spans[d].size)
        for block in sorted(blocks):
            parts = -(-table.shape[d] // block)
            if parts < 2:
                continue
            codelet = candidates(d, block)
            offers = Tensor(result.element_type, (parts, *result.shape))
            taken = Tensor(result.element_type, (parts, share))
            work = OrBits().work(builder.machine, [taken], [Tensor(result.element_type, (share,))])
            after = work.cycles + exchange_cycles(builder, bytes_of(taken))
            for option in _on_grids(builder, codelet, operands, [offers], tiles, parts):
                yield option.then(after, bytes_of(taken))


def _on_grids(
    builder: Builder,
    codelet: Codelet,
    operands: Sequence[Leaf],
    results: Sequence[Tensor],
    tiles: int,
    ranges: int,
) -> Iterator[Option]:
    """Yield a codelet where its first operand lies, and on grids that split what it shares, or not.

    With more than one range, label 0 counts them.
    """
    indexing = codelet.indexing(tensors_of(operands), results)
    for placement in where_it_lies(builder, indexing, 0, operands[0]):
        yield priced(builder, codelet, operands, results, placement, stays=True)
    first = [0] if ranges > 1 else []
    of_table = {index.label for index in indexing.operands[0]}
    every = [label for label in range(len(indexing.sizes)) if label not in first]
    shared = [label for label in every if label in of_table]
    others = [label for label in every if label not in of_table]
    for groups in ([shared, others], [others, shared]) if shared and others else [[every]]:
        wanted = [(first, ranges), *((group, tiles) for group in groups)]
        placement = placed(indexing.sizes, wanted, tiles)
        yield priced(builder, codelet, operands, results, placement)
