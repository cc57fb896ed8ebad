"""The stage of every op, from the stages of the forward ops; owners of state, divided gradients."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.stages.backward_places import (
    BackwardPlaces,
    backward_places,
    is_small,
)
from hloipu_compiler.partition.stages.forward_stages import forward_stages
from hloipu_compiler.partition.training.step_phases import (
    BACKWARD,
    UPDATE,
    Gradient,
    Phases,
)

Stages = tuple[int, ...]
"""Of each position; -1 where it has none."""


def whole_stages(
    entry: Computation, phases: Phases, forward: Mapping[int, int], stages: int
) -> BackwardPlaces:
    """Return the stage of every forward and backward op, and what they read there.

    `forward` has those of forward ops, and of such backward ops as are marked.
    """
    stage_by_position = forward_stages(entry, phases, forward)
    marked = [position for position in forward if phases.phase[position] == BACKWARD]
    for position in marked:
        stage_by_position[position] = forward[position]
    return backward_places(entry, phases, stage_by_position, stages - 1, set(marked))


def owners(
    entry: Computation, phases: Phases, stages: Sequence[int], parameters: Sequence[Sequence[int]]
) -> list[int]:
    """Return the stage that each array of the parameters is kept at: the first that reads it.

    -1 for those that no stage reads, only the update.
    """
    readers: list[set[int]] = [set() for _ in entry.instructions]
    for position in range(len(entry.instructions) - 1, -1, -1):
        if stages[position] >= 0:
            readers[position].add(stages[position])
        if stages[position] >= 0 or phases.phase[position] == "free":
            for i in entry.instructions[position].operands:
                if stages[i] < 0:
                    readers[i] |= readers[position]
    owner_by_parameter = []
    for positions in parameters:
        here = set().union(*(readers[position] for position in positions))
        owner_by_parameter.append(min(here, default=-1))
    return owner_by_parameter


def split_gradients(entry: Computation, phases: Phases, stages: Sequence[int]) -> Phases:
    """Return the phases with gradients that stages add together as one gradient for each stage.

    An embedding that is also the output layer gets a gradient from the last stage and one from the
    first. Added in the first stage's backward pass, the last one's would wait there, one for each
    micro-batch under way. Sums commute: stages add to one accumulator on an IPU instead, and the
    update adds those of several. The same phases come back where there are none.
    """
    phase = list(phases.phase)
    taken = {gradient.position for gradient in phases.gradients}
    waiting = list(phases.gradients)[::-1]
    gradients: list[Gradient] = []
    while waiting:
        gradient = waiting.pop()
        terms = _terms(entry, phase, stages, gradient.position)
        if terms is None or not taken.isdisjoint(terms):
            gradients.append(gradient)
            continue
        phase[gradient.position] = UPDATE
        taken.update(terms)
        total = gradient.total if gradient.total >= 0 else gradient.position
        waiting += [
            Gradient(term, gradient.parameters, total if len(entry.users[term]) == 1 else -1)
            for term in reversed(terms)
        ]
    if len(gradients) == len(phases.gradients):
        return phases
    return replace(phases, phase=tuple(phase), gradients=tuple(gradients))


def _terms(
    entry: Computation, phase: Sequence[str], stages: Sequence[int], position: int
) -> tuple[int, int] | None:
    """Return the terms of a sum that only the update reads, made by two stages; else None."""
    op = entry.instructions[position]
    if op.opcode != "add" or not isinstance(op.shape, ArrayShape) or position == entry.root:
        return None
    if not op.shape.element_type.is_float or is_small(op.shape):
        return None
    if any(phase[user] != UPDATE for user in entry.users[position]):
        return None
    a, b = op.operands
    backward = phase[a] == phase[b] == BACKWARD
    return (a, b) if backward and stages[a] != stages[b] else None
