"""The stage of every op, from the stages of the forward ops.

Backward values flow down the stages: an op is at most where its cotangents come from. Of the
stages that are left it takes the highest at which what it reads of the forward pass is at hand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_compiler.partition.stages.forward_stages import forward_stages
from hloipu_compiler.partition.training.reach import Mask
from hloipu_compiler.partition.training.step_phases import (
    BACKWARD,
    FORWARD,
    UPDATE,
    Gradient,
    Phases,
)

Stages = tuple[int, ...]
"""Of each position; -1 where it has none."""

_FEW_ELEMENTS = 64
"""Of values that may be anywhere, as in `forming`."""


def whole_stages(
    entry: Computation, phases: Phases, forward: Mapping[int, int], stages: int
) -> Stages:
    """Return the stage of every forward and backward op.

    `forward` has those of forward ops, and of such backward ops as are marked.
    """
    stage_by_position = forward_stages(entry, phases, forward)
    at_hand = _at_hand(entry, phases, stage_by_position)
    floats = _floating(entry, phases)
    for position, op in enumerate(entry.instructions):
        if phases.phase[position] != BACKWARD:
            continue
        if _is_element(entry, phases, position):
            stage_by_position[position] = stage_by_position[op.operands[0]]
            continue
        bound = min(
            (stage_by_position[i] for i in op.operands if phases.phase[i] == BACKWARD),
            default=stages - 1,
        )
        wanted = forward.get(position)
        if wanted is not None:
            stage_by_position[position] = min(bound, wanted)
            continue
        here = [max((s for s in at_hand[i] if s <= bound), default=bound) for i in op.operands
                if at_hand[i]]  # fmt: skip
        stage_by_position[position] = min(bound, *here) if here else bound
    for position in forward:
        floats[position] = 0  # what is annotated stays
    _sink(entry, phases, floats, at_hand, stage_by_position)
    return tuple(stage_by_position)


def _is_element(entry: Computation, phases: Phases, position: int) -> bool:
    """Whether an op takes an array out of a tuple that a stage makes: it stays there."""
    op = entry.instructions[position]
    return op.opcode == "get-tuple-element" and bool(phases.phase[op.operands[0]])


def _at_hand(
    entry: Computation, phases: Phases, stage_by_position: Sequence[int]
) -> list[frozenset[int]]:
    """Return the stages at which each parameter and forward value is: where forward ops are."""
    empty: frozenset[int] = frozenset()
    stages_at_hand: list[frozenset[int]] = []
    bound = bound_to_places(entry, phases)
    for position in range(len(entry.instructions)):
        if not bound[position]:
            stages_at_hand.append(empty)
            continue
        users = {
            stage_by_position[user]
            for user in entry.users[position]
            if phases.phase[user] == FORWARD
        }
        if phases.phase[position] == FORWARD:
            users.add(stage_by_position[position])
        stages_at_hand.append(frozenset(users) if users else empty)
    # What is the same for all micro-batches is where the forward ops are that it is made for.
    for position in range(len(entry.instructions) - 1, -1, -1):
        if phases.phase[position] == "free" and stages_at_hand[position]:
            for i in entry.instructions[position].operands:
                if bound[i]:
                    stages_at_hand[i] = stages_at_hand[i] | stages_at_hand[position]
    return stages_at_hand


def bound_to_places(entry: Computation, phases: Phases) -> Mask:
    """Return the values that are costly to have elsewhere: of micro-batches, and large weights.

    Constants and numbers, and what is made of them alone, are at hand everywhere.
    """
    is_bound = Mask(len(entry.instructions))
    for position, op in enumerate(entry.instructions):
        if op.parameter_number >= 0:
            is_bound[position] = not is_small(op.shape)
        elif phases.phase[position] in (FORWARD, BACKWARD):
            is_bound[position] = 1
        else:
            is_bound[position] = any(is_bound[i] for i in op.operands)
    return is_bound


def is_small(shape: Shape) -> bool:
    """Whether an array may be anywhere, such as a number or a bias."""
    return _elements(shape) <= _FEW_ELEMENTS


def _elements(shape: Shape) -> int:
    if isinstance(shape, TupleShape):
        return sum(_elements(part) for part in shape.elements)
    return prod(shape.dimensions) if isinstance(shape, ArrayShape) else 0


def _floating(entry: Computation, phases: Phases) -> bytearray:
    """Return the backward ops that read no cotangent, such as masks for later ones."""
    floats = bytearray(len(entry.instructions))
    for position, op in enumerate(entry.instructions):
        if phases.phase[position] == BACKWARD:
            floats[position] = all(phases.phase[i] != BACKWARD or floats[i] for i in op.operands)
    return floats


def _sink(
    entry: Computation,
    phases: Phases,
    floats: bytearray,
    at_hand: Sequence[frozenset[int]],
    stage_by_position: list[int],
) -> None:
    """Bring ops that read no cotangent down to the stage that needs them, if it has all they read.

    Otherwise a mask, say, would be made a stage too early and sent along.
    """
    for position in range(len(entry.instructions) - 1, -1, -1):
        if not floats[position] or _is_element(entry, phases, position):
            continue
        users = [stage_by_position[i] for i in entry.users[position] if phases.phase[i] == BACKWARD]
        if not users:
            continue
        goal = max(users)
        op = entry.instructions[position]
        here = all(goal in at_hand[i] for i in op.operands if at_hand[i])
        above = all(
            stage_by_position[i] >= goal for i in op.operands if phases.phase[i] == BACKWARD
        )
        if goal < stage_by_position[position] and here and above:
            stage_by_position[position] = goal


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
    if not op.shape.element_type.is_float or op.shape.element_count <= _FEW_ELEMENTS:
        return None
    if any(phase[user] != UPDATE for user in entry.users[position]):
        return None
    a, b = op.operands
    backward = phase[a] == phase[b] == BACKWARD
    return (a, b) if backward and stages[a] != stages[b] else None
