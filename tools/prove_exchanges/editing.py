"""Places in a program's tree of steps, and programs with one sequence of it replaced."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import (
    If,
    Parallel,
    Pipeline,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    Switch,
)
from hloipu_runtime.program.steps import blocks_of as blocks_within

Path = tuple[int, ...]
"""First which tree (0: the body, then functions by name), then step and inner block in turn."""


class Block(NamedTuple):
    """One sequence of the tree, and the way to it."""

    path: Path
    steps: tuple[Step, ...]


def blocks_of(program: Program) -> list[Block]:
    """Return every sequence of a program, outer ones first."""
    trees = [program.body, *(program.functions[name] for name in sorted(program.functions))]
    return [block for number, tree in enumerate(trees) for block in _blocks(tree, (number,))]


def _blocks(sequence: Sequence, path: Path) -> Iterator[Block]:
    yield Block(path, sequence.steps)
    for number, step in enumerate(sequence.steps):
        for which, inner in enumerate(inner_of(step)):
            yield from _blocks(inner, (*path, number, which))


def inner_of(step: Step) -> tuple[Sequence, ...]:
    """Return the sequences that a step holds."""
    return (step,) if isinstance(step, Sequence) else blocks_within(step)


def with_steps(program: Program, path: Path, steps: tuple[Step, ...]) -> Program:
    """Return the program with the steps of one sequence replaced."""
    if path[0] == 0:
        return replace(program, body=_replaced(program.body, path[1:], steps))
    name = sorted(program.functions)[path[0] - 1]
    changed = _replaced(program.functions[name], path[1:], steps)
    return replace(program, functions={**program.functions, name: changed})


def _replaced(sequence: Sequence, path: Path, steps: tuple[Step, ...]) -> Sequence:
    if not path:
        return Sequence(steps)
    number, which, *rest = path
    old = sequence.steps[number]
    new = _with_inner(old, which, _replaced(inner_of(old)[which], tuple(rest), steps))
    return Sequence((*sequence.steps[:number], new, *sequence.steps[number + 1 :]))


def _with_inner(step: Step, which: int, inner: Sequence) -> Step:
    match step:
        case Sequence():
            return inner
        case Repeat():
            return replace(step, body=inner)
        case Pipeline():
            stages = list(step.stages)
            places = [
                (number, block is stage.body)
                for number, stage in enumerate(stages)
                for block in stage.blocks
            ]
            number, is_body = places[which]
            stage = stages[number]
            stages[number] = stage._replace(body=inner) if is_body else stage._replace(first=inner)
            return replace(step, stages=tuple(stages))
        case RepeatWhile():
            return replace(step, body=inner) if which else replace(step, condition=inner)
        case If():
            return replace(step, otherwise=inner) if which else replace(step, then=inner)
        case Switch() | Parallel():
            branches = list(step.branches)
            branches[which] = inner
            return replace(step, branches=tuple(branches))
        case _:
            raise TypeError(f"{type(step).__name__} holds no sequence")
