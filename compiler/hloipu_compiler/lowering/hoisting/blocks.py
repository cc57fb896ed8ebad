"""A program's sequences and loops as numbered records: where each is, and how often it runs."""

from typing import NamedTuple

from hloipu_runtime.program import steps as s
from hloipu_runtime.program.program import Program

OUTSIDE = -1
"""Number of the loop around what is in no loop, and of the block around the program's body."""


class Place(NamedTuple):
    """A step's place in the program: the block that it is a step of, and which one."""

    block: int
    position: int


class Block(NamedTuple):
    """One sequence."""

    sequence: s.Sequence
    at: Place
    """Of the step that it is part of."""
    loop: int
    """The innermost loop around it."""
    executions: int
    """In one run of the program, each branch counted as taken."""
    stage: int
    """The innermost position of a pipeline around it, numbered through; OUTSIDE: none."""


class Loop(NamedTuple):
    """One loop, or a pipeline's loop over micro-batches."""

    step: s.Repeat | s.RepeatWhile | s.Pipeline
    at: Place
    around: int
    """The next loop around it."""


class Blocks:
    """All sequences and loops of a program's body, outer ones first."""

    def __init__(self, program: Program) -> None:
        self.blocks: list[Block] = []
        self.loops: list[Loop] = []
        self.number_of: dict[int, int] = {}
        """Block numbers by the identity of their sequences."""
        self._stages = 0
        self._add(Block(program.body, Place(OUTSIDE, 0), OUTSIDE, 1, OUTSIDE))

    def _add(self, block: Block) -> None:
        number = len(self.blocks)
        self.blocks.append(block)
        self.number_of[id(block.sequence)] = number
        for position, step in enumerate(block.sequence.steps):
            around = block._replace(at=Place(number, position))
            if isinstance(step, s.LOOPS):
                self.loops.append(Loop(step, around.at, block.loop))
                times = block.executions * s.iterations(step)
                around = around._replace(loop=len(self.loops) - 1, executions=times)
            if isinstance(step, s.Pipeline):
                for stage in step.stages:
                    for sequence in stage.blocks:
                        self._add(around._replace(sequence=sequence, stage=self._stages))
                    self._stages += 1
                continue
            for sequence in (step,) if isinstance(step, s.Sequence) else s.blocks_of(step):
                self._add(around._replace(sequence=sequence))

    def at(self, loop: int) -> Place:
        """Return the place of a loop."""
        return self.loops[loop].at

    def entries(self, loop: int) -> int:
        """Return how often a loop is begun; nothing begins the program but loading it."""
        return 0 if loop == OUTSIDE else self.blocks[self.loops[loop].at.block].executions

    def place_in(self, block: int, place: Place) -> Place | None:
        """Return the place of the step of a block that has another place within it."""
        while place.block not in (block, OUTSIDE):
            place = self.blocks[place.block].at
        return place if place.block == block else None

    def loops_between(self, block: int, place: Place) -> list[int]:
        """Return the loops around a place that are within a block, inner ones first."""
        end = OUTSIDE if block == OUTSIDE else self.blocks[block].loop
        between = []
        loop = self.blocks[place.block].loop
        while loop != end:
            between.append(loop)
            loop = self.loops[loop].around
        return between

    def within(self, loop: int) -> list[int]:
        """Return a loop and all loops within it."""
        within = [loop]
        for number, each in enumerate(self.loops):
            if each.around in within and number != loop:
                within.append(number)
        return within
