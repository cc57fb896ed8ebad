"""Pricing a step, so that any way to cut it can be looked at."""

from dataclasses import replace

from hloipu_compiler.choosing.outlook import Step
from hloipu_compiler.codegen.offloading import LEAST_BYTES
from hloipu_compiler.codegen.tuning import DEFAULT_TUNING, Tuning
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.plan.flat_arrays import with_flat_parameters, with_flat_results
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.roles import accumulators_of, carried_of, required_wrapping
from hloipu_compiler.plan.wrapping import Wrapping, WrappingRequest, looped
from hloipu_compiler.pricing.costing import needs_of
from hloipu_compiler.pricing.op_prices import op_prices
from hloipu_compiler.pricing.stage_memory import reads_of
from hloipu_compiler.pricing.survey import Survey, survey_of_kinds
from hloipu_compiler.pricing.whole_step import survey_of_step
from hloipu_compiler.stacking.staged_loops import peeled_step
from hloipu_compiler.staging.call_marks import with_call_marks
from hloipu_compiler.staging.cutting import annotated, work
from hloipu_compiler.staging.loads import loads_of, size_of
from hloipu_compiler.staging.phases import BACKWARD, FORWARD, Phases
from hloipu_compiler.staging.reach import parameter_positions
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.machine.model import Machine

MOST_WHOLE = 15_000
"""Instructions of a step whose program is made to look at it; longer ones are priced op by op."""


def priced_step(
    module: Module,
    machine: Machine,
    wrapping: WrappingRequest,
    request: PipelineRequest,
    tuning: Tuning = DEFAULT_TUNING,
) -> tuple[Step, Wrapping]:
    """Return a verified step priced on a machine, and how it is wrapped.

    Raises what finding the phases of a step raises, UsageError E3150 to E3152 for its wrapping.
    """
    module = with_call_marks(module)
    wrapped = required_wrapping(module, looped(wrapping), feeds_rest=True)
    request = replace(
        request,
        carried=request.carried | carried_of(module, wrapping),
        accumulators=accumulators_of(module, request.accumulator_types),
    )
    flat, _ = run_passes(with_flat_parameters(module), Plan(), "front", verify_each=False)
    flat = with_flat_results(flat)
    marked = annotated(flat.entry)
    peeled = peeled_step(flat, wrapped, request)
    pieces, phases = peeled.pieces, peeled.phases
    flat, wrapped, request = pieces.module, pieces.wrapping, pieces.request(request)
    prices = op_prices(flat, machine, tuning, work)
    cycles = [price.cycles for price in prices]
    loads = loads_of(flat.entry, phases, wrapped.constants, cycles, peeled.trips)
    survey = _whole(flat, wrapped, request, machine, tuning)
    weights = loads
    if survey is None:
        survey = survey_of_kinds(flat.entry, phases, prices, machine.memory.stack_bytes)
    else:
        weights = loads_of(flat.entry, phases, (), cycles)
    stages = {n: s for n, s in marked.items() if phases.phase[n] in (FORWARD, BACKWARD)}
    places = parameter_positions(flat.entry)
    fed = [i for feed in wrapped.feeds for number in feed.places for i in places[number]]
    reads = reads_of(flat.entry, phases, fed)
    step = Step(
        machine,
        flat,
        phases,
        wrapped,
        loads,
        needs_of(flat.entry, prices),
        survey,
        reads,
        weights,
        _aside(flat.entry, phases, wrapped),
        stages,
    )
    return step, wrapped


def _aside(entry: Computation, phases: Phases, wrapped: Wrapping) -> tuple[int, ...]:
    """Return the bytes of each array of state that only the update reads."""
    found = []
    places = parameter_positions(entry)
    for pair in wrapped.state:
        positions = places[pair.parameter]
        users = {phases.phase[user] for i in positions for user in entry.users[i]}
        if positions and not users & {FORWARD, BACKWARD}:
            found.append(size_of(entry.instructions[positions[0]].shape))
    return tuple(size for size in found if size >= LEAST_BYTES)


def _whole(
    flat: Module, wrapped: Wrapping, request: PipelineRequest, machine: Machine, tuning: Tuning
) -> Survey | None:
    """Return the survey of the program of a step; None for what is too long or has none."""
    if len(flat.entry.instructions) > MOST_WHOLE:
        return None
    try:
        return survey_of_step(flat, wrapped, request, machine, tuning)
    except HloipuError:  # ops that need their surroundings, such as collectives
        return None
