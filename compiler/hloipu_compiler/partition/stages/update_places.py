"""The IPU of each update op: that of the variable it updates."""

from collections.abc import Mapping

from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.plan.pipelining import Pipelining

_NOWHERE = -1


def placed(module: Module, pipelining: Pipelining) -> dict[tuple[str, str], int]:
    """Return the IPU of each op that runs before and after the micro-batches.

    By computation and instruction; none where all is on one IPU.
    """
    if len(frozenset(pipelining.ipus)) == 1 and pipelining.ipu_count == 1:
        return {}
    entry = module.entry
    ipu_of = {x.call: x.ipu for x in pipelining.parts}
    found: dict[tuple[str, str], int] = {}
    if pipelining.update:
        computation = _called(module, pipelining.update)
        known = {}
        for number, position in enumerate(entry[pipelining.update].operands):
            x = entry.instructions[position]
            ipu = (
                pipelining.homes.get(x.parameter_number, _NOWHERE)
                if x.parameter_number >= 0
                else ipu_of.get(entry.instructions[x.operands[0]].name, _NOWHERE)
            )
            known[computation.parameters[number]] = ipu
        ipus = placed_by_operands(computation, known)
        found |= _named(computation, ipus)
    if pipelining.pre:
        computation = _called(module, pipelining.pre)
        found |= _named(
            computation, placed_by_users(computation, _first_readers(module, pipelining))
        )
    return found


def _first_readers(module: Module, pipelining: Pipelining) -> list[int]:
    """Return, for the ops of what `pre` calls, the IPU of the position that reads each result."""
    entry = module.entry
    computation = _called(module, pipelining.pre)
    found = [_NOWHERE] * len(computation.instructions)
    results = computation.instructions[computation.root].operands
    call = entry.position[pipelining.pre]
    for part in reversed(pipelining.parts):
        for i in entry[part.call].operands:
            op = entry.instructions[i]
            if op.operands and op.operands[0] == call:
                found[results[op.attributes.integer("index")]] = part.ipu
    return found


def _named(computation: Computation, ipus: list[int]) -> dict[tuple[str, str], int]:
    return {
        (computation.name, op.name): ipu
        for op, ipu in zip(computation.instructions, ipus, strict=True)
    }


def _called(module: Module, call: str) -> Computation:
    return module.computation[module.entry[call].attributes.called[0]]


def placed_by_operands(computation: Computation, known: Mapping[int, int]) -> list[int]:
    """Return the IPU of every op; `known`: those of parameters, by position.

    An op is where its largest operand is that is somewhere, else where its users are; what is
    nowhere, such as a number that all share, is on IPU 0.
    """
    found = [known.get(position, _NOWHERE) for position in range(len(computation.instructions))]
    for position, op in enumerate(computation.instructions):
        if found[position] == _NOWHERE and op.operands:
            here = [(_size(computation, i), -found[i]) for i in op.operands
                    if found[i] != _NOWHERE]  # fmt: skip
            if here:
                found[position] = -max(here)[1]
    return placed_by_users(computation, found)


def placed_by_users(computation: Computation, found: list[int]) -> list[int]:
    """Return the IPU of every op, those not known yet where most of their users are."""
    made = list(found)
    for position in range(len(made) - 1, -1, -1):
        if made[position] == _NOWHERE:
            users = [made[u] for u in computation.users[position] if made[u] != _NOWHERE]
            if users:
                made[position] = min(set(users), key=lambda ipu: (-users.count(ipu), ipu))
    return [max(ipu, 0) for ipu in made]


def _size(computation: Computation, position: int) -> int:
    shape = computation.instructions[position].shape
    count = 1
    if isinstance(shape, ArrayShape):
        for size in shape.dimensions:
            count *= size
    return count
