"""From a verified module to a compiled program: the only place that knows every phase."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from hloipu_compiler.analysis.meanings import require_meanings
from hloipu_compiler.analysis.source_lines import SourceLines
from hloipu_compiler.codegen import table  # noqa: F401  (registers the lowerings)
from hloipu_compiler.codegen.io_tiles import computing_machine
from hloipu_compiler.codegen.lowering import lower, taken_share
from hloipu_compiler.codegen.offloading import offloads
from hloipu_compiler.codegen.pipelined_step import lower_pipelined
from hloipu_compiler.codegen.planned import Record
from hloipu_compiler.codegen.tuning import DEFAULT_TUNING, Tuning
from hloipu_compiler.codegen.wrapped_step import lower_wrapped
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.pipeline import Pipeline
from hloipu_compiler.passes.pipelines import STAGED, before_cut
from hloipu_compiler.passes.remove_annotations import annotations_removed
from hloipu_compiler.passes.runner import Watcher, run_passes
from hloipu_compiler.plan.entry_arrays import parameter_arrays
from hloipu_compiler.plan.flat_arrays import with_flat_parameters, with_flat_results
from hloipu_compiler.plan.participants import meets_others, participants_for
from hloipu_compiler.plan.pipelining import OFF, PipelineRequest, Pipelining
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.replica_keys import NO_KEYS, ReplicaKeys, replica_keys
from hloipu_compiler.plan.roles import required_wrapping, with_roles, wrapping_of
from hloipu_compiler.plan.wrapping import Wrapping, WrappingRequest, looped
from hloipu_compiler.poplar.reading import flat_step
from hloipu_compiler.pricing.costing import costing_on
from hloipu_compiler.sharding.handing_down import handed_down, says_anything
from hloipu_compiler.sharding.placing import placed, placed_cut, spread
from hloipu_compiler.sharding.request import ShardRequest
from hloipu_compiler.sharding.sharded import in_blocks, require_one_stage, sharded
from hloipu_compiler.stacking.named_pieces import with_stacks
from hloipu_compiler.stacking.staged_loops import staged_step
from hloipu_compiler.staging.call_marks import with_call_marks
from hloipu_compiler.staging.pipelining import pipelined
from hloipu_compiler.staging.sharded_update import sharded_update
from hloipu_compiler.verify.static import require_static
from hloipu_runtime.errors import UsageError
from hloipu_runtime.machine.links import check_system
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.merging import merged
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.side_by_side import side_by_side

Phase = Callable[[str], AbstractContextManager[None]]
"""Encloses the part of the work that it is given the name of, such as a clock."""


def unmeasured(_name: str) -> AbstractContextManager[None]:
    """Enclose a part of the work in nothing."""
    return nullcontext()


NOT_WRAPPED = WrappingRequest()
NOT_PIPELINED = PipelineRequest()
NOT_SHARDED = ShardRequest()


@dataclass(frozen=True)
class Compilation:
    """What each phase made of a module."""

    module: Module
    """After the passes."""
    plan: Plan
    program: Program
    wrapping: Wrapping | None = None
    """How the entry is wrapped, where that was asked for."""
    pipelining: Pipelining | None = None
    """How it is cut into micro-batches and stages, where that was asked for."""
    keys: ReplicaKeys = NO_KEYS
    """Of random numbers, where it runs on several replicas."""


def compile_module(
    module: Module,
    machine: Machine,
    *,
    pipeline: Pipeline | str = "default",
    verify_each: bool = False,
    watch: Watcher | None = None,
    phase: Phase = unmeasured,
    wrapping: WrappingRequest = NOT_WRAPPED,
    pipelining: PipelineRequest = NOT_PIPELINED,
    shards: ShardRequest = NOT_SHARDED,
    replicas: int | None = None,
    ipus: int = 1,
    tuning: Tuning = DEFAULT_TUNING,
    plans: list[Record] | None = None,
) -> Compilation:
    """Compile a verified module for a machine; phases: `passes` and `codegen`.

    `wrapping`: the entry is a step whose state stays on the device, in a loop of its own perhaps.
    `pipelining`: the step is cut into micro-batches and stages; the passes of
    `front` comes before the cut, `STAGED` after it; of `pipeline` counts what comes before
    `default` or `lean`, which is run first.
    `shards`: ops are placed on several IPUs, as they are annotated too.
    `replicas`: copies that run it on data of their own; None: as many as its collectives name, or
    of a wrapped step that names none, as many as a system of `ipus` has room for.
    A step in Graphcore's encoding is made plain first; what it says counts where nothing is asked.
    `plans` takes the records of what planners chose, made for nobody else.
    Raises NotStaticError for sizes known only while running, CodegenError for ops that have no
    program, UnsupportedError E0457 for ops without meaning for their types, UsageError E3150 to
    E3152 for a wrapping that cannot be, StagingError for a step that cannot be cut, MachineError
    E3210 for more participants than IPUs, and what passes raise.
    """
    require_static(module)
    require_meanings(module)
    module = annotations_removed(module)
    read = flat_step(module, pipelining.micro_batches if pipelining.micro_batches > 1 else None)
    if read is not None:
        module, stated = read.module, read.stated
        wrapping, pipelining = stated.wrapping(wrapping), stated.pipelining(pipelining)
    module = with_call_marks(module)
    copies, partitions = participants_for(module, replicas)
    # Before any work for as many.
    check_system(machine, copies * partitions * max(pipelining.least_ipus, shards.count or 1))
    fills = replicas is None and ipus > 1 and not meets_others(module)
    begun = Plan(replicas=copies, partitions=partitions)
    averages = _averages(module, copies)
    is_sharded = shards.asks or says_anything(module, partitions)
    wanted = replace(
        shards,
        ipus=ipus,
        most=machine.links.max_ipus,
        fills=fills and (wrapping.asks or pipelining.asks or shards.asks),
        averages=not meets_others(module),
        is_placed=is_sharded,
    )
    in_parts = pipelining.shard_optimizer and wrapping.asks and (wanted.fills or averages)
    if is_sharded and not (pipelining.asks or in_parts):
        return _compile_sharded(
            module, begun, machine, pipeline, verify_each, watch, phase, wrapping, wanted,
            tuning, plans,
        )  # fmt: skip
    if pipelining.asks or (wrapping.asks and (fills or averages)):
        made = _compile_pipelined(
            module, begun, machine, before_cut(pipeline), verify_each, watch, phase, wrapping,
            pipelining, wanted, tuning, plans,
        )  # fmt: skip
        return _with_participants(made)
    names = {x.number: x.name for x in parameter_arrays(module)}
    wrapped = wrapping_of(module, wrapping)
    with phase("passes"):
        flat, plan = run_passes(module, begun, pipeline, verify_each=verify_each, watch=watch)
    made = _lowered(flat, plan, machine, wrapped, phase, tuning, plans)
    return _with_keys(made, flat, names, wrapping)


def _compile_sharded(
    module: Module,
    begun: Plan,
    machine: Machine,
    pipeline: Pipeline | str,
    verify_each: bool,
    watch: Watcher | None,
    phase: Phase,
    wrapping: WrappingRequest,
    request: ShardRequest,
    tuning: Tuning,
    plans: list[Record] | None,
) -> Compilation:
    wrapped = wrapping_of(module, wrapping)
    cut = PipelineRequest(stages=request.count, offload=OFF)

    def running(module: Module, plan: Plan, pipeline: Pipeline | str) -> tuple[Module, Plan]:
        return run_passes(module, plan, pipeline, verify_each=verify_each, watch=watch)

    with phase("passes"):
        roles = _roles_for_blocks(module, wrapping, wrapped) if request.asks else None
        computing = computing_machine(machine, wrapping.io_tiles)
        costing = costing_on(computing, cut, tuning)
        taken = partial(taken_share, machine=computing)
        flat, plan = sharded(
            module, begun, pipeline, request, wrapped, roles, running, costing, taken
        )
    names = {x.number: x.name for x in parameter_arrays(module)}
    made = _lowered(flat, plan, machine, wrapped, phase, tuning, plans)
    return _with_keys(made, flat, names, wrapping)


def _roles_for_blocks(
    module: Module, request: WrappingRequest, wrapped: Wrapping | None
) -> Wrapping | None:
    """Return what the parameters are, as far as can be told; blocks may be chosen without."""
    try:
        return required_wrapping(module, looped(request), feeds_rest=True)
    except UsageError:
        return wrapped


def _lowered(
    flat: Module,
    plan: Plan,
    machine: Machine,
    wrapped: Wrapping | None,
    phase: Phase,
    tuning: Tuning,
    plans: list[Record] | None,
) -> Compilation:
    """Return what becomes of a module and its plan after the passes."""
    with phase("codegen"):
        if wrapped is None:
            program = lower(flat, plan, machine, tuning, plans)
        else:
            program = lower_wrapped(flat, plan, machine, wrapped, tuning, plans)
        program = _in_few_steps(program, machine, tuning)
        return _with_participants(Compilation(flat, plan, program, wrapped))


def _in_few_steps(program: Program, machine: Machine, tuning: Tuning) -> Program:
    """Return a program with steps together that can be, and IPUs at work at the same time."""
    tiles = machine.chip.tiles_per_ipu
    if tuning.merge_steps:
        program = merged(program, tiles)
    apart = side_by_side(program, machine)
    # Steps of an IPU that were written between those of others are next to each other only then.
    return merged(apart, tiles) if tuning.merge_steps and apart is not program else apart


def _averages(module: Module, replicas: int) -> bool:
    """Whether replicas combine gradients that the module's own ops do not combine."""
    return replicas > 1 and not meets_others(module)


def _with_keys(
    made: Compilation,
    module: Module,
    names: Mapping[int, str],
    request: WrappingRequest,
    *,
    may_fold: bool = False,
) -> Compilation:
    """Return a compilation with the keys that replicas fold their numbers into.

    `module`: before passes that replicas have no part in; `may_fold`: whether it is known what they
    combine.
    """
    cut = made.pipelining
    if made.plan.replicas == 1 and (cut is None or cut.micro_batches == 1):
        return made
    keys = replica_keys(
        module, made.wrapping, cut if may_fold else None, made.plan.replicas, names,
        request.replica_keys, made.program.stacks,
    )  # fmt: skip
    return replace(made, keys=keys, program=replace(made.program, keys=keys.folded))


def _with_participants(made: Compilation) -> Compilation:
    plan = made.plan
    if plan.replicas == plan.partitions == 1:
        return made
    program = replace(made.program, replicas=plan.replicas, partitions=plan.partitions)
    return replace(made, program=program)


def _compile_pipelined(
    module: Module,
    begun: Plan,
    machine: Machine,
    pipeline: Pipeline | str,
    verify_each: bool,
    watch: Watcher | None,
    phase: Phase,
    wrapping: WrappingRequest,
    request: PipelineRequest,
    shards: ShardRequest,
    tuning: Tuning,
    plans: list[Record] | None,
) -> Compilation:
    # Replicas alone change nothing of what is fed and what is loaded once.
    wrapped = required_wrapping(module, looped(wrapping), feeds_rest=request.asks)
    request = with_roles(module, wrapping, request)
    names = {x.number: x.name for x in parameter_arrays(module)}
    with phase("passes"):
        if shards.is_placed:
            module = handed_down(module, begun.partitions)
        module = with_flat_parameters(module)
        flat, plan = run_passes(module, begun, pipeline, verify_each=verify_each, watch=watch)
        flat = with_flat_results(flat)
        computing = computing_machine(machine, wrapping.io_tiles)
        costing = costing_on(computing, request, tuning)
        state = [(x.parameter, x.result) for x in wrapped.state]
        if shards.asks:
            require_one_stage(flat, request)
            taken = partial(taken_share, machine=computing)
            flat = in_blocks(flat, plan, shards, wrapped, state, costing, taken, request)
        step = staged_step(flat, wrapped, request, costing)
        wrapped, request = step.pieces.wrapping, step.request
        cut, pipelining = pipelined(step.pieces.module, wrapped, request, costing, step.known)
        pipelining = replace(pipelining, loops=step.lines)
        state = [(x.parameter, x.result) for x in wrapped.state]
        if shards.is_placed:
            plan, pipelining = placed_cut(cut, plan, pipelining, state)
            shards.check(pipelining.ipu_count)
        copies = plan.replicas
        if shards.fills:
            room = shards.ipus // pipelining.ipu_count
            copies = max(copies, shards.replicas(plan.shards) if plan.ipus else room)
        averages = _averages(module, copies)
        plan = replace(plan, replicas=copies, averages_gradients=averages)
        if averages and request.shard_optimizer:
            cut, whole, combined = sharded_update(cut, pipelining, wrapped, copies)
            pipelining = replace(pipelining, whole=whole, combined=combined)
            if plan.ipus:
                plan = placed(cut, plan, plan.ipus, state)
        made, plan = run_passes(cut, plan, STAGED, verify_each=verify_each, watch=watch)
        if plan.ipus:
            plan = placed(made, plan, plan.ipus, state)
            pipelining = spread(made, plan, pipelining)
    with phase("codegen"):
        offload = offloads(request, pipelining, machine)
        program = lower_pipelined(
            made, plan, machine, wrapped, pipelining, tuning, plans, offload=offload
        )
        program = _in_few_steps(program, machine, tuning)
        program = with_stacks(program, step.pieces.stacks)
    done = Compilation(made, plan, program, wrapped, pipelining)
    return _with_keys(done, cut, names, wrapping, may_fold=not meets_others(flat))


def source_lines(module: Module) -> dict[str, str]:
    """Return `file:line` of every instruction for which the dump says so.

    Of a loop for which it does not, the line of the dump.
    """
    lines = SourceLines(module)
    found = {
        x.name: lines.line(x)
        for computation in module.computations
        for x in computation.instructions
        if x.metadata
    }
    for computation in module.computations:
        for x in computation.instructions:
            span = module.span(x) if x.opcode == "while" else None
            if span is not None and not found.get(x.name):
                found[x.name] = f"HLO line {span.source.line_and_column(span.start)[0]}"
    return {name: line for name, line in found.items() if line}
