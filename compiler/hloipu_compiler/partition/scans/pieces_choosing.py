"""Chooses which entry values are cut into pieces, along which axis and where.

Of what may be cut, that is of which some user reads pieces. Parameters are cut only where every
user does, and state together with its next value.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.scans.pieces_classes import Cell, Cut, CutClasses, Cuts
from hloipu_compiler.partition.scans.pieces_following import combining, followed, sliced_range
from hloipu_compiler.partition.training.reach import parameter_positions, result_positions
from hloipu_compiler.plan.wrapping import Wrapping

_MOST_ROUNDS = 8
"""In which state is left whole because other state is; what is left then is cut all the same."""


@dataclass(frozen=True)
class Choice:
    """What is cut, by position in the entry."""

    cut: dict[int, Cut]
    parameters: frozenset[int]
    """Positions of parameters that become several."""
    results: dict[int, Cut]
    """Numbers of results that become several."""


NOTHING = Choice({}, frozenset(), {})


def chosen(module: Module, wrapping: Wrapping, cuts: Cuts | None) -> Choice:
    """Return what is to be cut; `cuts` as `step_in_pieces` takes it."""
    return _Choosing(module, wrapping, cuts).choice()


class _Choosing:
    """The entry as it is looked at from users to operands."""

    def __init__(self, module: Module, wrapping: Wrapping, cuts: Cuts | None) -> None:
        self.module = module
        self.entry = module.entry
        self.wrapping = wrapping
        self.state = self._state()
        self.classes = CutClasses(self.entry, self.state, cuts)
        self.shapes = self.classes.shapes
        self.cut: dict[int, Cut] = {}

    def choice(self) -> Choice:
        choice = NOTHING
        for _ in range(_MOST_ROUNDS):
            self.cut = self.classes.cut()
            choice = self._kept() if self.cut else NOTHING
            torn = self._torn(choice)
            if not torn:
                break
            self.classes.leave_whole(torn)
        return choice

    def _torn(self, choice: Choice) -> set[Cell]:
        """Return the classes of state that stays whole while its next value would be in pieces.

        What is added to such state, and what goes with that, is better left whole, too.
        """
        return {
            self.classes.class_of(p, self.cut[p].axis)
            for p, new in self.state
            if p in self.cut and p not in choice.parameters and new in choice.cut
        }

    def _state(self) -> list[tuple[int, int]]:
        """Return the positions of each state and of its next value, where both are arrays."""
        parameters, results = parameter_positions(self.entry), result_positions(self.entry)
        return [
            (self.entry.parameters[pair.parameter], new)
            for pair in self.wrapping.state
            if len(self.entry.parameters) == len(parameters)
            if (new := results[pair.result]) is not None
        ]

    def _kept(self) -> Choice:
        """Return what some user reads pieces of; parameters only where every user does."""
        root = self.entry.instructions[self.entry.root]
        is_tuple = root.opcode == "tuple"
        divisible = all(
            isinstance(self.entry.instructions[i].shape, ArrayShape) for i in root.operands
        )
        if not is_tuple:  # a result that is an array stays whole
            divisible = isinstance(root.shape, ArrayShape) and not self.state
        divisible = divisible and all(
            self.shapes[p] is self.entry.instructions[p].shape
            and self.shapes[p].element_type.name != "token"
            for p in self.entry.parameters
        )
        if not divisible:
            return NOTHING
        results = root.operands if is_tuple else ()
        read: dict[int, bool] = {}
        """Of what a piece is read."""
        all_read: set[int] = set()
        """Of what all is read at once."""
        for number in results:
            if self.entry.instructions[number].parameter_number < 0 and number in self.cut:
                read[number] = True
        for position in range(len(self.entry.instructions) - 1, -1, -1):
            if position == self.entry.root and is_tuple:
                continue
            for i, by_piece in self._reads(position, read):
                if by_piece:
                    read[i] = True
                else:
                    all_read.add(i)
        cut = {p: c for p, c in self.cut.items() if p in read}
        parameters = {p for p in self.entry.parameters if p in cut and p not in all_read}
        parameters -= self._unpaired(parameters)
        for p in self.entry.parameters:
            if p not in parameters:
                cut.pop(p, None)
        return Choice(cut, frozenset(parameters), self._results(cut, parameters, results))

    def _unpaired(self, parameters: Collection[int]) -> set[int]:
        """Return state whose next value is not of its shape."""
        return {
            given
            for given, new in self.state
            if given in parameters and self.shapes[given].dimensions != self.shapes[new].dimensions
        }

    def _results(
        self, cut: dict[int, Cut], parameters: Collection[int], results: Sequence[int]
    ) -> dict[int, Cut]:
        """Return the results that become several: next values of cut state, and what is cut."""
        state = {pair.result: self.entry.parameters[pair.parameter] for pair in self.wrapping.state}
        cut_by_result = {}
        for number, position in enumerate(results):
            source = state.get(number, position)
            if source in cut and (number not in state or source in parameters):
                cut_by_result[number] = cut[source]
        return cut_by_result

    def _reads(self, position: int, read: dict[int, bool]) -> Iterator[tuple[int, bool]]:
        """Yield what an op reads, and whether only pieces of it."""
        op = self.entry.instructions[position]
        operands = [self.shapes[i] for i in op.operands]
        sliced = sliced_range(op, operands[0]) if op.opcode == "slice" else None
        along = op.attributes.integers("dimensions") if op.opcode == "reduce" else ()
        own = self.cut.get(position) if position in read else None
        places: Sequence[int] | None = None
        if own is not None:
            places = followed(op, operands, own.axis)
        for number, i in enumerate(op.operands):
            other = self.cut.get(i)
            if other is None:
                yield i, False
            elif sliced is not None:
                yield i, sliced[0] == other.axis
            elif places is not None:
                yield i, places[number] == other.axis
            elif number == 0 and other.axis in along:
                yield i, combining(self.module, op) is not None
            else:
                yield i, False
