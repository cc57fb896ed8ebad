"""The passes of a step on several IPUs: flat first, then placed, then put together within IPUs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.pipeline import Pipeline
from hloipu_compiler.passes.pipelines import AFTER_FRONT
from hloipu_compiler.plan.flat_arrays import with_flat_parameters, with_flat_results
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_compiler.sharding.blocks import NOT_CUT, blocks_of
from hloipu_compiler.sharding.cells import OpKey
from hloipu_compiler.sharding.gradient_means import with_gradient_means
from hloipu_compiler.sharding.handing_down import handed_down, says_anything
from hloipu_compiler.sharding.placing import placed
from hloipu_compiler.sharding.request import ShardingError, ShardRequest
from hloipu_compiler.sharding.statements import saying
from hloipu_compiler.staging.cutting import Costing
from hloipu_compiler.staging.marks import marked_stages
from hloipu_compiler.staging.pipelining import phases_and_kind

Running = Callable[[Module, Plan, Pipeline | str], tuple[Module, Plan]]
"""Runs a pipeline of passes."""


def require_one_stage(flat: Module, cut: PipelineRequest) -> None:
    """Raise ShardingError E0553 where a step is to be in blocks and in stages."""
    if (
        (cut.stages or 1) > 1
        or cut.device_map
        or max(marked_stages(flat.entry).values(), default=0)
    ):
        raise ShardingError(
            "E0553",
            "shards were asked for, and stages, which are on IPUs of their own",
            hint="leave --shards out; --schedule sequential runs stages one after the other",
        )


def in_blocks(
    flat: Module,
    plan: Plan,
    request: ShardRequest,
    roles: Wrapping | None,
    state: Sequence[tuple[int, int]],
    costing: Callable[[Module], Costing],
    taken_share: Callable[[Module, Plan], float],
    cut: PipelineRequest = NOT_CUT,
) -> Module:
    """Return a flat module whose ops state the IPU of their block, where blocks are asked for.

    Annotations of its own stand instead. `state`: numbers of parameters and results that are one
    array; `cut`: what else is asked of the step; others as in `sharded`. Raises ShardingError
    E0552.
    """
    if not request.asks or says_anything(flat, plan.partitions):
        return flat
    most = request.ipus if request.ipus > 1 else request.most

    def filling(blocks: Mapping[OpKey, int]) -> float:
        return taken_share(flat, placed(flat, plan, blocks, state))

    blocks = blocks_of(flat.entry, roles, request.count, most, costing(flat), filling, cut)
    entry = flat.entry
    made = tuple(
        saying(x, blocks[entry.name, x.name]) if (entry.name, x.name) in blocks else x
        for x in entry.instructions
    )
    new = replace(entry, instructions=made)
    computations = tuple(new if c.name == entry.name else c for c in flat.computations)
    return replace(flat, computations=computations)


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
    flat = in_blocks(flat, plan, request, roles, state, costing, taken_share)
    plan = placed(flat, plan, {}, state)
    request.check(plan.shards)
    if request.fills:
        plan = replace(plan, replicas=request.replicas(plan.shards))
    if plan.replicas > 1 and request.averages and wrapped is not None:
        phases, trains = phases_and_kind(flat.entry, wrapped, NOT_CUT)
        if trains:
            flat = with_gradient_means(flat, phases, plan.ipus, plan.replicas)
            plan = replace(placed(flat, plan, plan.ipus, state), averages_gradients=True)
    if rest is not None:
        flat, plan = running(flat, plan, rest)
        plan = placed(flat, plan, plan.ipus, state)
    return flat, plan
