"""Splits steps over several IPUs into local parts and parts between IPUs."""

from collections.abc import Sequence

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import (
    ComputeSet,
    Definition,
    Exchange,
    Step,
    Transfer,
    VariableId,
)
from hloipu_runtime.program.uses import used

_CROSSING = -1


def parts_by_ipu(program: Program, step: Step) -> Sequence[Step]:
    """Return what of a step is on single IPUs, each by itself, and the rest; else the step."""
    match step:
        case ComputeSet():
            return _compute_sets(program, step)
        case Exchange():
            return _exchanges(program, step)
        case _:
            return (step,)


def _compute_sets(program: Program, step: ComputeSet) -> Sequence[Step]:
    by_ipu: dict[int, list[int]] = {}
    for number, group in enumerate(step.groups):
        operands = (*group.outputs, *group.inputs)
        ipu = program.variables[operands[0].variable].ipu if operands else 0
        by_ipu.setdefault(ipu, []).append(number)
    if len(by_ipu) < 2:
        return (step,)
    return [ComputeSet(tuple(step.groups[n] for n in numbers)) for numbers in by_ipu.values()]


def _exchanges(program: Program, step: Exchange) -> Sequence[Step]:
    """Return an exchange in parts, if none of them reads what another one fills."""
    ipus = {variable: program.variables[variable].ipu for variable in used(step, program)}
    sources = {transfer.source for transfer in step.transfers}
    filled = {transfer.destination for transfer in step.transfers} | {
        transfer.variable for transfer in step.definitions
    }
    if len(set(ipus.values())) < 2 or sources & filled:
        return (step,)
    crossing = {
        transfer.destination
        for transfer in step.transfers
        if ipus[transfer.source] != ipus[transfer.destination]
    }
    transfers: dict[int, list[Transfer]] = {}
    definitions: dict[int, list[Definition]] = {}

    def part(variable: VariableId) -> int:
        return _CROSSING if variable in crossing else ipus[variable]

    for transfer in step.transfers:
        transfers.setdefault(part(transfer.destination), []).append(transfer)
    for definition in step.definitions:
        definitions.setdefault(part(definition.variable), []).append(definition)
    parts = sorted(transfers.keys() | definitions.keys())
    if len(parts) == 1:
        return (step,)
    return [
        Exchange(tuple(transfers.get(n, ())), tuple(definitions.get(n, ())), step.name)
        for n in parts
    ]
