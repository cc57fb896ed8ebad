"""Compiles a verified module to a program: all phases in their order.

Compiling stops after any phase and goes on from there (`compile_module`, `continued`). So the price
of an op is its program before steps are merged, and the survey of a step that of the step as one
stage; the search for the best cut begins with a flat step.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloipu_compiler.compilation import (
    Clock,
    Compilation,
    CompileRequest,
    Distribution,
    Phase,
    unmeasured,
)
from hloipu_compiler.distributing import begun, require_whole_stacks
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.lowering.core.lowering import lower, taken_share
from hloipu_compiler.memo import Memo, Same
from hloipu_compiler.on_demand import says_anything
from hloipu_compiler.passes.framework.pass_base import Pass
from hloipu_compiler.passes.fusion.recompute_cheap import RecomputeCheap
from hloipu_compiler.passes.order_for_memory import OrderForMemory
from hloipu_compiler.passes.pipeline import Pipeline
from hloipu_compiler.passes.pipelines import AFTER_FRONT, BEFORE_BLOCKS, STAGED, before_cut
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.plan.entry_arrays import parameter_arrays
from hloipu_compiler.plan.participants import meets_others
from hloipu_compiler.plan.pipelining import OFF, PipelineRequest
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.replica_keys import NO_KEYS, ReplicaKeys, replica_keys
from hloipu_compiler.plan.roles import required_wrapping, with_roles, wrapping_of
from hloipu_compiler.plan.wrapping import Wrapping, looped
from hloipu_compiler.planners.placing import GRAIN_BYTES
from hloipu_compiler.planners.planned import Record
from hloipu_compiler.planners.tuning import Tuning
from hloipu_compiler.step_merging import with_merged_steps
from hloipu_runtime.errors import UsageError
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.watching import doing

if TYPE_CHECKING:
    from hloipu_compiler.cost_survey.op_prices import OpPrice
    from hloipu_compiler.partition.scans.pieces import InPieces
    from hloipu_compiler.partition.scans.staged_loops import StepApart
    from hloipu_compiler.partition.stages.cutting import Costing
    from hloipu_compiler.partition.stages.pipelining import Cutting


def compile_module(
    module: Module,
    request: CompileRequest,
    until: Phase = Phase.PROGRAM,
    clock: Clock = unmeasured,
) -> Compilation:
    """Compile a verified module, up to a phase; the clock is told of `passes` and `codegen`.

    A step in Graphcore's encoding is made plain first; what it says counts where nothing is asked.
    Raises NotStaticError for sizes known only while running, CodegenError for ops that have no
    program, UnsupportedError E0457 for ops without meaning for their types, UsageError E3150 to
    E3152 for a wrapping that cannot be, StagingError for a step that cannot be cut, ShardingError
    E0550 to E0553 for one that cannot be placed, MachineError E3210 for more participants than
    IPUs, and what passes raise.
    """
    return continued(begun(module, request), until, clock)


def continued(
    current: Compilation, until: Phase = Phase.PROGRAM, clock: Clock = unmeasured
) -> Compilation:
    """Go on with a compilation where it stopped, up to a phase; raises as `compile_module` does."""
    for phase, name, told, run in _PHASES:
        if current.phase < phase <= until:
            with clock(name), doing(told):
                current = replace(run(current), phase=phase)
    return current


def _flattened(current: Compilation) -> Compilation:
    request, module = current.request, current.module
    if current.distribution is Distribution.PLAIN:
        return replace(current, wrapping=wrapping_of(current.given, request.wrapping))
    if current.distribution is Distribution.PLACED:
        front = request.pipeline if _after_front(request) is None else "front"
        wrapped = wrapping_of(current.given, request.wrapping)
    else:
        front = before_cut(request.pipeline)
        cut = request.pipelining
        # Replicas alone change nothing of what is fed and what is loaded once.
        users = current.given
        wrapped = required_wrapping(users, looped(request.wrapping), feeds_rest=cut.asks)
        request = replace(request, pipelining=with_roles(users, request.wrapping, cut))
    flat, plan = _flat(module, current.plan, front, is_placed=request.shards.is_placed)
    return replace(current, request=request, module=flat, plan=plan, wrapping=wrapped)


def _flat(
    module: Module, plan: Plan, front: Pipeline | str, *, is_placed: bool
) -> tuple[Module, Plan]:
    """Return a step on arrays alone, after its first passes; `plan`: as it is read."""

    def passed() -> tuple[Module, Plan]:
        from hloipu_compiler.plan.flat_arrays import with_flat_parameters, with_flat_results

        marked = module
        if is_placed:
            from hloipu_compiler.partition.placement.handing_down import handed_down

            marked = handed_down(module, plan.partitions)
        flat, known = _passed(with_flat_parameters(marked), plan, front)
        return with_flat_results(flat), known

    if front != "front":  # which may have passes of a user's plugin
        return passed()
    return FLAT_MEMO.of((Same(module), plan.replicas, plan.partitions, is_placed), passed)


FLAT_MEMO: "Memo[tuple[Module, Plan]]" = Memo(2)
"""Flat steps of modules, as `PLAIN_MEMO`."""


def _passed(module: Module, plan: Plan, pipeline: Pipeline | str) -> tuple[Module, Plan]:
    return run_passes(module, plan, pipeline, verify_each=False)


def _after_front(request: CompileRequest) -> Pipeline | None:
    """Return the passes that follow `front`; None for a pipeline that does not begin with it."""
    return AFTER_FRONT.get(request.pipeline) if isinstance(request.pipeline, str) else None


def _apart(current: Compilation) -> Compilation:
    if current.distribution is Distribution.PLAIN:
        return current
    request, cut, shards = current.request, current.request.pipelining, current.request.shards
    from hloipu_compiler.partition.placement.blocks import NOT_CUT, require_one_stage

    if current.distribution is Distribution.PLACED:
        if not shards.asks:
            return current
        costed_as = PipelineRequest(stages=shards.count, offload=OFF)
        return replace(current, module=_in_blocks(current, _roles(current), costed_as, NOT_CUT))
    flat, wrapping = current.module, current.wrapped
    if shards.asks:
        require_one_stage(flat, cut)
        flat = _in_blocks(current, wrapping, cut, cut)
    from hloipu_compiler.partition.scans.staged_loops import staged_step, step_apart

    apart = step_apart(flat, wrapping, cut)
    step = staged_step(apart, _cutting_apart(apart, request, current.plan))
    if current.partitioned is not None:
        require_whole_stacks(current.given, current.partitioned, step.pieces.stacks)
    return replace(
        current,
        request=replace(request, pipelining=step.request),
        module=step.pieces.module,
        wrapping=step.pieces.wrapping,
        step=step,
        combines=meets_others(flat),
    )


def _roles(current: Compilation) -> Wrapping | None:
    """Return what the parameters are, as far as can be told; blocks may be chosen without."""
    try:
        return required_wrapping(current.given, looped(current.request.wrapping), feeds_rest=True)
    except UsageError:
        return current.wrapping


def _in_blocks(
    current: Compilation, roles: Wrapping | None, costed_as: PipelineRequest, cut: PipelineRequest
) -> Module:
    """Return a flat module whose ops state their blocks; annotations of its own stand instead."""
    flat, plan, request = current.module, current.plan, current.request
    if says_anything(flat, plan.partitions):
        return flat
    costs = _costs(flat, replace(request, pipelining=costed_as), plan)
    from hloipu_compiler.partition.placement.blocks import block_candidates, least_full, with_blocks

    candidates = block_candidates(flat.entry, roles, request.shards, costs, cut)
    if request.shards.count is not None:
        return with_blocks(flat, next(candidates))
    machine, state = request.computing, current.state
    from hloipu_compiler.partition.placement.placing import placed

    shares = ((x, taken_share(flat, placed(flat, plan, x, state), machine)) for x in candidates)
    return with_blocks(flat, least_full(shares))


def _cutting_apart(apart: "StepApart", request: CompileRequest, plan: Plan) -> "Cutting | None":
    """Return the stages of a step apart; None where none are looked for, or rows have none."""
    if apart.pieces is None:
        return None
    asked = replace(request, pipelining=apart.request)
    from hloipu_compiler.partition.training.errors import StagingError

    try:
        return _cutting(apart.pieces, asked, plan, apart.trips, {})
    except StagingError:
        if apart.peeled is not None:
            raise
        return None  # the step as it is may do; if not, its error is by the user's numbers


def _cutting(
    pieces: "InPieces",
    request: CompileRequest,
    plan: Plan,
    trips: Mapping[str, Hashable],
    known: Mapping[str, int],
) -> "Cutting":
    """Return where a step is cut; `request`: by the numbers before it was in pieces."""
    asked = pieces.request(request.pipelining)
    from hloipu_compiler.partition.stages.pipelining import cutting_of, uncut_step

    uncut = uncut_step(pieces.module, pieces.wrapping, asked, known)
    costs = _costs(uncut.module, request, plan) if uncut.needs_costs else None
    return cutting_of(uncut, pieces.wrapping, asked, costs, trips)


def _cut(current: Compilation) -> Compilation:
    if current.distribution is Distribution.PLAIN:
        return current
    if current.distribution is Distribution.PLACED:
        return _placed(current)
    request, plan, wrapping = current.request, current.plan, current.wrapped
    asked, shards = request.pipelining, request.shards
    from hloipu_compiler.partition.scans.pieces import InPieces

    pieces = InPieces(current.module, wrapping, (), None)
    cutting = _cutting(pieces, request, plan, {}, current.step.known if current.step else {})
    if cutting.needs_cycles:
        cutting = replace(cutting, cycles=_costs(cutting.module, request, plan).cycles)
    from hloipu_compiler.partition.stages.pipelining import pipelined

    cut, pipelining = pipelined(cutting, wrapping, asked)
    loops = current.step.lines if current.step else ()
    pipelining = replace(pipelining, loops=loops, numbers=asked.numbers)
    from hloipu_compiler.partition.placement.placing import placed, placed_cut

    if shards.is_placed:
        plan, pipelining = placed_cut(cut, plan, pipelining, current.state)
        shards.check(pipelining.ipu_count)
    copies = plan.replicas
    if shards.fills:
        most_replicas = shards.ipus // pipelining.span
        copies = max(copies, shards.replicas(plan.shards) if plan.ipus else most_replicas)
    averages = copies > 1 and shards.averages
    plan = replace(plan, replicas=copies, averages_gradients=averages)
    if averages and asked.shard_optimizer:
        from hloipu_compiler.partition.training.sharded_update import sharded_update

        cut, whole, combined = sharded_update(cut, pipelining, wrapping, copies)
        pipelining = replace(pipelining, whole=whole, combined=combined)
        if plan.ipus:
            plan = placed(cut, plan, plan.ipus, current.state)
    return replace(current, module=cut, keyed=cut, plan=plan, pipelining=pipelining)


def _placed(current: Compilation) -> Compilation:
    flat, shards = current.module, current.request.shards
    from hloipu_compiler.partition.placement.placing import placed

    plan = placed(flat, current.plan, {}, current.state)
    shards.check(plan.shards)
    if shards.fills:
        plan = replace(plan, replicas=shards.replicas(plan.shards))
    if plan.replicas > 1 and shards.averages and current.wrapping is not None:
        from hloipu_compiler.partition.placement.blocks import NOT_CUT
        from hloipu_compiler.partition.stages.pipelining import phases_and_kind

        phases, trains = phases_and_kind(flat.entry, current.wrapping, NOT_CUT)
        if trains:
            from hloipu_compiler.partition.placement.gradient_means import with_gradient_means

            flat = with_gradient_means(flat, phases, plan.ipus, plan.replicas)
            plan = replace(placed(flat, plan, plan.ipus, current.state), averages_gradients=True)
    return replace(current, module=flat, plan=plan)


_LEAST_GAP = 32
"""Ops for which a cheap value has to be unread to be made again, where blocks become functions, so
that blocks stay equal. Assumed: more than a norm has, and less than a layer."""


def _with_passes(current: Compilation) -> Compilation:
    rest: Pipeline | str | None = current.request.pipeline
    if current.distribution is not Distribution.PLAIN:
        rest = STAGED if current.distribution is Distribution.CUT else _after_front(current.request)
    module, plan = current.module, _with_sums(current)
    if current.partitioned is not None and current.pipelining is not None:
        from hloipu_compiler.partition.spmd.merging import with_merged_collectives
        from hloipu_compiler.partition.stages.update_places import placed as places

        module = with_merged_collectives(module, places(module, current.pipelining))
    outlines, back = current.request.outlines, _after_front(current.request)
    outlines = outlines and back is not None
    makes_again = (
        current.distribution is Distribution.CUT and current.request.pipelining.recompute != "none"
    )
    if outlines and current.distribution is Distribution.PLAIN:
        module, plan = _passed(module, plan, "front")
        rest = back
    if outlines or makes_again:
        # Weights' gradients, which texts often have last, else keep values of all layers alive.
        word_bytes = GRAIN_BYTES * current.request.machine.chip.tiles_per_ipu
        passes: list[Pass] = [OrderForMemory(only_frees=True, few_bytes=word_bytes)]
        if makes_again:
            # Before blocks become functions, which would hand out the values to keep.
            passes.append(RecomputeCheap(least_gap=_LEAST_GAP) if outlines else RecomputeCheap())
        module, plan = BEFORE_BLOCKS_MEMO.of(
            (
                Same(module),
                Same(current.plan),
                Same(current.pipelining),
                current.request.pipelining.offload_accumulators,
                outlines,
                *passes,
            ),
            partial(_before_blocks, passes, module, plan, absorbs=outlines),
        )
    if outlines:
        from hloipu_compiler.passes.outline_blocks import (
            FINE_BLOCKS,
            JOINED_REDUCTIONS,
            OutlineBlocks,
        )

        outliner = OutlineBlocks()
        if current.request.tuning.counts_called_code:
            outliner = FINE_BLOCKS if current.request.parts_reductions else JOINED_REDUCTIONS
        module = outliner.on_ipus(module, plan, _ipus_of_calls(current))
    if rest is None:
        return current
    module, plan = _passed(module, plan, rest)
    if not plan.ipus and current.distribution is not Distribution.PLACED:
        return replace(current, module=module, plan=plan)
    from hloipu_compiler.partition.placement.placing import placed, spread

    plan = placed(module, plan, plan.ipus, current.state)  # what passes made has no IPU yet
    cut = current.pipelining and spread(module, plan, current.pipelining)
    return replace(current, module=module, plan=plan, pipelining=cut)


BEFORE_BLOCKS_MEMO: "Memo[tuple[Module, Plan]]" = Memo(1)
"""Modules before blocks become functions, however fine these are."""


def _before_blocks(
    passes: Iterable[Pass], module: Module, plan: Plan, *, absorbs: bool
) -> tuple[Module, Plan]:
    for rewrite in passes:
        module, plan = rewrite.run(module, plan)
    return _passed(module, plan, BEFORE_BLOCKS) if absorbs else (module, plan)


def _ipus_of_calls(current: Compilation) -> Mapping[str, int]:
    """Return where the computations of stages run, by their names."""
    entry, cut = current.module.entry, current.pipelining
    parts = cut.parts if cut is not None else ()
    return {entry[part.call].attributes.called[0]: part.ipu for part in parts}


def _with_sums(current: Compilation) -> Plan:
    """Return the plan with what calls hand out to be added up on tiles at once: gradients."""
    cut = current.pipelining
    if cut is None or current.request.pipelining.offload_accumulators:
        return current.plan
    elements: dict[str, frozenset[int]] = {}
    for gradient in cut.accumulations:
        (name,) = current.module.entry[gradient.call].attributes.called
        elements[name] = elements.get(name, frozenset()) | {gradient.element}
    return replace(current.plan, added_up=MappingProxyType(elements))


def _lowered(current: Compilation) -> Compilation:
    request, cut = current.request, current.pipelining
    plans: list[Record] | None = [] if request.keeps_plans else None
    planned = current.module, current.plan, request.machine
    if cut is not None:
        from hloipu_compiler.lowering.core.offloading import offloads

        offload = offloads(request.pipelining, cut, request.machine)
        wrapped = current.wrapped
        from hloipu_compiler.lowering.pipelines.pipelined_step import lower_pipelined

        program = lower_pipelined(*planned, wrapped, cut, request.tuning, plans, offload=offload)
    elif current.wrapping is not None:
        from hloipu_compiler.lowering.pipelines.device_loop import lower_wrapped

        program = lower_wrapped(*planned, current.wrapping, request.tuning, plans)
    else:
        program = lower(*planned, request.tuning, plans)
    return replace(current, lowered=program, plans=tuple(plans or ()))


def _finished(current: Compilation) -> Compilation:
    program, plan = current.program, current.plan
    if current.step is not None:
        from hloipu_compiler.partition.scans.pieces_numbers import with_stacks

        program = with_stacks(program, current.step.pieces.stacks)
    keys = _keys(current, program)
    if keys is not NO_KEYS or plan.replicas * plan.partitions > 1:
        program = replace(
            program, keys=keys.folded, replicas=plan.replicas, partitions=plan.partitions
        )
    if current.partitioned is not None:
        partitioning = current.partitioned.with_streams(program.queues)
        program = replace(program, partitioning=partitioning)
    return replace(current, lowered=program, keys=keys)


def _keys(current: Compilation, program: Program) -> ReplicaKeys:
    cut, replicas = current.pipelining, current.plan.replicas
    if replicas == 1 and (cut is None or cut.micro_batches == 1):
        return NO_KEYS
    names = {x.number: x.name for x in parameter_arrays(current.given)}
    module = current.keyed or current.module
    known = None if current.combines else cut  # what replicas combine
    asked, wrapping = current.request.wrapping.replica_keys, current.wrapping
    modules = (Same(module), Same(wrapping), Same(known), Same(current.given))
    return KEYS_MEMO.of(
        (*modules, replicas, asked, program.stacks),
        lambda: replica_keys(module, wrapping, known, replicas, names, asked, program.stacks),
    )


KEYS_MEMO: "Memo[ReplicaKeys]" = Memo(2)
"""Keys of modules, as `FLAT_MEMO`: programs of one module have the same."""


_PHASES = (
    (Phase.FLAT, "passes", "flat step", _flattened),
    (Phase.APART, "passes", "loops over layers", _apart),
    (Phase.CUT, "passes", "stages", _cut),
    (Phase.PASSES, "passes", "passes", _with_passes),
    (Phase.LOWERED, "codegen", "lowering", _lowered),
    (Phase.MERGED, "codegen", "merging steps", with_merged_steps),
    (Phase.PROGRAM, "codegen", "replicas and keys", _finished),
)
"""Phases in their order, each with the name that clocks know it by, and what listeners hear."""

_NOBODY_ELSE = Plan()


def op_prices(
    module: Module, machine: Machine, tuning: Tuning, plan: Plan = _NOBODY_ELSE
) -> "list[OpPrice]":
    """Return what each op of a flat module's entry takes; nothing for what is no work.

    `plan`: has the participants that meet at collectives, an IPU each.
    """
    from hloipu_compiler.cost_survey.op_prices import OpKinds

    request = one_op_request(machine, tuning)
    counts = plan.replicas, plan.partitions
    programs = partial(one_op_program, request, plan=plan)
    return OpKinds(module).prices(programs, machine, request.tuning, counts)


def one_op_request(machine: Machine, tuning: Tuning) -> CompileRequest:
    """Return the request by which an op is compiled alone.

    It calls nothing; so its price is known, whether called code counts or not.
    """
    return CompileRequest(machine, tuning=replace(tuning, counts_called_code=False))


def one_op_program(request: CompileRequest, alone: Module, plan: Plan = _NOBODY_ELSE) -> Program:
    """Return the program of a module of one op, before steps are merged.

    `plan`: has the participants that meet at collectives, an IPU each.
    """
    meeting = _NOBODY_ELSE
    if meets_others(alone):
        meeting = Plan(replicas=plan.replicas, partitions=plan.partitions)
    program = continued(Compilation(request, alone, meeting), Phase.LOWERED).program
    return for_participants(program, meeting)


def for_participants(program: Program, plan: Plan) -> Program:
    """Return a program that knows of those that it meets."""
    return replace(program, replicas=plan.replicas, partitions=plan.partitions)


def _costs(module: Module, request: CompileRequest, plan: Plan) -> "Costing":
    machine = request.computing
    prices = op_prices(module, machine, request.tuning, plan)
    from hloipu_compiler.cost_survey.costing import costing_of

    return costing_of(prices, machine, request.pipelining)
