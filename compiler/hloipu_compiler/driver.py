"""From a verified module to a compiled program: the only place that knows every phase."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from hloipu_compiler.analysis.source_lines import SourceLines
from hloipu_compiler.codegen.lowering import lower
from hloipu_compiler.codegen.pipelined_step import lower_pipelined
from hloipu_compiler.codegen.planned import Record
from hloipu_compiler.codegen.table import LOWERINGS
from hloipu_compiler.codegen.tuning import DEFAULT_TUNING, Tuning
from hloipu_compiler.codegen.wrapped_step import lower_wrapped
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.pipeline import Pipeline
from hloipu_compiler.passes.pipelines import STAGED
from hloipu_compiler.passes.runner import Watcher, run_passes
from hloipu_compiler.plan.pipelining import Pipelining, PipelineRequest
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.roles import required_wrapping, wrapping_of
from hloipu_compiler.plan.wrapping import Wrapping, WrappingRequest, looped
from hloipu_compiler.staging.pipelining import pipelined
from hloipu_compiler.verify.static import require_static
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.merging import merged
from hloipu_runtime.program.program import Program

Phase = Callable[[str], AbstractContextManager[None]]
"""Encloses the part of the work that it is given the name of, such as a clock."""


def unmeasured(_name: str) -> AbstractContextManager[None]:
    """Enclose a part of the work in nothing."""
    return nullcontext()


NOT_WRAPPED = WrappingRequest()
NOT_PIPELINED = PipelineRequest()

OPCODES = frozenset(LOWERINGS)
"""Ops that have a lowering to tiles."""


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
    tuning: Tuning = DEFAULT_TUNING,
    plans: list[Record] | None = None,
) -> Compilation:
    """Compile a verified module for a machine; phases: `passes` and `codegen`.

    `wrapping`: the entry is a step whose state stays on the device, in a loop of its own perhaps.
    `pipelining`: the step is cut into micro-batches and stages; the passes of
    `front` comes before the cut, `STAGED` after it, whatever `pipeline` says.
    `plans` takes the records of what planners chose, made for nobody else.
    Raises NotStaticError for sizes known only while running, CodegenError for ops that have no
    program, UsageError E3150 to E3152 for a wrapping that cannot be, StagingError for a step that
    cannot be cut, and what passes raise.
    """
    require_static(module)
    if pipelining.asks:
        return _compile_pipelined(
            module, machine, verify_each, watch, phase, wrapping, pipelining, tuning, plans
        )
    wrapped = wrapping_of(module, wrapping)
    with phase("passes"):
        flat, plan = run_passes(module, Plan(), pipeline, verify_each=verify_each, watch=watch)
    with phase("codegen"):
        if wrapped is None:
            program = lower(flat, plan, machine, tuning, plans)
        else:
            program = lower_wrapped(flat, plan, machine, wrapped, tuning, plans)
        if tuning.merge_steps:
            program = merged(program, machine.chip.tiles_per_ipu)
        return Compilation(flat, plan, program, wrapped)


def _compile_pipelined(
    module: Module,
    machine: Machine,
    verify_each: bool,
    watch: Watcher | None,
    phase: Phase,
    wrapping: WrappingRequest,
    request: PipelineRequest,
    tuning: Tuning,
    plans: list[Record] | None,
) -> Compilation:
    wrapped = required_wrapping(module, looped(wrapping), feeds_rest=True)
    with phase("passes"):
        flat, plan = run_passes(module, Plan(), "front", verify_each=verify_each, watch=watch)
        cut, pipelining = pipelined(flat, wrapped, request)
        made, plan = run_passes(cut, plan, STAGED, verify_each=verify_each, watch=watch)
    with phase("codegen"):
        program = lower_pipelined(made, plan, machine, wrapped, pipelining, tuning, plans)
        if tuning.merge_steps:
            program = merged(program, machine.chip.tiles_per_ipu)
    return Compilation(made, plan, program, wrapped, pipelining)


def source_lines(module: Module) -> dict[str, str]:
    """Return `file:line` of every instruction for which the dump says so."""
    lines = SourceLines(module)
    found = {
        x.name: lines.line(x)
        for computation in module.computations
        for x in computation.instructions
        if x.metadata
    }
    return {name: line for name, line in found.items() if line}
