"""Memory that the update of each weight needs, from the ops of a step.

Programs that lack memory update one weight after the other, in the order of the text. What an op
makes is there until the last op has read it. But an elementwise op that another one or a sum alone
reads is a part of that, what is made of weights alone is made wherever it is read, and the next
value of what only the update reads is written over the last one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.ops import Trait, with_trait
from hloipu_compiler.ir.shapes import TupleShape, byte_count
from hloipu_compiler.partition.training.reach import parameter_positions, result_positions
from hloipu_compiler.partition.training.step_phases import FREE, UPDATE, Phases

_ELEMENTWISE = with_trait(Trait.ELEMENTWISE)
_VIEWS = frozenset(("bitcast", "broadcast", "get-tuple-element", "iota", "reshape", "tuple"))
"""Of which nothing is stored."""
_NONE = -1


class UpdateBytes(NamedTuple):
    """Most that is there while a weight is updated, beside the weight and its gradient."""

    made: float
    fetched: float
    """With what only the update reads, if that comes to the tiles for it."""


def bytes_of_updates(
    entry: Computation, phases: Phases, weights: Sequence[int]
) -> Mapping[int, UpdateBytes]:
    """Return what the update of each of these parameters needs, by number; time is linear.

    `weights`: arrays of state that micro-batches read and updates make anew.
    """
    return _Updates(entry, phases, weights).found()


class _Updates:
    def __init__(self, entry: Computation, phases: Phases, weights: Sequence[int]) -> None:
        self.entry = entry
        self.phase = phases.phase
        self.end = len(entry.instructions)
        self.places = parameter_positions(entry)
        results = result_positions(entry)
        pairs = [(pair.parameter, results[pair.result]) for pair in phases.updated]
        self.weights = frozenset(weights)
        self.next_of = {new: number for number, new in pairs if new is not None}
        """Numbers of the parameters of state by the positions of their next values."""
        self.gradients = {
            each.position: each.parameters[0] for each in phases.gradients if each.parameters
        }
        self.of = self._owners()
        self.stored = [self._is_stored(n) for n in range(self.end)]
        self.read = self._readings()

    def _owners(self) -> list[int]:
        """Return the weight that each op is for: that of all that it reads; -1: none, or several.

        What reads only weights is for none: nothing of it is stored.
        """
        of = [_NONE] * self.end
        for position, op in enumerate(self.entry.instructions):
            if position in self.gradients:
                of[position] = self.gradients[position]
            elif self.phase[position] == UPDATE:
                mine = {of[i] for i in op.operands} - {_NONE}
                of[position] = mine.pop() if len(mine) == 1 else _NONE
        return of

    def _is_stored(self, position: int) -> bool:
        """Whether an op of the update leaves an array, over nothing that was there before."""
        op = self.entry.instructions[position]
        if self.of[position] == _NONE or self.phase[position] != UPDATE or op.opcode in _VIEWS:
            return False
        if self.next_of.get(position, _NONE) not in {_NONE, *self.weights}:
            return False
        users = set(self.entry.users[position])
        if op.opcode in _ELEMENTWISE and len(users) == 1:
            return self.entry.instructions[users.pop()].opcode not in _ELEMENTWISE | {"reduce"}
        return not isinstance(op.shape, TupleShape)

    def _readings(self) -> list[int]:
        """Return when each op reads its operands: as what it is a part of is made."""
        read = list(range(self.end))
        for position in range(self.end - 1, -1, -1):
            if not (self.stored[position] or position in self.next_of):
                users = self.entry.users[position]
                if users and self.phase[position] in (UPDATE, FREE):
                    read[position] = max(read[user] for user in users)
        return read

    def _last(self, position: int) -> int:
        """Return when an array is read last; the next value of a weight stays."""
        if self.next_of.get(position, _NONE) in self.weights:
            return self.end
        users = (user for user in self.entry.users[position] if user != self.entry.root)
        return max((self.read[user] for user in users), default=position)

    def found(self) -> dict[int, UpdateBytes]:
        """Return what each weight needs."""
        made: dict[int, list[_There]] = {number: [] for number in self.weights}
        fetched: dict[int, list[_There]] = {number: [] for number in self.weights}
        for position, op in enumerate(self.entry.instructions):
            number = self.of[position]
            if number not in self.weights:
                continue
            row = (position, self._last(position), byte_count(op.shape))
            if position in self.gradients:  # there from the beginning, and counted already
                made[number] += [(-1, *row[1:]), (-1, self.end, -row[2])]
            elif self.stored[position]:
                made[number].append(row)
            elif position in self.next_of:
                old = self.places[self.next_of[position]]
                reads = (self.read[user] for i in old for user in self.entry.users[i])
                fetched[number].append((min(position, *reads, self.end), *row[1:]))
        return {
            number: UpdateBytes(_most(rows), _most([*rows, *fetched[number]]))
            for number, rows in made.items()
        }


_There = tuple[int, int, int]
"""The first and the last moment of an array, and its bytes."""


def _most(rows: Sequence[_There]) -> float:
    """Return the most bytes that are there at any moment."""
    change: Counter[int] = Counter()
    for first, last, size in rows:
        change[first] += size
        change[last + 1] -= size
    return float(max(accumulate(change[moment] for moment in sorted(change)), default=0))
