"""How a module is to run, decided before its first pass: plain, placed on IPUs, or cut.

A step in Graphcore's encoding is made plain, and annotations that divide arrays make it the program
of every partition.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from hloipu_compiler.analysis.meanings import require_meanings
from hloipu_compiler.compilation import Compilation, CompileRequest, Distribution
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.memo import Memo, Same
from hloipu_compiler.on_demand import flat_step, is_divided, says_anything, with_call_marks
from hloipu_compiler.passes.remove_annotations import annotations_removed
from hloipu_compiler.plan.participants import meets_others, participants_for
from hloipu_compiler.plan.pipelining import BATCH
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.roles import required_wrapping, wrapping_of
from hloipu_compiler.plan.wrapping import looped
from hloipu_compiler.verify.static import require_static
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.machine.links import check_system
from hloipu_runtime.program.stacks import KINDS, Numbering, Stack
from hloipu_runtime.watching import doing

if TYPE_CHECKING:
    from hloipu_compiler.graphcore.encoding.flat_step import FlatStep
    from hloipu_compiler.partition.spmd.partitioning import Partitioned


def begun(module: Module, request: CompileRequest) -> Compilation:
    """Return a compilation before its first pass; raises as `driver.compile_module` does."""
    require_static(module)
    require_meanings(module)
    wrapping, cut, shards = request.wrapping, request.pipelining, request.shards
    annotated = module
    encoded, module = _plain(module, cut.micro_batches if cut.micro_batches > 1 else None)
    given = module
    if encoded is not None:
        wrapping, cut = encoded.stated.wrapping(wrapping), encoded.stated.pipelining(cut)
    divided = None
    if request.partition and is_divided(annotated):
        if encoded is not None:
            step = flat_step(annotated, cut.micro_batches)
            annotated = annotated if step is None else step.module
        request = replace(request, wrapping=wrapping, pipelining=cut)
        divided = _divided(annotated, module, request)
        _, module = _plain(divided.module, None)
    if divided is None:
        copies, partitions = participants_for(module, request.replicas)
    else:
        copies, partitions = request.replicas or 1, divided.axes.device_count
    # Before any work for as many.
    least = max(cut.least_ipus, shards.count or 1)
    check_system(request.machine, copies * partitions * least)
    cut = cut.without_gaps()
    meets = meets_others(given)
    fills = request.replicas is None and request.ipus > 1 and not meets and divided is None
    averages = copies > 1 and not meets
    is_placed = shards.asks or says_anything(module, partitions)
    shards = replace(
        shards,
        ipus=request.ipus,
        most=request.machine.links.max_ipus,
        fills=fills and (wrapping.asks or cut.asks or shards.asks),
        averages=not meets,
        is_placed=is_placed,
    )
    in_parts = cut.shard_optimizer and wrapping.asks and (shards.fills or averages)
    if is_placed and not (cut.asks or in_parts):
        distribution = Distribution.PLACED
    elif cut.asks or (wrapping.asks and (fills or averages)):
        distribution = Distribution.CUT
    else:
        distribution = Distribution.PLAIN
    if divided is not None and distribution is Distribution.CUT:
        _, module = _plain(divided.apart, None)
    request = replace(request, wrapping=wrapping, pipelining=cut, shards=shards)
    plan = Plan(replicas=copies, partitions=partitions, product_rooms=request.product_rooms)
    return Compilation(
        request, module, plan, distribution=distribution, read=given, partitioned=divided
    )


def _divided(annotated: Module, bare: Module, request: CompileRequest) -> "Partitioned":
    """Return a module with annotations as the program of every partition."""
    # One of several devices is not said to be an IPU that ops are placed on.
    if says_anything(bare, partitions=2):
        raise _not_divided_with(annotated, "ops that are placed on IPUs of their own")
    from hloipu_compiler.partition.spmd.partitioning import partitioned

    if request.pipelining.asks:
        wrapping = required_wrapping(bare, looped(request.wrapping), feeds_rest=True)
        state = wrapping.state
    else:
        state = wrapped.state if (wrapped := wrapping_of(bare, request.wrapping)) else ()
    with doing("partitioning"):
        try:
            pairs = [(x.parameter, x.result) for x in state]
            early = request.pipelining.gather_weights == BATCH
            return partitioned(annotated, pairs, request.replicas or 1, gathers_early=early)
        except UnsupportedError as error:
            error.hint += "; --partition off compiles it as if there were no annotations"
            raise


def require_whole_stacks(module: Module, divided: "Partitioned", stacks: Iterable[Stack]) -> None:
    """Raise UnsupportedError E0481 where stages share an array along an axis that is divided."""
    numberings = {kind: Numbering(stacks, kind) for kind in KINDS}
    axes = {(x.kind, x.number): x.axes for x in divided.partitioning.arrays}
    for stack in stacks:
        number = numberings[stack.kind].users(stack.first)
        if axes[stack.kind, number][stack.axis]:
            raise _not_divided_with(module, f"stages that share the layers of {stack.name!r}")


def _not_divided_with(module: Module, what: str) -> UnsupportedError:
    """Return the error of a module with annotations that is to be spread in another way as well."""
    return UnsupportedError(
        "E0481",
        f"annotations divide the arrays of {module.name!r} between IPUs, which does not go with "
        f"{what} yet",
        hint="leave the one or the other out; --partition off has annotations say nothing",
    )


def is_cut(module: Module, request: CompileRequest) -> bool:
    """Whether a step runs in pieces or on replicas, so that queues take all of its results."""
    return begun(module, request).distribution is Distribution.CUT


def participants(module: Module, request: CompileRequest) -> tuple[int, int]:
    """Return how many replicas and partitions a module is compiled for."""
    plan = begun(module, request).plan
    return plan.replicas, plan.partitions


def _plain(module: Module, micro_batches: int | None) -> "tuple[FlatStep | None, Module]":
    """Return a module without annotations, encoding and marks of calls, and what those said."""

    def read() -> "tuple[FlatStep | None, Module]":
        bare = annotations_removed(module)
        encoded = flat_step(bare, micro_batches)
        return encoded, with_call_marks(bare if encoded is None else encoded.module)

    return PLAIN_MEMO.of((Same(module), micro_batches), read)


PLAIN_MEMO: "Memo[tuple[FlatStep | None, Module]]" = Memo(2)
"""Modules as they are read; retries, trials of a search and advice begin with the same ones."""
