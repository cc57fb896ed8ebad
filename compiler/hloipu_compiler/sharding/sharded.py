"""The passes of a step on several IPUs: flat first, then placed, then put together within IPUs."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.pipeline import Pipeline
from hloipu_compiler.passes.pipelines import AFTER_FRONT
from hloipu_compiler.plan.flat_arrays import with_flat_parameters, with_flat_results
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_compiler.sharding.blocks import blocks_of
from hloipu_compiler.sharding.cells import OpKey
from hloipu_compiler.sharding.gradient_means import with_gradient_means
from hloipu_compiler.sharding.handing_down import handed_down, says_anything
from hloipu_compiler.sharding.placing import placed
from hloipu_compiler.sharding.request import ShardRequest
from hloipu_compiler.staging.cutting import Costing
from hloipu_compiler.staging.pipelining import phases_and_kind

Running = Callable[[Module, Plan, Pipeline | str], tuple[Module, Plan]]
"""Runs a pipeline of passes."""


def sharded(
    module: Module,
    begun: Plan,
    pipeline: Pipeline | str,
    request: ShardRequest,
    wrapped: Wrapping | None,
    roles: Wrapping | None,
    running: Running,
    costing: Callable[[Module], Costing],
    taken_share: Callable[[Module, Plan], float],
) -> tuple[Module, Plan]:
    """Return what passes make of a module, and on which IPUs its ops run.

    Ops are placed where the module is flat, before any are put together, and those that passes
    made since once more. `wrapped`: how the entry is wrapped; `roles`: what its parameters are,
    if only for choosing blocks; `taken_share`: of the memory of the fullest IPU, by estimate.
    Raises ShardingError E0550 to E0552, and where replicas combine gradients what
    `staging.phases.phases_of` raises.
    """
    state = [(x.parameter, x.result) for x in wrapped.state] if wrapped else []
    module = with_flat_parameters(handed_down(module, begun.partitions))
    rest = AFTER_FRONT.get(pipeline) if isinstance(pipeline, str) else None
    flat, plan = running(module, begun, pipeline if rest is None else "front")
    flat = with_flat_results(flat)
    known: Mapping[OpKey, int] = {}
    annotated = says_anything(flat, plan.partitions)
    if request.asks and not annotated:
        most = request.ipus if request.ipus > 1 else request.most

        def filling(blocks: Mapping[OpKey, int]) -> float:
            return taken_share(flat, placed(flat, plan, blocks, state))

        costs = costing(flat)
        known = blocks_of(flat.entry, roles, request.count, most, costs, filling)
    plan = placed(flat, plan, known, state)
    if annotated:
        request.check(plan.shards)
    if request.fills:
        plan = replace(plan, replicas=request.replicas(plan.shards))
    if plan.replicas > 1 and request.averages and wrapped is not None:
        phases, trains = phases_and_kind(flat.entry, wrapped, PipelineRequest())
        if trains:
            flat = with_gradient_means(flat, phases, plan.ipus, plan.replicas)
            plan = replace(placed(flat, plan, plan.ipus, state), averages_gradients=True)
    if rest is not None:
        flat, plan = running(flat, plan, rest)
        plan = placed(flat, plan, plan.ipus, state)
    return flat, plan
