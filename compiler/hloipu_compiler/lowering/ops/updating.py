"""Lowering of ops that write where operands say: dynamic update and scatter.

No exchange depends on data: every tile has the updates, or its part of their width, and writes
what falls into its range.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from hloipu_compiler.lowering.core.context import Site, lowers
from hloipu_compiler.lowering.core.values import Held, Leaf, Scalar, Spread
from hloipu_compiler.lowering.ops.indexed_operands import lying, settled, starts_of
from hloipu_compiler.planners.indexed_grids import (
    Option,
    best_of,
    placed,
    planned_options,
    priced,
    tiles_worth,
    where_it_lies,
    worth,
)
from hloipu_compiler.planners.placing import Placement
from hloipu_compiler.planners.searching import Way, descend
from hloipu_compiler.planners.stages import Lying
from hloipu_runtime.codelets.core.codelet import Codelet, Tensor
from hloipu_runtime.codelets.core.constants import text_node
from hloipu_runtime.codelets.core.expression_form import Expression, monoid_of
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.move import Copy
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping


@lowers("dynamic-update-slice")
def _dynamic_update_slice(site: Site) -> Sequence[Leaf]:
    operands = [site.leaf(0), site.held(1), *starts_of(site, 2)]
    from hloipu_runtime.codelets.indexed.dynamic_slice import DynamicUpdateSlice

    return _written(site, DynamicUpdateSlice(), operands, 1)


@lowers("scatter")
def _scatter(site: Site) -> Sequence[Leaf]:
    read = site.attributes.integers
    count = len(site.operands) // 2
    body = site.expression(site.attributes.text("to_apply"))
    monoid = monoid_of(body) or "" if count == 1 else ""
    if count == 1 and body.results == (1,):
        monoid = "assign"
    from hloipu_runtime.codelets.indexed.scatter import Scatter
    from hloipu_runtime.kernels.scatter import ScatterDimensions

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
        site.results[0][1],
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
    given = tuple(lying(builder, x) for x in operands)
    options = _writings(builder.machine, codelet, given, tuple(results), count)
    chosen = best_of(builder.machine, options)
    builder.explains(
        lambda: planned_options(
            builder.machine,
            builder.origin,
            site.instruction.opcode,
            given,
            results,
            chosen,
            options,
        )
    )
    placement = settled(builder, chosen)
    base = _base(site, operands[0], placement)
    held = [base, *(builder.held(x) for x in operands[1:])]
    dying = [True] + [False] * (len(held) - 1)
    return builder.compute(codelet, held, site.results, dying=dying, placement=placement)


@lru_cache(1 << 10)
def _writings(
    machine: Machine,
    codelet: Codelet,
    operands: tuple[Lying, ...],
    results: tuple[Tensor, ...],
    count: int,
) -> tuple[Option, ...]:
    """Return grids: where the data lies, and splits of what updates follow and of what not."""
    indexing = codelet.indexing([x.tensor for x in operands], results)
    found = [
        priced(machine, codelet, operands, results, placement, stays=True)
        for placement in where_it_lies(indexing, 0, operands[0])
    ]
    tiles = tiles_worth(machine, [x.tensor for x in operands])
    followed = {i.label for indices in indexing.operands[count:] for i in indices}
    labels = range(len(indexing.sizes))
    groups = [
        [label for label in labels if label in followed],
        [label for label in labels if label not in followed],
    ]

    def price(way: Way) -> float:
        wanted = list(zip(groups, way, strict=True))
        placement = placed(indexing.sizes, wanted, tiles)
        found.append(priced(machine, codelet, operands, results, placement))
        return worth(machine, found[-1])

    sizes = (prod(indexing.sizes[label] for label in group) for group in groups)
    limits = tuple(max(1, min(tiles, n)) for n in sizes)
    beginnings = [(limits[0], tiles // limits[0]), (tiles // limits[1], limits[1])]
    descend(beginnings, limits, tiles, price)
    return tuple(found)


def _base(site: Site, leaf: Leaf, placement: Placement) -> Held:
    """Return a value of the leaf's that may be overwritten, on the grid's tiles."""
    builder, shape = site.builder, leaf.shape
    if isinstance(leaf, Spread) and isinstance(leaf.source, Scalar):
        kind = leaf.element_type
        node = text_node(leaf.source.text, kind)
        filled = Elementwise(Expression((), (node,), (0,)), (), len(shape))
        return builder.compute(filled, [], [(kind, shape)], placement=placement)[0]
    held = builder.held(leaf)
    result = [(held.element_type, held.shape)]
    tensor = Tensor(held.element_type, held.shape)
    indices = Copy().indexing([tensor], [tensor]).results[0]
    mapping = Mapping(placement.tiles, placement.spans(indices, shape))
    if builder.variables[held.variable].mapping != mapping:
        from hloipu_compiler.lowering.core.views import seen_as

        return seen_as(builder, [held], shape, mapping=mapping)[0]
    if site.dying[0] and held.variable in builder.scope.owned:
        return held
    return builder.compute(Copy(), [held], result, placement=placement)[0]
