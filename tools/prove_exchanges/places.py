"""Subjects: programs to tamper with, and the places where that can be done."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

from hloipu_runtime.program.mapping import Tiles
from hloipu_runtime.program.program import Program, Variable
from hloipu_runtime.program.steps import ComputeSet, Exchange, Step, VariableId
from tools.prove_exchanges.editing import Block, Path, blocks_of, with_steps
from tools.prove_exchanges.inputs import Given

T = TypeVar("T")


class TransferPlace(NamedTuple):
    """One transfer of one exchange."""

    block: Block
    step: int
    transfer: int


class StepPlace(NamedTuple):
    """One step of one sequence."""

    block: Block
    step: int

    @property
    def there(self) -> Step:
        """The step itself."""
        return self.block.steps[self.step]


class GroupPlace(NamedTuple):
    """One vertex group of one compute set."""

    block: Block
    step: int
    group: int


@dataclass(frozen=True)
class Subject:
    """A program to tamper with, and the places where that can be done."""

    name: str
    program: Program
    tiles_per_ipu: int
    inputs: tuple[Given, ...] = ()
    """What suits the program."""

    @cached_property
    def blocks(self) -> list[Block]:
        """Every sequence of the program."""
        return blocks_of(self.program)

    @cached_property
    def transfers(self) -> list[TransferPlace]:
        """Every transfer."""
        return [
            TransferPlace(block, number, which)
            for block in self.blocks
            for number, step in enumerate(block.steps)
            if isinstance(step, Exchange)
            for which in range(len(step.transfers))
        ]

    @cached_property
    def groups(self) -> list[GroupPlace]:
        """Every vertex group."""
        return [
            GroupPlace(block, number, which)
            for block in self.blocks
            for number, step in enumerate(block.steps)
            if isinstance(step, ComputeSet)
            for which in range(len(step.groups))
        ]

    def steps(self, *kinds: type[Step]) -> list[StepPlace]:
        """Return every step of these kinds."""
        return [
            StepPlace(block, number)
            for block in self.blocks
            for number, step in enumerate(block.steps)
            if isinstance(step, kinds)
        ]

    def others(self, variable: VariableId) -> list[VariableId]:
        """Return the variables that one can be taken for."""
        return [v for v in self.alike[looks(self.variable(variable))] if v != variable]

    @cached_property
    def alike(self) -> dict[tuple[object, ...], list[VariableId]]:
        """Variables by type, shape and IPU, and by these with the mapping."""
        variables_by_looks: dict[tuple[object, ...], list[VariableId]] = {}
        for number, variable in enumerate(self.program.variables):
            for key in (looks(variable), (*looks(variable), variable.mapping)):
                variables_by_looks.setdefault(key, []).append(number)
        return variables_by_looks

    def variable(self, number: VariableId) -> Variable:
        """Return the record of a variable."""
        return self.program.variables[number]


def looks(x: Variable) -> tuple[object, ...]:
    """Return what a variable has in common with those that it can be taken for."""
    return (x.element_type, x.shape, x.ipu)


Tamper = Callable[[Subject, random.Random], Program | None]
"""One kind of mutant: a tampered program, or None where the draw finds no place for it."""


def drawn(items: Sequence[T], rng: random.Random) -> T | None:
    """Return one of the items, if there are any."""
    return rng.choice(items) if items else None


def step_replaced(subject: Subject, path: Path, number: int, step: Step) -> Program:
    """Return the program with one step replaced."""
    block = next(b for b in subject.blocks if b.path == path)
    steps = (*block.steps[:number], step, *block.steps[number + 1 :])
    return with_steps(subject.program, path, steps)


def moved(tiles: Tiles, tiles_per_ipu: int, rng: random.Random) -> Tiles | None:
    """Return the grid one tile further, or with two axes exchanged, within the machine."""
    choices = [replace(tiles, first=tiles.first + by) for by in (1, -1)]
    if len(tiles.extents) > 1 and tiles.extents[0] == tiles.extents[1]:
        first, second, *rest = tiles.strides
        choices.append(replace(tiles, strides=(second, first, *rest)))
    return drawn([t for t in choices if t.first >= 0 and t.last < tiles_per_ipu], rng)


def put(items: tuple[T, ...], number: int, item: T) -> tuple[T, ...]:
    """Return the items with one replaced."""
    return (*items[:number], item, *items[number + 1 :])
