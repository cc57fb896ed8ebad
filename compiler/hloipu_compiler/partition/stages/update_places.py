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
    ipu_of = {part.call: part.ipu for part in pipelining.parts}
    ipu_by_op: dict[tuple[str, str], int] = {}
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
        ipu_by_op |= _named(computation, ipus)
    if pipelining.pre:
        computation = _called(module, pipelining.pre)
        ipu_by_op |= _named(
            computation, placed_by_users(computation, _first_readers(module, pipelining))
        )
    return ipu_by_op


def _first_readers(module: Module, pipelining: Pipelining) -> list[int]:
    """Return, for the ops of what `pre` calls, the IPU of the position that reads each result."""
    entry = module.entry
    computation = _called(module, pipelining.pre)
    ipu_by_position = [_NOWHERE] * len(computation.instructions)
    results = computation.instructions[computation.root].operands
    call = entry.position[pipelining.pre]
    for part in reversed(pipelining.parts):
        for i in entry[part.call].operands:
            op = entry.instructions[i]
            if op.operands and op.operands[0] == call:
                ipu_by_position[results[op.attributes.integer("index")]] = part.ipu
    return ipu_by_position


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
    ipu_by_position = [
        known.get(position, _NOWHERE) for position in range(len(computation.instructions))
    ]
    for position, op in enumerate(computation.instructions):
        if ipu_by_position[position] == _NOWHERE and op.operands:
            here = [(_size(computation, i), -ipu_by_position[i]) for i in op.operands
                    if ipu_by_position[i] != _NOWHERE]  # fmt: skip
            if here:
                ipu_by_position[position] = -max(here)[1]
    return placed_by_users(computation, ipu_by_position)


def placed_by_users(computation: Computation, known: list[int]) -> list[int]:
    """Return the IPU of every op, those not known yet where most of their users are."""
    ipu_by_position = list(known)
    for position in range(len(ipu_by_position) - 1, -1, -1):
        if ipu_by_position[position] == _NOWHERE:
            users = [
                ipu_by_position[u]
                for u in computation.users[position]
                if ipu_by_position[u] != _NOWHERE
            ]
            if users:
                ipu_by_position[position] = min(
                    set(users), key=lambda ipu: (-users.count(ipu), ipu)
                )
    return [max(ipu, 0) for ipu in ipu_by_position]


def _size(computation: Computation, position: int) -> int:
    shape = computation.instructions[position].shape
    count = 1
    if isinstance(shape, ArrayShape):
        for size in shape.dimensions:
            count *= size
    return count
