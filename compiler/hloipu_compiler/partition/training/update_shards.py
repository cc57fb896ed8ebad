"""Which update ops a replica can do on its part alone.

State that is read by elementwise ops only, and by nothing but what they make, can be split over the
replicas: each updates its part. With the state goes every op that depends on it, and every
elementwise op that is read by those alone; a gradient that only they read comes in parts, too.
Anything else that looks at the state or its followers, such as a norm, keeps it whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape

_NOT_SPLIT = frozenset({"stochastic-convert"})
_SCALARS = frozenset({"clamp", "select"})
"""Ops some of whose operands may be scalars."""


@dataclass(slots=True)
class Cluster:
    """Ops by position, with the parameter whose state they follow."""

    owner: dict[int, int] = field(default_factory=dict)

    def __contains__(self, position: int) -> bool:
        return position in self.owner


def clusters(computation: Computation, state: Mapping[int, int]) -> tuple[Cluster, dict[int, int]]:
    """Return what is done in parts, and which of the state: position of the parameter -> result.

    `state`: by position of the parameter, the number of the result that is its next value.
    """
    cluster, kept = Cluster(), {}
    for position, result in state.items():
        followers = _followers(computation, position)
        if followers is not None:
            kept[position] = result
            for follower in followers:
                cluster.owner.setdefault(follower, position)
    _pull_back(computation, cluster)
    return cluster, kept


def dimensions_of(op: Instruction) -> tuple[int, ...] | None:
    """Return the sizes of an array; None of a tuple."""
    return op.shape.dimensions if isinstance(op.shape, ArrayShape) else None


def is_split(computation: Computation, op: Instruction) -> bool:
    """Whether an op can be done on parts of arrays that are split alike."""
    sizes = dimensions_of(op)
    if op.opcode not in ELEMENTWISE or op.opcode in _NOT_SPLIT or not sizes:
        return False
    for i in op.operands:
        sizes_of_operand = dimensions_of(computation.instructions[i])
        if sizes_of_operand != sizes and not (sizes_of_operand == () and op.opcode in _SCALARS):
            return False
    return True


def _followers(computation: Computation, start: int) -> set[int] | None:
    """Return a parameter and all that depends on it; None where some of that is not elementwise."""
    seen = {start}
    sizes = dimensions_of(computation.instructions[start])
    for position in range(len(computation.instructions)):
        op = computation.instructions[position]
        if position == computation.root or seen.isdisjoint(op.operands):
            continue
        if not is_split(computation, op) or dimensions_of(op) != sizes:
            return None
        seen.add(position)
    return seen


def _pull_back(computation: Computation, cluster: Cluster) -> None:
    """Add ops that can be split and that nothing but the cluster reads."""
    for position in reversed(range(len(computation.instructions))):
        op = computation.instructions[position]
        users = computation.users[position]
        if position in cluster or not users or not is_split(computation, op):
            continue
        if all(user in cluster for user in users):
            cluster.owner[position] = cluster.owner[users[0]]
