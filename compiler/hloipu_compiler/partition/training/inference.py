"""The phases of a step without an update: everything that differs by micro-batch is forward."""

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.partition.training.marks import made_by_each
from hloipu_compiler.partition.training.reach import (
    ancestors,
    dependants,
    parameter_positions,
    result_positions,
)
from hloipu_compiler.partition.training.step_phases import FORWARD, FREE, Phases, Roles


def updates_nothing(entry: Computation, roles: Roles) -> bool:
    """Whether no state gets a new value but such as goes from micro-batch to micro-batch."""
    parameters, results = parameter_positions(entry), result_positions(entry)
    return all(
        pair.parameter in roles.carried or results[pair.result] in parameters[pair.parameter]
        for pair in roles.state
    )


def inference_phases(entry: Computation, roles: Roles) -> Phases:
    """Return the phases of a step of which `updates_nothing` is true."""
    parameters, results = parameter_positions(entry), result_positions(entry)
    carried = tuple(pair for pair in roles.state if pair.parameter in roles.carried)
    seeds = [*roles.data, *(pair.parameter for pair in carried)]
    given = [at for number in seeds for at in parameters[number]]
    varying = dependants(entry, [*given, *made_by_each(entry)])
    needed = ancestors(entry, [at for at in results if at is not None])
    phase = []
    for position, op in enumerate(entry.instructions):
        is_result = position == entry.root and op.opcode == "tuple"
        if not needed[position] or op.parameter_number >= 0 or is_result:
            phase.append("")
        elif op.opcode == "get-tuple-element" and phase[op.operands[0]]:
            phase.append(phase[op.operands[0]])  # no tuple passes from one phase to another
        else:
            phase.append(FORWARD if varying[position] else FREE)
    state = {pair.result for pair in roles.state}
    others = [(n, at) for n, at in enumerate(results) if n not in state and at is not None]
    return Phases(
        tuple(phase),
        (),
        (),
        carried,
        tuple(pair for pair in roles.state if pair.parameter not in roles.carried),
        -1,
        tuple(n for n, at in others if not varying[at]),
        tuple(n for n, at in others if varying[at]),
    )
