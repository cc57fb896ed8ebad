"""Lowering of ops whose operands say where: dynamic slices and updates, gather, scatter.

No exchange depends on data. What reads a place that data decides either has all of the dimension
on each tile, or each tile offers what it has of it and the offers are put together. What writes
there does so on every tile, as far as the place lies in the tile's range.
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
    tensors_of,
    tiles_worth,
    where_it_lies,
)
from hloipu_compiler.codegen.leaves import Held, Leaf, Scalar, Spread
from hloipu_compiler.codegen.placing import Placement, moved
from hloipu_compiler.codegen.site import Site, lowers
from hloipu_compiler.codegen.views import seen_as
from hloipu_runtime.codelets.codelet import Codelet, Tensor
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
from hloipu_runtime.program.mapping import Mapping

CandidatesOf = Callable[[int, int], Codelet]
"""The codelet that offers what ranges of a dimension have; of the dimension and their size."""


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
    if not prod(shape):
        return builder.compute(direct, operands, [(kind, shape)])[0]
    result = Tensor(kind, shape)
    chosen = best_of(_readings(builder, direct, candidates, moving, operands, result))
    made = builder.compute(
        chosen.codelet,
        operands,
        [(kind, chosen.results[0].shape)],
        placement=_settled(builder, chosen),
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


def _settled(builder: Builder, option: Option) -> Placement:
    """Return the chosen grid; small ones do not all begin on tile 0."""
    count = option.placement.tiles.count
    if option.stays or 2 * count > builder.tile_count:
        return option.placement
    return moved(option.placement, builder.first_tile(count), builder.tile_count)


def _starts(site: Site, first: int) -> list[Held]:
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
    return seen_as(builder, singles, ()) if singles else []


# --- writing --------------------------------------------------------------------------------------


@lowers("dynamic-update-slice")
def _dynamic_update_slice(site: Site) -> Sequence[Leaf]:
    operands = [site.leaf(0), site.held(1), *_starts(site, 2)]
    return _written(site, DynamicUpdateSlice(), operands, 1)


@lowers("scatter")
def _scatter(site: Site) -> Sequence[Leaf]:
    read = site.attributes.integers
    count = len(site.operands) // 2
    body = site.expression(site.attributes.text("to_apply"))
    monoid = monoid_of(body) or "" if count == 1 else ""
    if count == 1 and body.results == (1,):
        monoid = "assign"
    codelet = Scatter(
        ScatterDimensions(
            read("update_window_dims"),
            read("inserted_window_dims"),
            read("scatter_dims_to_operand_dims"),
            site.attributes.integer("index_vector_dim"),
            read("input_batching_dims"),
            read("scatter_indices_batching_dims"),
        ),
        monoid,
        None if monoid else body,
        tuple(kind for kind, _ in site.results),
        site.attributes.flag("unique_indices"),
    )
    operands = [site.leaf(n) for n in range(count)]
    return _written(
        site,
        codelet,
        [*operands, *(site.held(n) for n in range(count, len(site.operands)))],
        count,
    )


def _written(site: Site, codelet: Codelet, operands: Sequence[Leaf], count: int) -> list[Held]:
    """Write into the first of `count` operands, or a copy of it; the others are copied."""
    builder = site.builder
    results = [Tensor(*x) for x in site.results]
    if not results[0].elements:
        return builder.compute(codelet, [builder.held(x) for x in operands], site.results)
    chosen = best_of(_writings(builder, codelet, operands, results, count))
    placement = _settled(builder, chosen)
    base = _base(site, operands[0], placement)
    held = [base, *(builder.held(x) for x in operands[1:])]
    dying = [True] + [False] * (len(held) - 1)
    return builder.compute(codelet, held, site.results, dying=dying, placement=placement)


def _writings(
    builder: Builder,
    codelet: Codelet,
    operands: Sequence[Leaf],
    results: Sequence[Tensor],
    count: int,
) -> Iterator[Option]:
    """Yield grids: where the data lies, and what updates follow split into more or fewer parts."""
    indexing = codelet.indexing(tensors_of(operands), results)
    tiles = tiles_worth(builder, tensors_of(operands))
    for placement in where_it_lies(builder, indexing, 0, operands[0]):
        yield priced(builder, codelet, operands, results, placement, stays=True)
    followed = {i.label for indices in indexing.operands[count:] for i in indices}
    labels = range(len(indexing.sizes))
    along = [label for label in labels if label in followed]
    ranged = [label for label in labels if label not in followed]
    for parts in powers(tiles):
        wanted = [(along, parts), (ranged, tiles)]
        yield priced(builder, codelet, operands, results, placed(indexing.sizes, wanted, tiles))


def _base(site: Site, leaf: Leaf, placement: Placement) -> Held:
    """Return a value of the leaf's that may be overwritten, on the grid's tiles."""
    builder, shape = site.builder, leaf.shape
    if isinstance(leaf, Spread) and isinstance(leaf.source, Scalar):
        kind = leaf.element_type
        node = Node("constant", (), kind, (("value", leaf.source.text),))
        filled = Elementwise(Expression((), (node,), (0,)), (), len(shape))
        return builder.compute(filled, [], [(kind, shape)], placement=placement)[0]
    held = builder.held(leaf)
    result = [(held.element_type, held.shape)]
    indices = Copy().indexing(tensors_of([held]), tensors_of([held])).results[0]
    mapping = Mapping(placement.tiles, placement.spans(indices, shape))
    if builder.variables[held.variable].mapping != mapping:
        return seen_as(builder, [held], shape, mapping=mapping)[0]
    if site.dying[0] and held.variable in builder.scope.owned:
        return held
    return builder.compute(Copy(), [held], result, placement=placement)[0]
