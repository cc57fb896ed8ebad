"""Pricing a step, so that any way to cut it can be looked at."""

from hloipu_compiler.choosing.forms import MOST_INSTRUCTIONS, Forms, Given
from hloipu_compiler.choosing.outlook import Step
from hloipu_compiler.codegen.io_tiles import computing_machine
from hloipu_compiler.codegen.tuning import DEFAULT_TUNING, Tuning
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.plan.flat_arrays import with_flat_parameters, with_flat_results
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.roles import required_wrapping, with_roles
from hloipu_compiler.plan.wrapping import Wrapping, WrappingRequest, looped
from hloipu_compiler.pricing.costing import needs_of
from hloipu_compiler.pricing.op_prices import FREE, op_prices, source_of
from hloipu_compiler.pricing.survey import Survey, fed_positions, survey_of_kinds
from hloipu_compiler.pricing.whole_step import survey_of_step
from hloipu_compiler.stacking.staged_loops import peeled_step
from hloipu_compiler.staging.call_marks import with_call_marks
from hloipu_compiler.staging.cutting import annotated, work
from hloipu_compiler.staging.loads import loads_of, size_of
from hloipu_compiler.staging.step_phases import BACKWARD, FORWARD, Phases
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.plan import available_bytes

MOST_WHOLE = 15_000
"""Instructions of a step whose program is made to look at it; longer ones are priced op by op."""


def priced_step(
    module: Module,
    machine: Machine,
    wrapping: WrappingRequest,
    request: PipelineRequest,
    tuning: Tuning = DEFAULT_TUNING,
) -> tuple[Step, Wrapping]:
    """Return a verified step priced on a machine, without I/O tiles, and how it is wrapped.

    Raises what finding the phases of a step raises, UsageError E3150 to E3152 for its wrapping.
    """
    machine = computing_machine(machine, wrapping.io_tiles)
    module = with_call_marks(module)
    wrapped = required_wrapping(module, looped(wrapping), feeds_rest=True)
    request = with_roles(module, wrapping, request)
    flat, _ = run_passes(with_flat_parameters(module), Plan(), "front", verify_each=False)
    flat = with_flat_results(flat)
    marked = annotated(flat.entry)
    peeled = peeled_step(flat, wrapped, request)
    entry, phases = peeled.pieces.module.entry, peeled.phases
    prices = op_prices(peeled.pieces.module, machine, tuning, work)
    cycles = [price.cycles for price in prices]
    constants = peeled.pieces.wrapping.constants
    loads = loads_of(entry, phases, constants, cycles, peeled.trips)

    def surveying(
        module: Module, phases: Phases, wrapping: Wrapping, request: PipelineRequest
    ) -> Survey:
        survey = _whole(module, phases, wrapping, request, machine, tuning)
        if survey is not None:
            return survey
        is_same = module is peeled.pieces.module
        priced = prices if is_same else op_prices(module, machine, tuning, work)
        fed = fed_positions(module.entry, wrapping)
        return survey_of_kinds(module.entry, phases, priced, machine.memory.stack_bytes, fed)

    stages = {n: s for n, s in marked.items() if phases.phase[n] in (FORWARD, BACKWARD)}
    can_fit = _most_read(entry) <= machine.chip.tiles_per_ipu * available_bytes(machine)
    most = MOST_INSTRUCTIONS if can_fit else 0
    forms = Forms(Given(flat, wrapped, request), peeled, cycles, surveying, most)
    return Step(machine, loads, needs_of(entry, prices), forms, stages, can_fit), wrapped


def _most_read(entry: Computation) -> int:
    """Return the most bytes of parameters that one op reads: they have to be on its IPU at once."""
    most = 0
    for x in entry.instructions:
        if x.opcode not in FREE:
            sources = {source_of(entry, i) for i in x.operands}
            given = (n for n in sources if entry.instructions[n].parameter_number >= 0)
            most = max(most, sum(size_of(entry.instructions[n].shape) for n in given))
    return most


def _whole(
    flat: Module,
    phases: Phases,
    wrapped: Wrapping,
    request: PipelineRequest,
    machine: Machine,
    tuning: Tuning,
) -> Survey | None:
    """Return the survey of the program of a step; None for what is too long or has none."""
    if sum(len(each.instructions) for each in flat.computations) > MOST_WHOLE:
        return None
    try:
        return survey_of_step(flat, phases, wrapped, request, machine, tuning)
    except HloipuError:  # ops that need their surroundings, such as collectives
        return None
