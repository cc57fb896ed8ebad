"""Find equal blocks of instructions, in one computation or in several.

The layers of a network, forwards, backwards, and where they are computed again. Instructions become
letters, equal ones the same, and a suffix array (Manber, Myers: Suffix Arrays, 1993) tells which
stretches of letters come again, as in outliners of machine code (LLVM: MachineOutliner). Operands
are compared afterwards.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, nsmallest
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape, leaves_of
from hloipu_runtime.watching import telling

Weight = Callable[[Instruction], int]
"""What an instruction is worth saving, in bytes of code; below 0: it cannot be in a block."""
Numbers = NDArray[np.int64]

_CHEAP = frozenset({"constant", "broadcast", "iota", "replica-id", "partition-id"})
_ON_NUMBERS = frozenset("add subtract multiply reshape bitcast copy".split())
"""Cheap on whole numbers. With them blocks know where a participant's part of an array begins (see
`plan/own_numbers.py`), which would be data if it were handed to them."""
_TILES = 1_472
"""Of an IPU of the second generation, over which what blocks hand on is spread."""
_MOST_LENGTHS = 8
"""Of a stretch whose occurrences overlap or were taken in part, that are tried."""
_MOST_STRETCHES = 10_000
"""That are looked at, those that may save most first."""
_MOST_BEGINNINGS = 4
"""Of a block in a stretch, that are tried, the best first."""
_NOT_COMPARED = frozenset({"frontend_attributes", "channel_id"})
"""Attributes that mean nothing any more once a step is cut, and numbers of collectives, which are
others for each."""


class Occurrence(NamedTuple):
    """Place of a block: number of a computation, and positions in it, in order."""

    computation: int
    positions: tuple[int, ...]


class EqualBlocks(NamedTuple):
    """Equal blocks: the same instructions in the same order, reading the same of each other."""

    occurrences: tuple[Occurrence, ...]


def equal_blocks(
    computations: Sequence[Computation], weight: Weight, least_block: int, least_saved: int
) -> list[EqualBlocks]:
    """Return equal blocks, apart from each other, that weigh at least so much, and save so much.

    A block's instructions stand one behind the other, but for parameters, constants, what is made
    of constants alone, and what is made once for all blocks of parameters alone, in between. Those
    that save most come first. Time n log n.
    """
    return list(_Text(computations, weight, least_block).taken(least_saved))


def constant_key(computation: Computation, at: int) -> Hashable:
    """Return what a value made of a constant number is, the same for equal ones; None: none is.

    Numbers of participants are constant: all blocks of a program have the same.
    """
    op = computation.instructions[at]
    if op.opcode not in _CHEAP and not _is_of_one_number(computation, op):
        return None
    if op.opcode == "constant" and isinstance(op.shape, ArrayShape) and op.shape.rank:
        return None
    operands = tuple(constant_key(computation, i) for i in op.operands)
    return None if None in operands else (op.opcode, op.shape, _compared(op), op.literal, operands)


def _is_of_one_number(computation: Computation, op: Instruction) -> bool:
    """Whether an op makes a whole number of one that may be no constant."""
    shape = op.shape
    if op.opcode not in _ON_NUMBERS or not isinstance(shape, ArrayShape):
        return False
    others = [i for i in op.operands if computation.instructions[i].opcode != "constant"]
    return shape.element_count == 1 and shape.element_type.is_integer and len(others) <= 1


class _Stretch(NamedTuple):
    """Letters that come again: the rows of the suffix array that begin with them, and how many."""

    first: int
    end: int
    length: int
    low: int
    """The first of the places where it is, ..."""
    high: int
    """... and the last one."""


class _Choice(NamedTuple):
    """Blocks in a stretch."""

    saved: int
    """Before they have their borders: no less than with them."""
    starts: tuple[int, ...]
    length: int
    has_borders: bool = True
    """Whether it is decided where in the stretch they begin and end."""


class _Text:
    """Computations as letters, one behind the other."""

    def __init__(
        self, computations: Sequence[Computation], weight: Weight, least_block: int
    ) -> None:
        self.least_block = least_block
        self.places: list[tuple[int, int]] = []
        letters: list[int] = []
        weights: list[int] = []
        alive: list[int] = []
        back: list[int] = []
        operands = [0]
        numbers: dict[object, int] = {}
        for which, computation in enumerate(computations):
            number_of: dict[int, int] = {}
            keys = _keys(computation, which, weight)
            shared = _shared(computation, keys, lambda op: 0 <= weight(op) < least_block)
            for at, key in keys.items():
                if at in shared:
                    continue
                op = computation.instructions[at]
                weighs = 0 if key == (which, at) else weight(op)
                number = number_of[at] = len(letters)
                back += [number - number_of.get(i, number) for i in op.operands]
                operands.append(len(back))
                letters.append(numbers.setdefault(key, len(numbers)))
                weights.append(weighs)
                self.places.append((which, at))
            alive += _alive_bytes_at(computation, list(number_of))
            letters.append(numbers.setdefault((which, "end"), len(numbers)))
            weights.append(0)
            alive.append(0)
            operands.append(len(back))
            self.places.append((which, -1))
        self.letters = np.array(letters, np.int64)
        self.operands = operands
        """For each letter, the number of its first operand."""
        self.back = np.array(back, np.int64)
        """For each operand, how many letters before its reader it is; 0: it is none."""
        self.reader = np.repeat(np.arange(len(letters)), np.diff(operands))
        """For each operand, the letter that reads it."""
        self.weights = np.array(weights, np.int64)
        self.total = np.concatenate([[0], self.weights.cumsum()])
        self.total_free = self.total
        """Of what is not taken."""
        self.alive = np.array(alive, np.int64)
        self.is_taken = np.zeros(len(letters), np.bool_)
        self.free = np.arange(len(letters), 0, -1)
        """For each letter, how many from there on are not taken."""

    def taken(self, least: int) -> Iterator[EqualBlocks]:
        """Yield blocks, those that save most first, each apart from those before it."""
        order, stretches = _stretches(self.letters)
        waiting: list[tuple[int, int, _Stretch, _Choice | None]] = [
            (-bound, number, stretch, None)
            for number, stretch in enumerate(stretches)
            if (bound := self._bound(order, stretch)) >= least
        ]
        waiting = nsmallest(_MOST_STRETCHES, waiting)
        while waiting:
            telling("equal blocks")
            worth, number, stretch, choice = heappop(waiting)
            if choice is None or bool((self.free[list(choice.starts)] < choice.length).any()):
                # Less may be left to save by now; if not, the blocks are looked for.
                choice, saved = None, self._bound(order, stretch)
                if saved >= -worth:
                    starts = np.sort(order[stretch.first : stretch.end])
                    choice = self._choice(starts, stretch.length)
                    saved = choice.saved
            elif not choice.has_borders:
                choice = self._placed(choice, stretch.length)
                saved = choice.saved
            else:
                self._take(choice)
                yield self._blocks(choice)
                continue
            if saved >= least:
                heappush(waiting, (-saved, number, stretch, choice))

    def _blocks(self, choice: _Choice) -> EqualBlocks:
        occurrences = []
        for start in choice.starts:
            places = self.places[start : start + choice.length]
            occurrences.append(Occurrence(places[0][0], tuple([at for _, at in places])))
        return EqualBlocks(tuple(occurrences))

    def _take(self, choice: _Choice) -> None:
        for start in choice.starts:
            self.is_taken[start : start + choice.length] = True
        at = np.arange(len(self.is_taken))
        self.total_free = np.concatenate([[0], np.where(self.is_taken, 0, self.weights).cumsum()])
        taken_positions = np.where(self.is_taken, at, len(at))
        self.free = np.minimum.accumulate(taken_positions[::-1])[::-1] - at

    def _bound(self, order: Sequence[int], stretch: _Stretch) -> int:
        """Return what blocks in a stretch save at most.

        All of them but the last one lie free and apart between the first place and the last one.
        """
        code = self._weight(order[stretch.first], stretch.length)
        between = int(self.total_free[stretch.high] - self.total_free[stretch.low])
        if min(code, between) < self.least_block:
            return 0
        return min((stretch.end - stretch.first - 1) * code, between)

    def _weight(self, start: int, length: int) -> int:
        return int(self.total[start + length] - self.total[start])

    def _choice(self, starts: Numbers, longest: int) -> _Choice:
        """Return the blocks of a stretch that save most.

        Blocks that weigh too little save nothing. They get their borders when their turn comes,
        which few have.
        """
        free = self.free[starts]
        shorter = np.concatenate([free, np.diff(starts)])
        lengths = {*np.unique(shorter[(shorter > 0) & (shorter < longest)]).tolist(), longest}
        best = _Choice(0, (), 0)
        for length in sorted(lengths, reverse=True)[:_MOST_LENGTHS]:
            starts_apart = _apart(starts[free >= length].tolist(), length)
            code = self._weight(int(starts[0]), length)
            if code >= self.least_block and (len(starts_apart) - 1) * code > best.saved:
                agreeing = self._agreeing(starts_apart, length)
                saved = (len(agreeing) - 1) * code
                best = max(best, _Choice(saved, agreeing, length))
        if best.length < longest:
            shifted = self.total[int(starts[0]) : int(starts[0]) + longest + 1]
            code = int((shifted[best.length :] - shifted[: longest + 1 - best.length]).max())
            best = best._replace(saved=max(0, len(best.starts) - 1) * code)
        return best._replace(has_borders=False)

    def _agreeing(self, starts: Sequence[int], length: int) -> tuple[int, ...]:
        """Return most blocks whose operands from within are the same within each."""
        groups: dict[bytes, list[int]] = {}
        for start in starts:
            operand_range = slice(self.operands[start], self.operands[start + length])
            back = self.back[operand_range]
            links = np.where(back <= self.reader[operand_range] - start, back, 0)
            groups.setdefault(links.tobytes(), []).append(start)
        largest: list[int] = max(groups.values(), key=len, default=[])
        return tuple(largest)

    def _placed(self, choice: _Choice, longest: int) -> _Choice:
        """Return blocks with their borders where least is alive for what the code between saves."""
        starts, length = choice.starts, choice.length
        times = len(starts) - 1
        at = np.array(starts)[:, None]
        if length == longest:
            places = at + np.arange(length + 1)
            cost = self.alive[places].mean(0) / _TILES
            code = times * (self.total[places[0]] - self.total[starts[0]])
            ends = np.maximum.accumulate((code - cost)[::-1])[::-1]
            first = int((ends[1:] - (code + cost)[:-1]).argmax())
            last = first + 1 + int((code - cost)[first + 1 :].argmax())
            shorter = _Choice(int(code[last] - code[first]), (), last - first)
            return shorter._replace(starts=tuple(start + first for start in starts))
        places = at + np.arange(longest - length + 1)
        taken_before = np.concatenate(([0], np.cumsum(self.is_taken)))
        shifts = np.flatnonzero(
            (taken_before[places + length] == taken_before[places]).all(0)
        ).tolist()
        alive = self.alive[at + np.array(shifts)].mean(0)
        for number in np.argsort(alive, kind="stable")[:_MOST_BEGINNINGS].tolist():
            moved = [start + shifts[number] for start in starts]
            if len(self._agreeing(moved, length)) == len(starts):
                saved = times * self._weight(moved[0], length)
                return _Choice(saved, tuple(moved), length)
        return choice


def _keys(computation: Computation, which: int, weight: Weight) -> dict[int, Hashable]:
    """Return what instructions are, by position: of those in no block (number, position).

    Parameters, constants and what is made of constants alone are left out.
    """
    return {
        at: (which, at) if at == computation.root or weight(x) < 0 else letter_of(computation, x)
        for at, x in enumerate(computation.instructions)
        if x.opcode not in ("parameter", "constant") and constant_key(computation, at) is None
    }


def _shared(
    computation: Computation, keys: Mapping[int, Hashable], is_light: Callable[[Instruction], bool]
) -> set[int]:
    """Return what equal blocks share, such as a mask, which may stand in some of them only.

    It is one value, made of parameters alone, though it may be made again, and equal ops read it.
    """
    value: dict[int, Hashable] = {}
    makers: dict[Hashable, dict[Hashable, list[int]]] = {}
    """Of what is light and made of parameters: by letter and by what it reads."""
    for at, key in keys.items():
        op = computation.instructions[at]
        # What is spread is handed to blocks, not what comes of it.
        is_whole = op.opcode != "broadcast" and is_light(op)
        if is_whole and all(i in value or i not in keys for i in op.operands):
            sources = tuple(value.get(i, constant_key(computation, i) or i) for i in op.operands)
            same = makers.setdefault(key, {}).setdefault(sources, [])
            same.append(at)
            value[at] = "first", same[0]
    shared: set[int] = set()
    for values in reversed(makers.values()):
        for same in values.values():
            readers = [i for at in same for i in computation.users[at]]
            if len(values) == 1 and readers:
                equal = len({keys[i] for i in readers}) < len(readers)
                if equal or shared.issuperset(readers):
                    shared.update(same)
    for at in sorted(shared):
        # What is to be there before all blocks reads nothing that may be in one.
        if any(i in keys and i not in shared for i in computation.instructions[at].operands):
            shared.discard(at)
    return shared


def letter_of(computation: Computation, op: Instruction) -> Hashable:
    """Return what an instruction is, whatever it reads: the same for those with equal code."""
    operands = tuple(computation.instructions[i].shape for i in op.operands)
    return (op.opcode, op.shape, _compared(op), op.backend_config, op.literal, operands)


def _compared(op: Instruction) -> object:
    compared_attributes = tuple(
        (key, op.attributes[key]) for key in op.attributes if key not in _NOT_COMPARED
    )
    return (
        "channel_id" in op.attributes,
        compared_attributes,
    )  # with it, groups take in all partitions


def _apart(starts: Sequence[int], length: int) -> list[int]:
    """Return as many as there are of blocks that do not overlap."""
    kept_starts: list[int] = []
    for start in starts:
        if not kept_starts or start >= kept_starts[-1] + length:
            kept_starts.append(start)
    return kept_starts


def _stretches(letters: Numbers) -> tuple[list[int], list[_Stretch]]:
    """Return the suffix array, and the letters that come again and go no further on."""
    order = _suffix_array(letters)
    common = _common_lengths(letters, order)
    stretches: list[_Stretch] = []
    stack: list[tuple[int, int, int, int]] = []
    """Length, the first suffix that has it in common, and the lowest and highest place."""
    for row in range(1, len(order) + 1):
        length = common[row] if row < len(order) else 0
        first, low, high = row - 1, order[row - 1], order[row - 1]
        while stack and stack[-1][0] >= length:
            longer, first, lowest, highest = stack.pop()
            low, high = min(low, lowest), max(high, highest)
            if longer > length:
                stretches.append(_Stretch(first, row, longer, low, high))
        if length:
            stack.append((length, first, low, high))
    return order, stretches


def _suffix_array(letters: Numbers) -> list[int]:
    """Return the places of letters, ordered by the text from each on."""
    count = len(letters)
    rank = np.unique(letters, return_inverse=True)[1].astype(np.int64)
    order = np.argsort(rank, kind="stable")
    step = 1
    while step < count:
        behind = np.zeros(count, np.int64)
        behind[:-step] = rank[step:] + 1
        key = rank * (count + 1) + behind
        order = np.argsort(key, kind="stable")
        ranked = key[order]
        rank[order] = np.concatenate([[0], (ranked[1:] != ranked[:-1]).cumsum()])
        if rank[order[-1]] == count - 1:
            break
        step *= 2
    return [int(n) for n in order]


def _common_lengths(letters: Numbers, order: Sequence[int]) -> list[int]:
    """Return how many letters each suffix has in common with the one before it.

    Kasai et al.: Linear-Time Longest-Common-Prefix Computation in Suffix Arrays, 2001.
    """
    text = letters.tolist()
    count = len(text)
    rank = [0] * count
    for row, start in enumerate(order):
        rank[start] = row
    common = [0] * count
    length = 0
    for start in range(count):
        if not rank[start]:
            length = 0
            continue
        previous = order[rank[start] - 1]
        last = count - max(start, previous)
        while length < last and text[start + length] == text[previous + length]:
            length += 1
        common[rank[start]] = length
        length = max(0, length - 1)
    return common


def _alive_bytes_at(computation: Computation, positions: Sequence[int]) -> list[int]:
    """Return the bytes computed before each of these positions that are read from there on."""
    number = {at: k for k, at in enumerate(positions)}
    last = [-1] * len(computation.instructions)
    for at, op in enumerate(computation.instructions):
        for i in op.operands:
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
