"""Leaf steps of a program, and the instructions that they belong to."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hloipu_runtime.program import steps as s
from hloipu_runtime.program.program import Program


class Leaf(NamedTuple):
    """A step without others in it."""

    step: s.Step
    owner: int
    """The loop of the entry that it is in, or -1."""
    is_within: bool
    """Whether micro-batches run it."""


def primary(leaves: Sequence[s.Step]) -> frozenset[int]:
    """Return the variables in which exchanges make values, in place of copying one."""
    return frozenset(
        definition.variable
        for step in leaves
        if isinstance(step, s.Exchange)
        for definition in step.definitions
        if any(piece.value != definition.value for piece in definition.pieces)
    )


def leaves_of(program: Program, position: Mapping[str, int]) -> Iterator[Leaf]:
    """Yield the steps that have none in them, with the loops of the entry that they are in."""
    waiting: list[tuple[s.Step, int, bool]] = [(program.body, -1, False)]
    waiting += [(body, -1, False) for body in program.functions.values()]
    while waiting:
        step, owner, within = waiting.pop()
        if isinstance(step, s.Pipeline):
            within = True
        elif within and owner < 0 and isinstance(step, s.Repeat | s.RepeatWhile | s.Call):
            owner = position.get(getattr(step, "name", ""), -1)
        inner = list(s.inner_steps(step))
        if inner:
            waiting.extend((child, owner, within) for child in reversed(inner))
        else:
            yield Leaf(step, owner, within)


def names_of(step: s.Step) -> Sequence[str]:
    """Return the names of the ops that a step is of, as far as it says."""
    match step:
        case s.ComputeSet():
            return [group.name for group in step.groups]
        case s.StreamIn() | s.StreamOut():
            return ()
        case _:
            return [getattr(step, "name", "")]
