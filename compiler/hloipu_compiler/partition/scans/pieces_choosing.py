"""Chooses which entry values are cut into pieces, along which axis and where.

Dimensions that ops make one, and those of a state and of its next value, are a class (union-find).
Where one of them is cut, all are, as far as their sizes allow it. Cut is what some user reads
pieces of: parameters where every user does, and state together with its next value.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import lcm

from hloipu_compiler.analysis.scaling_dims import UnionFind
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.scans.pieces_following import (
    WHOLE,
    combining,
    followed,
    sliced_range,
)
from hloipu_compiler.partition.training.reach import parameter_positions, result_positions
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_runtime.element_types import ELEMENT_TYPES

MOST_PIECES = 1_000_000
"""Of all values of a class; classes that would make more stay whole."""

MOST_PARTS = 2**62
"""Of a unit in which dimensions of several sizes can all be cut."""

Cell = int
"""One dimension of one value: position * stride + axis."""

Cuts = Collection[str] | Mapping[str, Collection[int]]
"""Names of ops that cut what they read or make, with the places where they do; else wherever they
begin and end."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How one value is cut."""

    axis: int
    bounds: tuple[int, ...]
    """Where pieces begin, and the end of the last one."""


class CutClasses:
    """The classes of an entry's dimensions that are cut; `pairs` of values are alike as well."""

    def __init__(
        self, entry: Computation, pairs: Iterable[tuple[int, int]], cuts: Cuts | None
    ) -> None:
        self.entry = entry
        self.cuts = cuts
        self.shapes = [_array(op) for op in entry.instructions]
        self.stride = max((s.rank for s in self.shapes), default=0) + 1
        self.classes = UnionFind[Cell]()
        self.cuts_of: dict[Cell, list[tuple[int, list[int]]]] = {}
        """Of a class: sizes of dimensions, and where these are cut."""
        for position in range(len(self.shapes)):
            self._join(position)
        for given, new in pairs:
            if self.shapes[given].dimensions == self.shapes[new].dimensions:
                for axis in range(self.shapes[given].rank):
                    self._unite(given, axis, new, axis)
        self._cut_classes()

    def cut(self) -> dict[int, Cut]:
        """Return how values may be cut, by position."""
        cuts = ((position, self._cut_of(position)) for position in range(len(self.shapes)))
        return {position: cut for position, cut in cuts if cut is not None}

    def class_of(self, position: int, axis: int) -> Cell:
        """Return the class of a dimension."""
        return self.classes.find(position * self.stride + axis)

    def leave_whole(self, classes: Iterable[Cell]) -> None:
        """Cut some classes nowhere."""
        for root in classes:
            self.sorted.pop(root, None)

    def _unite(self, a: int, i: int, b: int, k: int) -> None:
        """Put two dimensions into one class."""
        if min(self.shapes[a].dimensions[i], self.shapes[b].dimensions[k]) > 1:
            self.classes.unite(a * self.stride + i, b * self.stride + k)

    def _join(self, position: int) -> None:
        op = self.entry.instructions[position]
        operands = [self.shapes[i] for i in op.operands]
        sizes = self.shapes[position].dimensions
        is_elementwise = op.opcode in ELEMENTWISE and all(x.dimensions == sizes for x in operands)
        for axis, size in enumerate(sizes):
            if size <= 1:
                continue  # it is in no class
            places = (axis,) * len(operands) if is_elementwise else followed(op, operands, axis)
            for i, place in zip(op.operands, places or (), strict=False):
                if place != WHOLE:
                    self._unite(position, axis, i, place)

    def _cut_classes(self) -> None:
        """Find where classes are cut, and leave those whole that would have too many pieces."""
        for position, op in enumerate(self.entry.instructions):
            if self.cuts is not None and op.name not in self.cuts:
                continue
            for at, axis, places in self._cutting(position, op):
                if isinstance(self.cuts, Mapping):
                    kept = self.cuts[op.name]
                    places = [places[0], *(p for p in places[1:-1] if p in kept), places[-1]]
                root = self.classes.find(at * self.stride + axis)
                size = self.shapes[at].dimensions[axis]
                if size:  # else there is nothing to take apart
                    self.cuts_of.setdefault(root, []).append((size, places))
        self.members: Counter[Cell] = Counter()
        if self.cuts_of:
            for position, shape in enumerate(self.shapes):
                for axis in range(shape.rank):
                    root = self.classes.find(position * self.stride + axis)
                    if root in self.cuts_of:
                        self.members[root] += 1
        self.sorted: dict[Cell, tuple[int, ...]] = {}
        """Of a class: where it is cut, in parts of its unit."""
        self.unit: dict[Cell, int] = {}
        for root, cuts in self.cuts_of.items():
            unit = lcm(*{n for n, _ in cuts})
            places_in_units = {at * unit // n for n, cut in cuts for at in cut}
            if 2 < len(places_in_units) <= MOST_PIECES // self.members[root] and unit <= MOST_PARTS:
                self.sorted[root], self.unit[root] = tuple(sorted(places_in_units)), unit

    def _cutting(self, position: int, op: Instruction) -> Iterator[tuple[int, int, list[int]]]:
        """Yield position and axis of what an op cuts, and where."""
        if op.opcode == "concatenate":
            (axis,) = op.attributes.integers("dimensions")
            sizes = [self.shapes[i].dimensions[axis] for i in op.operands]
            yield position, axis, [0, *accumulate(sizes)]
        elif op.opcode == "slice":
            axis_and_range = sliced_range(op, self.shapes[op.operands[0]])
            if axis_and_range is not None:
                axis, taken = axis_and_range
                size = self.shapes[op.operands[0]].dimensions[axis]
                yield op.operands[0], axis, [0, taken.start, taken.limit, size]

    def _cut_of(self, position: int) -> Cut | None:
        """Return how a value may be cut: along the axis whose class has most members."""
        op, shape = self.entry.instructions[position], self.shapes[position]
        roots = [self.classes.find(position * self.stride + axis) for axis in range(shape.rank)]
        axes = [axis for axis, root in enumerate(roots) if root in self.sorted]
        axes = [axis for axis in axes if op.parameter_number >= 0 or self._goes_by(position, axis)]
        if not axes:
            return None
        axis = max(axes, key=lambda a: (self.members[roots[a]], roots[a]))
        root, sizes = roots[axis], {shape.dimensions[axis]}
        if op.opcode == "reshape":
            (place,) = followed(op, [self.shapes[op.operands[0]]], axis) or (axis,)
            sizes.add(self.shapes[op.operands[0]].dimensions[place])
        return self._cut_along(axis, root, shape.dimensions[axis], sizes)

    def _cut_along(self, axis: int, root: Cell, size: int, sizes: Collection[int]) -> Cut | None:
        """Return how a dimension is cut, where all of these sizes can be cut there."""
        unit, bounds = self.unit[root], self.sorted[root]
        if any(at * each % unit for each in sizes if each != unit for at in bounds):
            return None
        return Cut(axis, bounds if size == unit else tuple(at * size // unit for at in bounds))

    def _goes_by(self, position: int, axis: int) -> bool:
        """Whether an op makes a range of its result of ranges of its operands."""
        op = self.entry.instructions[position]
        operands = [self.shapes[i] for i in op.operands]
        if op.opcode == "concatenate" or (
            op.opcode == "slice" and sliced_range(op, operands[0]) is not None
        ):
            return True
        return followed(op, operands, axis) is not None


def _array(op: Instruction) -> ArrayShape:
    """Return the shape of an array; a number's for what is none."""
    return op.shape if isinstance(op.shape, ArrayShape) else _NONE


_NONE = ArrayShape(ELEMENT_TYPES["pred"])


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
