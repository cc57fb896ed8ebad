"""Gradients that stages add together: each stage's part is accumulated where it is made.

An embedding that is also the output layer gets a gradient from the last stage and one from the
first. Added in the first stage's backward pass, the last one's would wait there, one for each
micro-batch under way. Sums commute: the update adds the two accumulators instead.
"""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.training.step_phases import BACKWARD, UPDATE, Gradient, Phases

_FEW_ELEMENTS = 64
"""Gradients that are not worth an accumulator more."""


def split_gradients(entry: Computation, phases: Phases, stages: Sequence[int]) -> Phases:
    """Return the phases with gradients of several stages as one gradient for each stage.

    Their sum becomes part of the update. The same phases come back where there are none.
    """
    phase = list(phases.phase)
    taken = {gradient.position for gradient in phases.gradients}
    waiting = list(phases.gradients)[::-1]
    found: list[Gradient] = []
    while waiting:
        gradient = waiting.pop()
        terms = _terms(entry, phase, stages, gradient.position)
        if terms is None or not taken.isdisjoint(terms):
            found.append(gradient)
            continue
        phase[gradient.position] = UPDATE
        taken.update(terms)
        waiting += [Gradient(position, gradient.parameters) for position in reversed(terms)]
    if len(found) == len(phases.gradients):
        return phases
    return replace(phases, phase=tuple(phase), gradients=tuple(found))


def _terms(
    entry: Computation, phase: Sequence[str], stages: Sequence[int], position: int
) -> tuple[int, int] | None:
    """Return the terms of a sum that only the update reads, made by two stages; else None."""
    x = entry.instructions[position]
    if x.opcode != "add" or not isinstance(x.shape, ArrayShape) or position == entry.root:
        return None
    if not x.shape.element_type.is_float or x.shape.element_count <= _FEW_ELEMENTS:
        return None
    if any(phase[user] != UPDATE for user in entry.users[position]):
        return None
    a, b = x.operands
    backward = phase[a] == phase[b] == BACKWARD
    return (a, b) if backward and stages[a] != stages[b] else None
