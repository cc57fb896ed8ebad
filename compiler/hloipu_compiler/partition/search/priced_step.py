"""Pricing a step, so that any way to cut it can be looked at."""

from dataclasses import replace

from hloipu_compiler.compilation import CompileRequest, Phase
from hloipu_compiler.cost_survey.costing import needs_of
from hloipu_compiler.cost_survey.op_prices import FREE, source_of
from hloipu_compiler.driver import compile_module, op_prices
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.partition.scans.staged_loops import peeled_step
from hloipu_compiler.partition.search.estimates import Step
from hloipu_compiler.partition.search.forms import MOST_INSTRUCTIONS, Forms, Given
from hloipu_compiler.partition.search.surveying import PricedOps
from hloipu_compiler.partition.stages.cutting import annotated
from hloipu_compiler.partition.stages.loads import loads_of, size_of
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_runtime.memory.plan import available_bytes


def priced_step(module: Module, request: CompileRequest) -> tuple[Step, Wrapping]:
    """Return a verified step priced on a machine, without I/O tiles, and how it is wrapped.

    It is priced as one replica, whatever is asked for. Raises what finding the phases of a step
    raises, UsageError E3150 to E3152 for its wrapping.
    """
    asked = replace(request.pipelining, stages=request.pipelining.stages or 1)
    made = compile_module(
        module, replace(request, pipeline="front", pipelining=asked, replicas=None), Phase.FLAT
    )
    flat, wrapped, pipelining = made.module, made.wrapped, made.request.pipelining
    machine, tuning = request.computing, request.tuning
    marked = annotated(flat.entry)
    peeled = peeled_step(flat, wrapped, pipelining)
    entry, phases = peeled.pieces.module.entry, peeled.phases
    prices = op_prices(peeled.pieces.module, machine, tuning)
    priced = PricedOps(peeled.pieces.module, machine, tuning, prices)
    cycles = [price.cycles for price in prices]
    constants = peeled.pieces.wrapping.constants
    loads = loads_of(entry, phases, constants, cycles, peeled.trips)
    stages = {n: s for n, s in marked.items() if phases.phase[n] in (FORWARD, BACKWARD)}
    can_fit = _most_read(entry) <= machine.chip.tiles_per_ipu * available_bytes(machine)
    most = MOST_INSTRUCTIONS if can_fit else 0
    forms = Forms(Given(flat, wrapped, pipelining), peeled, priced, most)
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
