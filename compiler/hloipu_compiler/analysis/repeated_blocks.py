"""Finds blocks of a computation that follow each other and are equal: the layers of a network.

As outliners do (PopART's, LLVM's machine outliner), instructions become letters, equal ones the
same, and repeats of the text are looked for; here those that stand one behind the other, which is
how frameworks print layers, forwards and backwards. Operands are compared afterwards.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape, leaves_of

Weight = Callable[[Instruction], int]
"""What an instruction is worth saving, in bytes of code; below 0: it cannot be in a block."""

_MOST_OCCURRENCES = 8
"""Of a letter, so many occurrences ahead may be the same place in the next block."""
_MOST_PERIODS = 64
"""Lengths of a block that are tried, those that most instructions suggest first."""
_TILES = 1_472
"""Of an IPU of the second generation, over which what blocks hand on is spread."""
_MOST_BEGINNINGS = 4
"""Of a block that repeats, places to begin it that are tried, the best first."""


class Repeat(NamedTuple):
    """Equal blocks: the same positions of each occurrence, in order."""

    occurrences: tuple[tuple[int, ...], ...]

    @property
    def first(self) -> tuple[int, ...]:
        """Positions of the first occurrence, which stands for all."""
        return self.occurrences[0]


def repeated_blocks(computation: Computation, weight: Weight, least: int) -> list[Repeat]:
    """Return blocks that repeat, apart from each other, each of which saves at least `least`.

    A block's instructions stand one behind the other, but for parameters and constants in between.
    Those that save most come first. Time grows with instructions times periods that are tried.
    """
    text = _Text(computation, weight)
    found: list[Repeat] = []
    while True:
        best = text.best(least)
        if best is None:
            return found
        found.append(best)
        text.take(best)


class _Run(NamedTuple):
    """Letters from `start` to before `end` that are those `period` before them, from there on."""

    start: int
    end: int
    period: int


class _Text:
    """A computation as letters; what was taken, and what cannot be in a block, has its own."""

    def __init__(self, computation: Computation, weight: Weight) -> None:
        self.computation = computation
        self.positions = [
            at
            for at, x in enumerate(computation.instructions)
            if x.opcode not in ("parameter", "constant") and at != computation.root
        ]
        xs = [computation.instructions[at] for at in self.positions]
        self.weights = np.array([weight(x) for x in xs], np.int64)
        numbers: dict[object, int] = {}
        self.letters = np.array(
            [
                numbers.setdefault(_letter(computation, x) if w >= 0 else at, len(numbers))
                for at, (x, w) in enumerate(zip(xs, self.weights, strict=True))
            ],
            np.int64,
        )
        self.alive = np.array(alive_bytes_at(computation, self.positions), np.int64)
        self._next_letter = len(numbers)

    def take(self, repeat: Repeat) -> None:
        """Make the letters of a block that was taken different from all others."""
        gone = {at for occurrence in repeat.occurrences for at in occurrence}
        for number, at in enumerate(self.positions):
            if at in gone:
                self.letters[number] = self._next_letter
                self._next_letter += 1

    def best(self, least: int) -> Repeat | None:
        """Return the repeat that saves most, if it saves enough and its operands agree."""
        total = np.concatenate([[0], self.weights.clip(0).cumsum()])
        runs: list[tuple[int, _Run]] = []
        for period in self._periods():
            for start, end in _equal_stretches(self.letters, period):
                # All blocks but one are saved: what repeats is what lies a period further on.
                whole = (end - start) // period * period
                saved = int(total[start + whole] - total[start])
                if whole and saved >= least:
                    runs.append((saved, _Run(start, end + period, period)))
        for _, run in sorted(runs, key=lambda each: (-each[0], each[1])):
            found = self._placed(run)
            if found is not None:
                return found
        return None

    def _periods(self) -> list[int]:
        """Return distances between equal letters worth saving, the most frequent first."""
        places: dict[int, list[int]] = {}
        votes: dict[int, int] = {}
        for number, letter in enumerate(self.letters.tolist()):
            if self.weights[number] > 0:
                before = places.setdefault(letter, [])
                for other in before[-_MOST_OCCURRENCES:]:
                    votes[number - other] = votes.get(number - other, 0) + int(self.weights[number])
                before.append(number)
        return sorted(votes, key=lambda period: (-votes[period], period))[:_MOST_PERIODS]

    def _placed(self, run: _Run) -> Repeat | None:
        """Return a run cut into blocks where least is alive, as many as have the same operands."""
        period = run.period
        shifts = sorted(range(period), key=lambda shift: (self._score(run, shift), shift))
        for shift in shifts[:_MOST_BEGINNINGS]:
            start = run.start + shift
            blocks = [
                tuple(self.positions[start + k * period : start + (k + 1) * period])
                for k in range((run.end - start) // period)
            ]
            agreeing = _agreeing(self.computation, blocks)
            if len(agreeing) > 1:
                return Repeat(tuple(agreeing))
        return None

    def _score(self, run: _Run, shift: int) -> float:
        """Return the bytes of a tile that blocks from there on take, less those that they save."""
        starts = np.arange(run.start + shift, run.end - run.period + 1, run.period)
        if not len(starts):
            return 0.0
        code = int(self.weights[starts[0] : starts[0] + run.period].sum())
        passed = float(self.alive[starts].mean()) / _TILES
        return passed - (len(starts) - 1) * code


def _letter(computation: Computation, x: Instruction) -> object:
    operands = tuple(computation.instructions[i].shape for i in x.operands)
    return x.opcode, x.shape, x.attributes, x.backend_config, operands


def _equal_stretches(letters: NDArray[np.int64], period: int) -> list[tuple[int, int]]:
    """Return stretches, at least a period long, of letters that come again a period later."""
    equal = np.concatenate([[False], letters[:-period] == letters[period:], [False]])
    edges = np.flatnonzero(equal[1:] != equal[:-1])
    starts, ends = edges[::2], edges[1::2]
    long = ends - starts >= period
    return list(zip(starts[long].tolist(), ends[long].tolist(), strict=True))


def _agreeing(computation: Computation, blocks: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the longest row of blocks whose operands from within are the same within each."""
    links = [_links(computation, block) for block in blocks]
    best = range(0)
    start = 0
    for number in range(1, len(blocks) + 1):
        if number == len(blocks) or links[number] != links[start]:
            if number - start > len(best):
                best = range(start, number)
            start = number
    return [blocks[number] for number in best]


def _links(computation: Computation, block: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return, for each instruction, where in the block its operands are; -1: before it."""
    place = {at: number for number, at in enumerate(block)}
    return [tuple(place.get(i, -1) for i in computation.instructions[at].operands) for at in block]


def alive_bytes_at(computation: Computation, positions: Sequence[int]) -> list[int]:
    """Return the bytes computed before each of these positions that are read from there on."""
    number = {at: k for k, at in enumerate(positions)}
    last = [-1] * len(computation.instructions)
    for at, x in enumerate(computation.instructions):
        for i in x.operands:
            last[i] = at
    change = [0] * (len(positions) + 1)
    for at in positions:
        size = sum(
            leaf.byte_count
            for leaf in leaves_of(computation.instructions[at].shape)
            if isinstance(leaf, ArrayShape)
        )
        end = number.get(last[at], len(positions) if last[at] >= 0 else number[at])
        if end > number[at]:
            change[number[at] + 1] += size
            if end + 1 <= len(positions):
                change[end + 1] -= size
    return list(accumulate(change))[: len(positions)]
