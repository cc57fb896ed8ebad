"""On which IPU each op of the update runs: where the variable is that it helps to update."""

from collections.abc import Mapping

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.shapes import ArrayShape

_NOWHERE = -1


def placed_by_operands(computation: Computation, known: Mapping[int, int]) -> list[int]:
    """Return the IPU of every op; `known`: those of parameters, by position.

    An op is where its largest operand is that is somewhere, else where its users are; what is
    nowhere, such as a number that all share, is on IPU 0.
    """
    found = [known.get(position, _NOWHERE) for position in range(len(computation.instructions))]
    for position, x in enumerate(computation.instructions):
        if found[position] == _NOWHERE and x.operands:
            here = [(_size(computation, i), -found[i]) for i in x.operands
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
