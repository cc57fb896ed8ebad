"""Lowering of reductions: the stages that the planner chose, partial sums first."""

from collections.abc import Sequence
from math import prod

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import TileTensor, Value
from hloipu_compiler.planners.placing import Placement
from hloipu_compiler.planners.planned import (
    Choice,
    PlannedOp,
    losers,
    shape_texts,
    splits_of,
)
from hloipu_compiler.planners.reduction_plans import (
    ReductionPlan,
    ReductionWork,
    reduction_alternatives,
    reduction_plan,
)
from hloipu_compiler.planners.stages import Stage
from hloipu_runtime.codelets.core.expression_form import monoid_of
from hloipu_runtime.codelets.element_rules import partial_type
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.element_types import shape_text
from hloipu_runtime.program.mapping import Sizes, Tiles


@lowers("reduce")
def _reduce(context: LoweringContext) -> Sequence[Value]:
    body = context.expression(context.attributes.called[0])
    monoid = monoid_of(body) if len(context.operands) == 2 else None
    kinds = tuple(kind for kind, _ in context.results)
    operands = [context.tile_tensor(n) for n in range(len(context.operands))]
    codelet = Reduce(
        context.attributes.integers("dimensions"), monoid or "", None if monoid else body, kinds
    )
    return reduce(context, codelet, operands)


def reduce(
    context: LoweringContext, codelet: Reduce, operands: Sequence[TileTensor]
) -> list[TileTensor]:
    """Compute a reduction in the stages of the cheapest plan; operands are arrays, then inits.

    Sums and products of narrow floats have partial results in f32.
    """
    builder = context.builder
    arrays = list(operands[: len(operands) // 2])
    inits = operands[len(operands) // 2 :]
    shape = tuple(n for d, n in enumerate(arrays[0].shape) if d not in codelet.dimensions)
    results = [(kind, shape) for kind in codelet.element_types]
    if not codelet.dimensions or not prod(arrays[0].shape):
        return builder.compute(codelet, operands, results)
    kinds = codelet.element_types
    if codelet.monoid in ("add", "multiply"):
        kinds = tuple(map(partial_type, kinds))
    mapping = builder.variables[arrays[0].variable].mapping
    types = tuple(tensor.element_type for tensor in arrays)
    left = ReductionWork(
        builder.machine, codelet, types, kinds, arrays[0].shape, mapping, builder.code_price
    )
    budget_bytes = builder.machine.memory.bytes_per_tile * builder.tuning.memory_percent // 100
    plan = reduction_plan(left, budget_bytes)
    builder.explains(
        lambda: _planned(
            builder.origin, operands, results, plan, reduction_alternatives(left, budget_bytes),
            budget_bytes,
        )
    )  # fmt: skip
    return in_stages(builder, plan.stages, arrays, inits)


def in_stages(
    builder: Builder,
    stages: Sequence[Stage],
    arrays: Sequence[TileTensor],
    inits: Sequence[TileTensor],
) -> list[TileTensor]:
    """Compute the stages of a plan, of which the last takes the init scalars as well."""
    arrays = list(arrays)
    delta = 0
    is_moved = False
    for number, stage in enumerate(stages):
        lying = builder.variables[arrays[0].variable].mapping
        if not is_moved and stage.placement.tiles != lying.tiles:
            is_moved = True
            delta = _shift(builder, stages[number:])
        arrays = builder.compute(
            stage.codelet,
            arrays if number + 1 < len(stages) else [*arrays, *inits],
            [(tensor.element_type, tensor.shape) for tensor in stage.results],
            placement=_shifted(stage.placement, delta),
        )
    return arrays


def _shift(builder: Builder, stages: Sequence[Stage]) -> int:
    """Return by how many tiles grids that begin on tile 0 are moved: not all are to lie there."""
    last = max(stage.placement.tiles.last for stage in stages)
    if 2 * (last + 1) > builder.tile_count:
        return 0
    bus = builder.machine.chip.tiles_per_exchange_bus
    return builder.first_tile(last + 1) % (builder.tile_count - last) // bus * bus


def _shifted(placement: Placement, delta: int) -> Placement:
    if not delta:
        return placement
    tiles = placement.tiles
    return Placement(Tiles(tiles.extents, tiles.strides, tiles.first + delta), placement.labels)


# --- for people -----------------------------------------------------------------------------------


def _planned(
    op: str,
    operands: Sequence[TileTensor],
    results: Sequence[tuple[str, Sizes]],
    plan: ReductionPlan,
    others: Sequence[ReductionPlan],
    budget_bytes: int,
) -> PlannedOp:
    chosen = _choice(plan)
    return PlannedOp(
        op,
        "reduce",
        shape_texts(operands),
        tuple(shape_text(*x) for x in results),
        chosen,
        losers(chosen, map(_choice, others), budget_bytes),
    )


def _choice(plan: ReductionPlan) -> Choice:
    words = [_stage_words(stage) for stage in plan.stages]
    first = plan.stages[0]
    assert isinstance(first.codelet, Reduce)
    names = ["pieces"] * len(first.codelet.parts)
    kept = len(first.results[0].shape) - len(names)
    names += [f"kept {n}" for n in range(kept)]
    return Choice(
        ", then ".join(words),
        splits_of(first.placement, names),
        max(stage.placement.tiles.count for stage in plan.stages),
        plan.cycles,
        plan.held_bytes,
        (("stages", len(plan.stages)),),
    )


def _stage_words(stage: Stage) -> str:
    codelet = stage.codelet
    assert isinstance(codelet, Reduce)
    where = f"on {stage.placement.tiles.count:,} tiles"
    if stage.cycles.exchange:
        where += " after exchange"
    if codelet.parts:
        return f"pieces of {' x '.join(f'{part:,}' for part in codelet.parts)} {where}"
    return f"the rest {where}" if codelet.dimensions == (0,) else f"dimensions whole {where}"
