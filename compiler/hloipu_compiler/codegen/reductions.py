"""Lowering of reductions: the stages that the planner chose, the partial ones first."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from hloipu_compiler.codegen.contractions import partial_type
from hloipu_compiler.codegen.leaves import Held, Leaf
from hloipu_compiler.codegen.placing import Placement, moved
from hloipu_compiler.codegen.planned import Choice, PlannedOp, losers, shape_texts, splits_of
from hloipu_compiler.codegen.reduction_plans import (
    ReductionPlan,
    reduction_alternatives,
    reduction_plan,
)
from hloipu_compiler.codegen.site import Site, lowers
from hloipu_compiler.codegen.stages import Stage
from hloipu_runtime.codelets.expression import monoid_of
from hloipu_runtime.codelets.reduce import Reduce
from hloipu_runtime.program.mapping import Sizes


@lowers("reduce")
def _reduce(site: Site) -> Sequence[Leaf]:
    body = site.expression(site.attributes.called[0])
    monoid = monoid_of(body) if len(site.operands) == 2 else None
    kinds = tuple(kind for kind, _ in site.results)
    operands = [site.held(n) for n in range(len(site.operands))]
    codelet = Reduce(
        site.attributes.integers("dimensions"), monoid or "", None if monoid else body, kinds
    )
    return reduce(site, codelet, operands)


def reduce(site: Site, codelet: Reduce, operands: Sequence[Held]) -> list[Held]:
    """Compute a reduction in the stages of the cheapest plan; operands are arrays, then inits.

    Sums and products of narrow floats have partial results in f32.
    """
    builder = site.builder
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
    asked = (
        builder.machine,
        codelet,
        tuple(x.element_type for x in arrays),
        kinds,
        arrays[0].shape,
        mapping,
        builder.machine.memory.bytes_per_tile * builder.tuning.memory_percent // 100,
    )
    plan = reduction_plan(*asked)
    builder.explains(
        lambda: _planned(
            builder.origin, operands, results, plan, reduction_alternatives(*asked), asked[-1]
        )
    )
    for stage in plan.stages:
        given = arrays if stage.codelet_part else [*arrays, *inits]
        arrays = builder.compute(
            stage.codelet,
            given,
            [(x.element_type, x.shape) for x in stage.results],
            placement=_settled(site, stage, mapping.tiles.count),
        )
    return arrays
