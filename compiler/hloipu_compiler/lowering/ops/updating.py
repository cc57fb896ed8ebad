"""Lowering of dynamic update and scatter.

No exchange depends on data: every tile has the updates, or its part of their width, and writes
what falls into its range.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import Scalar, Spread, TileTensor, Value
from hloipu_compiler.lowering.ops.indexing import lying, settled, starts_of
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
from hloipu_compiler.planners.searching import Candidate, descend
from hloipu_compiler.planners.stages import PlacedOperand
from hloipu_runtime.codelets.core.codelet import Codelet, Tensor
from hloipu_runtime.codelets.core.constants import text_node
from hloipu_runtime.codelets.core.expression_form import Expression, monoid_of
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.move import Copy
from hloipu_runtime.costs.exchange_price import CodePrice
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping


@lowers("dynamic-update-slice")
def _dynamic_update_slice(context: LoweringContext) -> Sequence[Value]:
    operands = [context.leaf(0), context.tile_tensor(1), *starts_of(context, 2)]
    from hloipu_runtime.codelets.indexed.dynamic_slice import DynamicUpdateSlice

    return _written(context, DynamicUpdateSlice(), operands, 1)


@lowers("scatter")
def _scatter(context: LoweringContext) -> Sequence[Value]:
    read = context.attributes.integers
    count = len(context.operands) // 2
    body = context.expression(context.attributes.text("to_apply"))
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
            context.attributes.integer("index_vector_dim"),
            read("input_batching_dims"),
            read("scatter_indices_batching_dims"),
        ),
        monoid,
        None if monoid else body,
        tuple(kind for kind, _ in context.results),
        context.attributes.flag("unique_indices"),
        context.results[0][1],
    )
    operands = [context.leaf(n) for n in range(count)]
    return _written(
        context,
        codelet,
        [*operands, *(context.tile_tensor(n) for n in range(count, len(context.operands)))],
        count,
    )


def _written(
    context: LoweringContext, codelet: Codelet, operands: Sequence[Value], count: int
) -> list[TileTensor]:
    """Write into the first of `count` operands, or a copy of it; the others are copied."""
    builder = context.builder
    results = [Tensor(*x) for x in context.results]
    if not results[0].elements:
        return builder.compute(codelet, [builder.tile_tensor(x) for x in operands], context.results)
    given = tuple(lying(builder, x) for x in operands)
    options = _writings(builder.machine, codelet, given, tuple(results), count, builder.code_price)
    chosen = best_of(builder.machine, options)
    builder.explains(
        lambda: planned_options(
            builder.machine,
            builder.origin,
            context.instruction.opcode,
            given,
            results,
            chosen,
            options,
        )
    )
    placement = settled(builder, chosen)
    base = _base(context, operands[0], placement)
    tensors = [base, *(builder.tile_tensor(x) for x in operands[1:])]
    last_uses = [True] + [False] * (len(tensors) - 1)
    return builder.compute(
        codelet, tensors, context.results, last_uses=last_uses, placement=placement
    )


@lru_cache(1 << 10)
def _writings(
    machine: Machine,
    codelet: Codelet,
    operands: tuple[PlacedOperand, ...],
    results: tuple[Tensor, ...],
    count: int,
    code_price: CodePrice,
) -> tuple[Option, ...]:
    """Return grids: where the data lies, and splits of what updates follow and of what not."""
    indexing = codelet.indexing([x.tensor for x in operands], results)
    options = [
        priced(machine, codelet, operands, results, placement, code_price, stays=True)
        for placement in where_it_lies(indexing, 0, operands[0])
    ]
    tiles = tiles_worth(machine, [x.tensor for x in operands])
    followed = {i.label for indices in indexing.operands[count:] for i in indices}
    labels = range(len(indexing.sizes))
    groups = [
        [label for label in labels if label in followed],
        [label for label in labels if label not in followed],
    ]

    def price(candidate: Candidate) -> float:
        wanted = list(zip(groups, candidate, strict=True))
        placement = placed(indexing.sizes, wanted, tiles)
        options.append(priced(machine, codelet, operands, results, placement, code_price))
        return worth(machine, options[-1])

    sizes = (prod(indexing.sizes[label] for label in group) for group in groups)
    limits = tuple(max(1, min(tiles, n)) for n in sizes)
    beginnings = [(limits[0], tiles // limits[0]), (tiles // limits[1], limits[1])]
    descend(beginnings, limits, tiles, price)
    return tuple(options)


def _base(context: LoweringContext, leaf: Value, placement: Placement) -> TileTensor:
    """Return a value of the leaf's that may be overwritten, on the grid's tiles."""
    builder, shape = context.builder, leaf.shape
    if isinstance(leaf, Spread) and isinstance(leaf.source, Scalar):
        kind = leaf.element_type
        node = text_node(leaf.source.text, kind)
        filled = Elementwise(Expression((), (node,), (0,)), (), len(shape))
        return builder.compute(filled, [], [(kind, shape)], placement=placement)[0]
    base = builder.tile_tensor(leaf)
    result = [(base.element_type, base.shape)]
    tensor = Tensor(base.element_type, base.shape)
    indices = Copy().indexing([tensor], [tensor]).results[0]
    mapping = Mapping(placement.tiles, placement.spans(indices, shape))
    if builder.variables[base.variable].mapping != mapping:
        from hloipu_compiler.lowering.core.views import seen_as

        return seen_as(builder, [base], shape, mapping=mapping)[0]
    if context.last_uses[0] and base.variable in builder.scope.owned:
        return base
    return builder.compute(Copy(), [base], result, placement=placement)[0]
