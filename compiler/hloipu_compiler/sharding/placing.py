"""The IPU of every op of a flat module, and of all that holds state, as the plan has it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.sharding.cells import OpKey, cells_of
from hloipu_compiler.sharding.propagation import propagated


def placed(
    module: Module,
    plan: Plan,
    known: Mapping[OpKey, int],
    state: Sequence[tuple[int, int]] = (),
) -> Plan:
    """Return the plan with the IPUs of a flat module's ops.

    `known` has those of ops that say nothing themselves, such as passes make of others; what the
    plan has of places that hold state stands. `state`: numbers of parameters and results, tuples
    flattened, that are one array from run to run.
    The plan has no IPUs where all are on the first.
    """
    found = cells_of(module, known, plan.held_ipus, state, plan.partitions)
    ipus = propagated(found.cells)
    if not any(ipus):
        return replace(plan, ipus={}, held_ipus={})
    ops: dict[tuple[str, str], int] = {}
    held: dict[tuple[str, str, int], int] = {}
    for cell, ipu in zip(found.cells, ipus, strict=True):
        match cell.key:
            case (computation, name, leaf):
                held[computation, name, leaf] = ipu
            case (computation, name):
                ops[computation, name] = ipu
    for key, users in found.constants:
        if users:
            ops[key] = ipus[users[0]]
    return replace(plan, ipus=ops, held_ipus=held)
