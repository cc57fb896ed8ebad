"""Weights that stay in blocks while micro-batches run: gathered where they are read, each time.

A weight that is divided over data is gathered before the micro-batches, which do not change it,
and is whole on every device until they end. Where that is too much, each forward and each backward
pass gathers it again, as ZeRO's third stage does (Rajbhandari et al., 1910.02054, section 5.3).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hloipu_compiler.ir.graph import Computation, Module, with_computation
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, FREE, UPDATE, Phases
from hloipu_compiler.passes.framework.rewriting import Rewriting, with_operands
from hloipu_compiler.passes.loops.device_sums import moved_operand


def with_weights_in_blocks(module: Module, phases: Phases) -> tuple[Module, Phases]:
    """Return a flat step whose micro-batches gather what they read, and its phases.

    Where nothing is gathered before them, the module stays.
    """
    entry = module.entry
    phases = _with_early_scatters(entry, phases)
    readers = _readers(entry, phases)
    if not any(readers.values()):
        return module, phases
    draft = Rewriting(entry)
    place = draft.place
    phase: list[str] = []
    copies: dict[tuple[int, str], int] = {}

    def written(position: int, own: str) -> int:
        """Write an op in one phase, on what that phase gathers."""
        op = entry.instructions[position]
        operands = tuple(copies.get((i, own), place[i]) for i in op.operands)
        phase.append(own)
        return draft.append(with_operands(op, operands))

    for position, op in enumerate(entry.instructions):
        place.append(written(position, phases.phase[position]))
        for own in (FORWARD, BACKWARD):
            if own in readers.get(position, ()):
                copies[position, own] = at = written(position, own)
                draft.made[at] = draft.made[at]._replace(name=draft.fresh_name(op.name))
    new = draft.finish()
    gradients = tuple(g._replace(position=place[g.position]) for g in phases.gradients)
    kept = _with_read_only(new, tuple(phase))
    return with_computation(module, new), replace(phases, phase=kept, gradients=gradients)


def _with_early_scatters(entry: Computation, phases: Phases) -> Phases:
    """Return phases whose gradients are blocks where the update scatters them first."""
    phase, gradients = list(phases.phase), []
    for gradient in phases.gradients:
        chain = _until_scattered(entry, phase, gradient.position)
        for position in chain:
            phase[position] = BACKWARD
        gradients.append(gradient._replace(position=chain[-1]) if chain else gradient)
    return replace(phases, phase=tuple(phase), gradients=tuple(gradients))


def _until_scattered(entry: Computation, phase: Sequence[str], position: int) -> list[int]:
    """Return the ops of the update from a gradient to the sum that scatters it; or none."""
    on_the_way: list[int] = []
    while len(users := entry.users[position]) == 1 and phase[users[0]] == UPDATE:
        (position,) = users
        op = entry.instructions[position]
        on_the_way.append(position)
        if op.opcode == "reduce-scatter" and len(op.operands) == 1:
            return on_the_way
        if len(op.operands) != 1 or moved_operand(op, entry) is None:
            break
    return []


def _readers(entry: Computation, phases: Phases) -> Mapping[int, frozenset[str]]:
    """Return what is gathered before the micro-batches, and the phases that read it."""
    gathered: list[int] = []
    known: set[int] = set()
    for position, op in enumerate(entry.instructions):
        is_made = op.opcode == "all-gather" or any(i in known for i in op.operands)
        if phases.phase[position] == FREE and is_made:
            gathered.append(position)
            known.add(position)
    phases_by_gathered: dict[int, frozenset[str]] = {}
    for position in reversed(gathered):
        users = entry.users[position]
        own = {phases.phase[user] for user in users if user not in known}
        later = (phases_by_gathered[user] for user in users if user in known)
        phases_by_gathered[position] = frozenset(own & {FORWARD, BACKWARD}).union(*later)
    return phases_by_gathered


def _with_read_only(entry: Computation, phase: tuple[str, ...]) -> tuple[str, ...]:
    new_phase = list(phase)
    for position in range(len(new_phase) - 1, -1, -1):
        users = entry.users[position]
        if new_phase[position] == FREE and position != entry.root:
            new_phase[position] = (
                FREE if any(new_phase[i] or i == entry.root for i in users) else ""
            )
    return tuple(new_phase)
