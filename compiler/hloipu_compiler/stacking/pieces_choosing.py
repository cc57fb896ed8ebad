"""Which values of the entry are cut into pieces, along which axis and where.

Dimensions that ops make one, and those of a state and of its next value, are a class (union-find).
Where a slice or a concatenation cuts one of them, all are cut. Values that no piece is read of stay
whole, and so do parameters of which an op reads all at once.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import lcm

from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_compiler.stacking.pieces_following import (
    WHOLE,
    combining,
    followed,
    sliced_range,
)
from hloipu_compiler.staging.reach import parameter_positions, result_positions
from hloipu_runtime.element_types import ELEMENT_TYPES

MOST_PIECES = 1_000_000
"""Of all values of a class; classes that would make more stay whole."""

MOST_PARTS = 2**62
"""Of a unit in which dimensions of several sizes can all be cut."""

Cell = int
"""One dimension of one value: position * stride + axis."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How one value is cut."""

    axis: int
    bounds: tuple[int, ...]
    """Where pieces begin, and the end of the last one."""


@dataclass(frozen=True)
class Choice:
    """What is cut, by position in the entry."""

    cut: dict[int, Cut]
    parameters: frozenset[int]
    """Positions of parameters that become several."""
    results: dict[int, Cut]
    """Numbers of results that become several."""


Cuts = Collection[str] | Mapping[str, Collection[int]]
"""Names of ops that cut what they read or make, with the places where they do; else wherever they
begin and end."""

NOTHING = Choice({}, frozenset(), {})


def chosen(module: Module, wrapping: Wrapping, cuts: Cuts | None) -> Choice:
    """Return what is to be cut; `cuts` as `in_pieces` takes it."""
    return _Choosing(module, wrapping, cuts).choice()


class _Choosing:
    """The entry as it is looked at, for classes first, then from users to operands."""

    def __init__(self, module: Module, wrapping: Wrapping, cuts: Cuts | None) -> None:
        self.module = module
        self.entry = module.entry
        self.wrapping = wrapping
        self.cuts = cuts
        shapes = [_array(x) for x in self.entry.instructions]
        self.shapes: list[ArrayShape] = shapes
        self.stride = max((s.rank for s in shapes), default=0) + 1
        self.above: dict[Cell, Cell] = {}
        self.cuts_of: dict[Cell, list[tuple[int, list[int]]]] = {}
        """Of a class: sizes of dimensions, and where these are cut."""
        self.cut: dict[int, Cut] = {}

    def choice(self) -> Choice:
        for position in range(len(self.entry.instructions)):
            self._join(position)
        takes, gives = self._state()
        for given, made in zip(takes, gives, strict=True):
            if self.shapes[given].dimensions == self.shapes[made].dimensions:
                for axis in range(self.shapes[given].rank):
                    self._one(given, axis, made, axis)
        self._cut_classes()
        while True:
            cuts = ((position, self._cut_of(position)) for position in range(len(self.shapes)))
            self.cut = {position: cut for position, cut in cuts if cut is not None}
            found = self._kept() if self.cut else NOTHING
            torn = self._torn(found)
            if not torn:
                return found
            for root in torn:
                self.sorted.pop(root, None)

    def _torn(self, choice: Choice) -> set[Cell]:
        """Return the classes of state that stays whole while its next value would be in pieces.

        What is added to such state, and what goes with that, is better left whole, too.
        """
        return {
            self._find(p * self.stride + self.cut[p].axis)
            for p, made in zip(*self._state(), strict=True)
            if p in self.cut and p not in choice.parameters and made in choice.cut
        }

    def _state(self) -> tuple[list[int], list[int]]:
        """Return the positions of each state, and of its next value, where both are arrays."""
        parameters, results = parameter_positions(self.entry), result_positions(self.entry)
        pairs = [
            (self.entry.parameters[pair.parameter], made)
            for pair in self.wrapping.state
            if len(self.entry.parameters) == len(parameters)
            if (made := results[pair.result]) is not None
        ]
        return [given for given, _ in pairs], [made for _, made in pairs]

    # Classes

    def _find(self, cell: Cell) -> Cell:
        root = cell
        while (above := self.above.get(root, root)) != root:
            root = above
        while cell != root:
            self.above[cell], cell = root, self.above.get(cell, root)
        return root

    def _one(self, a: int, i: int, b: int, k: int) -> None:
        """Put two dimensions into one class."""
        if min(self.shapes[a].dimensions[i], self.shapes[b].dimensions[k]) > 1:
            first, second = self._find(a * self.stride + i), self._find(b * self.stride + k)
            self.above[first] = second

    def _join(self, position: int) -> None:
        x = self.entry.instructions[position]
        operands = [self.shapes[i] for i in x.operands]
        for axis in range(self.shapes[position].rank):
            for i, place in zip(x.operands, followed(x, operands, axis) or (), strict=False):
                if place != WHOLE:
                    self._one(position, axis, i, place)

    def _cut_classes(self) -> None:
        """Find where classes are cut, and leave those whole that would have too many pieces."""
        for position, x in enumerate(self.entry.instructions):
            if self.cuts is not None and x.name not in self.cuts:
                continue
            for at, axis, places in self._cutting(position, x):
                if isinstance(self.cuts, Mapping):
                    kept = self.cuts[x.name]
                    places = [places[0], *(p for p in places[1:-1] if p in kept), places[-1]]
                root = self._find(at * self.stride + axis)
                size = self.shapes[at].dimensions[axis]
                self.cuts_of.setdefault(root, []).append((size, places))
        self.members: Counter[Cell] = Counter()
        if self.cuts_of:
            for position, shape in enumerate(self.shapes):
                for axis in range(shape.rank):
                    root = self._find(position * self.stride + axis)
                    if root in self.cuts_of:
                        self.members[root] += 1
        self.sorted: dict[Cell, tuple[int, ...]] = {}
        """Of a class: where it is cut, in parts of its unit."""
        self.unit: dict[Cell, int] = {}
        for root, cuts in self.cuts_of.items():
            unit = lcm(*{n for n, _ in cuts})
            found = {at * unit // n for n, cut in cuts for at in cut}
            if 2 < len(found) <= MOST_PIECES // self.members[root] and unit <= MOST_PARTS:
                self.sorted[root], self.unit[root] = tuple(sorted(found)), unit

    def _cutting(self, position: int, x: Instruction) -> Iterator[tuple[int, int, list[int]]]:
        """Yield position and axis of what an op cuts, and where."""
        if x.opcode == "concatenate":
            (axis,) = x.attributes.integers("dimensions")
            sizes = [self.shapes[i].dimensions[axis] for i in x.operands]
            yield position, axis, [0, *accumulate(sizes)]
        elif x.opcode == "slice":
            found = sliced_range(x, self.shapes[x.operands[0]])
            if found is not None:
                axis, taken = found
                size = self.shapes[x.operands[0]].dimensions[axis]
                yield x.operands[0], axis, [0, taken.start, taken.limit, size]

    def _cut_of(self, position: int) -> Cut | None:
        """Return how a value may be cut: along the axis whose class has most members."""
        x, shape = self.entry.instructions[position], self.shapes[position]
        roots = [self._find(position * self.stride + axis) for axis in range(shape.rank)]
        axes = [axis for axis, root in enumerate(roots) if root in self.sorted]
        axes = [axis for axis in axes if x.parameter_number >= 0 or self._goes_by(position, axis)]
        if not axes:
            return None
        axis = max(axes, key=lambda a: (self.members[roots[a]], roots[a]))
        root, sizes = roots[axis], {shape.dimensions[axis]}
        if x.opcode == "reshape":
            (place,) = followed(x, [self.shapes[x.operands[0]]], axis) or (axis,)
            sizes.add(self.shapes[x.operands[0]].dimensions[place])
        return self._cut_along(axis, root, shape.dimensions[axis], sizes)

    def _cut_along(self, axis: int, root: Cell, size: int, sizes: Collection[int]) -> Cut | None:
        """Return how a dimension is cut, where all of these sizes can be cut there."""
        unit, bounds = self.unit[root], self.sorted[root]
        if any(at * each % unit for each in sizes if each != unit for at in bounds):
            return None
        return Cut(axis, bounds if size == unit else tuple(at * size // unit for at in bounds))

    def _goes_by(self, position: int, axis: int) -> bool:
        """Whether an op makes a range of its result of ranges of its operands."""
        x = self.entry.instructions[position]
        operands = [self.shapes[i] for i in x.operands]
        if x.opcode == "concatenate" or (
            x.opcode == "slice" and sliced_range(x, operands[0]) is not None
        ):
            return True
        return followed(x, operands, axis) is not None

    # From users to operands

    def _kept(self) -> Choice:
        """Return what some user reads pieces of; parameters only where every user does."""
        root = self.entry.instructions[self.entry.root]
        divisible = root.opcode == "tuple" and all(
            isinstance(self.entry.instructions[i].shape, ArrayShape) for i in root.operands
        )
        divisible = divisible and all(
            self.shapes[p] is self.entry.instructions[p].shape
            and self.shapes[p].element_type.name != "token"
            for p in self.entry.parameters
        )
        if not divisible:
            return NOTHING
        results = root.operands
        read: dict[int, bool] = {}
        """Of what a piece is read."""
        all_read: set[int] = set()
        """Of what all is read at once."""
        for number in results:
            if self.entry.instructions[number].parameter_number < 0 and number in self.cut:
                read[number] = True
        for position in range(len(self.entry.instructions) - 1, -1, -1):
            if position == self.entry.root:
                continue
            for i, by_piece in self._reads(position, read):
                if by_piece:
                    read[i] = True
                else:
                    all_read.add(i)
        cut = {p: c for p, c in self.cut.items() if p in read}
        parameters = {p for p in self.entry.parameters if p in cut and p not in all_read}
        parameters -= self._unpaired(parameters, results)
        for p in self.entry.parameters:
            if p not in parameters:
                cut.pop(p, None)
        return Choice(cut, frozenset(parameters), self._results(cut, parameters, results))

    def _unpaired(self, parameters: Collection[int], results: Sequence[int]) -> set[int]:
        """Return state whose next value is not of its shape."""
        return {
            given
            for given, made in zip(*self._state(), strict=True)
            if given in parameters and self.shapes[given].dimensions != self.shapes[made].dimensions
        }

    def _results(
        self, cut: dict[int, Cut], parameters: Collection[int], results: Sequence[int]
    ) -> dict[int, Cut]:
        """Return the results that become several: next values of cut state, and what is cut."""
        state = {pair.result: self.entry.parameters[pair.parameter] for pair in self.wrapping.state}
        found = {}
        for number, position in enumerate(results):
            source = state.get(number, position)
            if source in cut and (number not in state or source in parameters):
                found[number] = cut[source]
        return found

    def _reads(self, position: int, read: dict[int, bool]) -> Iterator[tuple[int, bool]]:
        """Yield what an op reads, and whether only pieces of it."""
        x = self.entry.instructions[position]
        operands = [self.shapes[i] for i in x.operands]
        sliced = sliced_range(x, operands[0]) if x.opcode == "slice" else None
        along = x.attributes.integers("dimensions") if x.opcode == "reduce" else ()
        own = self.cut.get(position) if position in read else None
        places: Sequence[int] | None = None
        if own is not None:
            places = followed(x, operands, own.axis)
        for number, i in enumerate(x.operands):
            other = self.cut.get(i)
            if other is None:
                yield i, False
            elif sliced is not None:
                yield i, sliced[0] == other.axis
            elif places is not None:
                yield i, places[number] == other.axis
            elif number == 0 and other.axis in along:
                yield i, combining(self.module, x) is not None
            else:
                yield i, False


def _array(x: Instruction) -> ArrayShape:
    """Return the shape of an array; a number's for what is none."""
    return x.shape if isinstance(x.shape, ArrayShape) else _NONE


_NONE = ArrayShape(ELEMENT_TYPES["pred"])
