"""Lowering of ragged and scaled dots: their free dimensions over tiles, and the ragged's depth."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import TileTensor, Value
from hloipu_compiler.lowering.core.views import compute_spread
from hloipu_compiler.lowering.ops.contractions import combined
from hloipu_compiler.planners.combining import combining
from hloipu_compiler.planners.dot_placement import dot_codelet
from hloipu_compiler.planners.spreading import even_grids
from hloipu_compiler.planners.stages import PlacedOperand, Stage, Work, staged
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.dense.scaled_dot import RaggedDot, ScaledDot
from hloipu_runtime.codelets.ops.reduce import Reduce


@lowers("ragged-dot")
def _ragged_dot(context: LoweringContext) -> Sequence[Value]:
    groups = context.attributes.integers("rhs_group_dims")
    (ragged,) = context.attributes.integers("lhs_ragged_dims")
    codelet = RaggedDot(dot_codelet(context.instruction), ragged, groups[0] if groups else -1)
    operands = [context.tile_tensor(n) for n in range(3)]
    builder, (kind, shape) = context.builder, context.results[0]
    budget_bytes = builder.machine.memory.bytes_per_tile * builder.tuning_here.memory_percent // 100
    candidates = _candidates(builder, codelet, operands, Tensor(kind, shape)) if all(shape) else ()
    best = min(
        candidates,
        key=lambda x: (max(0, x.stage.held_bytes - budget_bytes), x.cycles),
        default=None,
    )
    if best is None:
        return compute_spread(builder, codelet, operands, context.results)
    stage = best.stage
    results = builder.compute(stage.codelet, operands, stage.results, placement=stage.placement)
    if stage.results[0].shape == shape:
        return results
    return [combined(context, results[0], kind, shape)]


class _Candidate(NamedTuple):
    """A ragged dot on a grid, and the cycles of it and of adding up pieces of its depth."""

    stage: Stage
    cycles: int


_GRAINS = (1, 16)
"""Columns of a block are multiples of one of these: the AMP unit takes 16 at a time."""


def _candidates(
    builder: Builder, codelet: RaggedDot, operands: Sequence[TileTensor], result: Tensor
) -> Iterator[_Candidate]:
    """Yield the dot on grids of even parts, its depth whole and in 2, 4, 8 and more pieces.

    Rows of a group lie where data decides, so that tiles need all rows: where there are many, only
    a tile's share of the depth keeps them small.
    """
    machine, price = builder.machine, builder.code_price
    tensors = [x.tensor for x in operands]
    placed = tuple(PlacedOperand(x.tensor, builder.variables[x.variable].mapping) for x in operands)
    kind = builder.tuning_here.partial_type(result.element_type)
    add = Reduce((0,), "add", None, (result.element_type,))
    depth = 1
    if codelet.lhs_ragged not in codelet.dot.lhs_contracting and codelet.dot.lhs_contracting:
        depth = tensors[0].shape[codelet.dot.lhs_contracting[0]]
    pieces = 1
    while pieces <= max(1, min(depth, builder.tile_count)):
        cut, partial_sums = codelet, result
        if pieces > 1:
            part = -(-depth // pieces)
            cut = replace(codelet, dot=replace(codelet.dot, part=part, element_type=kind))
            partial_sums = Tensor(kind, (-(-depth // part), *result.shape))
        work = Work(machine, cut, placed, (partial_sums,), price)
        sizes = work.indexing.sizes
        for grain in _GRAINS:
            for placement in even_grids(sizes, builder.tile_count, grain):
                stage = staged(work, placement)
                if pieces == 1:
                    yield _Candidate(stage, stage.price)
                elif adding := combining(machine, add, partial_sums, stage.mappings[0], price):
                    yield _Candidate(stage, stage.price + adding.price)
        pieces *= 2


@lowers("scaled-dot")
def _scaled_dot(context: LoweringContext) -> Sequence[Value]:
    operands = [context.tile_tensor(n) for n in range(4)]
    a, b, c, d = (tensor.element_type for tensor in operands)
    codelet = ScaledDot(dot_codelet(context.instruction), (a, b, c, d))
    return compute_spread(context.builder, codelet, operands, context.results)
