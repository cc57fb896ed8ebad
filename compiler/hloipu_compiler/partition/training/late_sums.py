"""Gradients summed over devices once a batch, not in each micro-batch.

Devices of a mesh's data axes have partial sums of a gradient, which a collective adds up. That sum
is linear, and so is what micro-batches do to gradients: each device adds up its own partial sums,
and the update begins with one collective of the totals. What stands between the collective and
the end of the gradient goes to the update as well, if it is linear with factors that do not vary.

An all-reduce costs no memory there: partial sums are as large as sums. A reduce-scatter's operand
is as many times its result as devices meet, and its accumulator is whole then, as it is in
PyTorch's FSDP with `no_sync` and in replicas without a sharded optimizer.

Totals are of the type in which the gradient was added up, and rounded as micro-batches add: in
half precision each device rounds its own partial sums, K times for K micro-batches.
"""

from dataclasses import replace

from hloipu_compiler.ir.graph import Computation, Instruction, Module, with_computation
from hloipu_compiler.partition.training.step_phases import BACKWARD, FREE, UPDATE, Gradient, Phases
from hloipu_compiler.passes.loops.device_sums import (
    DeviceSum,
    MovedSums,
    Sums,
    device_sum,
    moved_operand,
)

_FIRST_VARIES = frozenset({"divide", "dynamic-slice"})
"""Opcodes that are linear in their first operand where the others do not vary."""


def with_late_sums(
    module: Module, phases: Phases, *, scatters: bool = True
) -> tuple[Module, Phases]:
    """Return a flat step whose update adds gradients up over devices, and its phases.

    The same ones where no gradient is a sum over devices that only the update reads. `scatters`:
    reduce-scatters as well as all-reduces.
    """
    opcodes = ("all-reduce", "reduce-scatter") if scatters else ("all-reduce",)
    entry, sums = module.entry, Sums(module)
    if not any(op.opcode in opcodes for op in entry.instructions):
        return module, phases
    summed = {
        g.position: each
        for g in phases.gradients
        if (each := _sum(entry, phases, sums, g.position, opcodes)) is not None
    }
    if not summed:
        return module, phases
    moved = MovedSums(entry, sums, summed, comes_late=True)
    phase = [
        UPDATE if at in moved.late else phases.phase[moved.origin[at]]
        for at in range(len(moved.instructions))
    ]
    weights: dict[int, tuple[int, ...]] = {}
    for g in phases.gradients:
        at = moved.source.get(g.position, moved.place[g.position])
        weights[at] = tuple(dict.fromkeys((*weights.get(at, ()), *g.parameters)))
    gradients = tuple(Gradient(*each) for each in weights.items())
    module = sums.within(with_computation(module, moved.new))
    return module, replace(phases, phase=tuple(phase), gradients=gradients)


def _sum(
    entry: Computation, phases: Phases, sums: Sums, position: int, opcodes: tuple[str, ...]
) -> DeviceSum | None:
    """Return the sum over devices that a gradient is made of, if it may wait for the update."""
    phase = phases.phase

    def followed(op: Instruction) -> int | None:
        """Return the operand in which an op is linear, all others being the same in a batch."""
        moved = moved_operand(op, entry)
        if moved is not None:
            return moved
        rest = [i for i in op.operands if phase[i] != FREE]
        if len(rest) != 1:
            return None
        is_first = op.opcode in _FIRST_VARIES and op.operands[0] == rest[0]
        return rest[0] if is_first or op.opcode == "multiply" else None

    each = device_sum(entry, position, opcodes, followed, sums.adds_up)
    if each is None or not each.is_alone(entry):
        return None
    if any(phase[user] != UPDATE for user in entry.users[position]):
        return None
    inner = (*each.ops, each.meeting, each.source)
    return each if all(phase[i] == BACKWARD for i in inner) else None
