"""Dimensions of a module's values that scale together, by union-find.

A batch, say: the leading dimension of the data, of every activation, of what they are summed over.
Dimensions with the same factor, as the major one if there are several, fall into one class: they
are equal, or multiples of each other. Whoever cuts a class has the verifier say whether that was
all of it.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from hloipu_compiler.ir.dimension_rules import Sizes, rule_in
from hloipu_compiler.ir.factors import FactorKind
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_runtime.frozen import dataclass

Member = TypeVar("Member", bound=Hashable)

WHOLE = -1
"""Element of a value that is no tuple."""


class Cell(NamedTuple):
    """One dimension of an array, or of an array that is an element of a tuple."""

    computation: str
    position: int
    element: int
    dimension: int


class Value(NamedTuple):
    """An array in a module."""

    computation: str
    position: int
    element: int
    sizes: tuple[int, ...]

    def cell(self, dimension: int) -> Cell:
        """Return one of its dimensions."""
        return Cell(self.computation, self.position, self.element, dimension)


def arrays_of(shape: Shape) -> Iterator[tuple[int, ArrayShape]]:
    """Yield the arrays of a value with their elements' numbers; those of inner tuples are left."""
    if isinstance(shape, ArrayShape):
        yield WHOLE, shape
    elif isinstance(shape, TupleShape):
        for number, element in enumerate(shape.elements):
            if isinstance(element, ArrayShape):
                yield number, element


class UnionFind(Generic[Member]):
    """Classes of members; one that was never joined is alone."""

    def __init__(self) -> None:
        self.parent: dict[Member, Member] = {}

    def find(self, member: Member) -> Member:
        """Return the member that stands for a member's class."""
        root = member
        while (above := self.parent.get(root, root)) is not root:
            root = above
        while member != root:
            self.parent[member], member = root, self.parent.get(member, root)
        return root

    def unite(self, a: Member, b: Member) -> None:
        """Put the classes of two members into one."""
        self.parent[self.find(a)] = self.find(b)


class Joined(UnionFind[Cell]):
    """Classes of dimensions; those of size 1 are in none."""

    def join(self, a: Value, i: int, b: Value, k: int) -> None:
        """Put two dimensions into one class, unless one of them has size 1."""
        if a.sizes[i] > 1 and b.sizes[k] > 1:
            self.unite(a.cell(i), b.cell(k))

    def join_equal(self, a: Value, b: Value) -> None:
        """Join the dimensions of two values, one by one, where their sizes agree."""
        if len(a.sizes) == len(b.sizes):
            for i, (m, n) in enumerate(zip(a.sizes, b.sizes, strict=True)):
                if m == n:
                    self.join(a, i, b, i)


@dataclass(frozen=True, slots=True)
class Classes:
    """Every dimension's class, by any one of its members."""

    of_cell: Mapping[Cell, Cell]

    def members(self) -> dict[Cell, list[Cell]]:
        """Return the members of every class."""
        members_by_class: dict[Cell, list[Cell]] = {}
        for cell, first in self.of_cell.items():
            members_by_class.setdefault(first, []).append(cell)
        return members_by_class


def scaling_classes(module: Module) -> Classes:
    """Return the classes of the dimensions of all arrays with more than one element there."""
    work = _Classing(module)
    for computation in module.computations:
        for position in range(len(computation.instructions)):
            work.visit(computation, position)
    return Classes({cell: work.find(cell) for cell in work.cells()})


def looked_up(module: Module, classes: Classes) -> frozenset[Cell]:
    """Return the classes of the dimensions that indices point into: rows of tables, time steps."""
    classes_of_indices: set[Cell] = set()
    for computation in module.computations:
        for instruction in computation.instructions:
            places: tuple[int, ...] = ()
            if instruction.opcode in _ROWS:
                places = instruction.attributes.integers(_ROWS[instruction.opcode])
            elif instruction.opcode in ("dynamic-slice", "dynamic-update-slice"):
                places = rule_in(computation, instruction).dimensions(0, FactorKind.INDEXED)
            for d in places:
                cell = classes.of_cell.get(
                    Cell(computation.name, instruction.operands[0], WHOLE, d)
                )
                if cell is not None:
                    classes_of_indices.add(cell)
    return frozenset(classes_of_indices)


_ROWS = {"gather": "collapsed_slice_dims", "scatter": "inserted_window_dims"}
"""Attributes with the dimensions of which one place is taken; windows may be along a batch, too."""


def weights(module: Module, classes: Classes) -> frozenset[Cell]:
    """Return the classes that products of parameters sum over, and no product of them keeps.

    The input side of a weight is such a one; a batch is kept by the products that go forward.
    """
    summed: set[Cell] = set()
    uncontracted: set[Cell] = set()
    entry = module.entry
    plain = _plain(entry)
    for instruction in entry.instructions:
        if instruction.opcode != "dot":
            continue
        rule = rule_in(entry, instruction)
        for side, i in enumerate(instruction.operands[:2]):
            if not plain[i]:
                continue
            over = rule.dimensions(side, FactorKind.REDUCTION)
            for d in range(len(rule.operands[side])):
                cell = classes.of_cell.get(Cell(entry.name, i, WHOLE, d))
                if cell is not None:
                    (summed if d in over else uncontracted).add(cell)
    return frozenset(summed - uncontracted)


def _plain(computation: Computation) -> list[bool]:
    """Return which values are parameters, or these in another order or type."""
    is_plain: list[bool] = []
    for instruction in computation.instructions:
        moved = instruction.opcode in _MOVING and is_plain[instruction.operands[0]]
        is_plain.append(instruction.parameter_number >= 0 or moved)
    return is_plain


_MOVING = frozenset({"transpose", "reshape", "convert", "copy", "get-tuple-element"})


class _Classing(Joined):
    """Joins what each instruction of a module makes equal."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module

    def cells(self) -> Iterator[Cell]:
        for computation in self.module.computations:
            for position, instruction in enumerate(computation.instructions):
                for element, shape in arrays_of(instruction.shape):
                    for dimension, size in enumerate(shape.dimensions):
                        if size > 1:
                            yield Cell(computation.name, position, element, dimension)

    def values(self, computation: Computation, position: int) -> list[Value]:
        shape = computation.instructions[position].shape
        return [
            Value(computation.name, position, element, array.dimensions)
            for element, array in arrays_of(shape)
        ]

    def join_values(self, a: list[Value], b: list[Value]) -> None:
        """Join what two positions hold, tuples element by element."""
        value_by_element = {value.element: value for value in b}
        for value in a:
            if value.element in value_by_element:
                self.join_equal(value, value_by_element[value.element])

    def visit(self, computation: Computation, position: int) -> None:
        """Join what one instruction makes equal."""
        instruction = computation.instructions[position]
        if instruction.opcode in ELEMENTWISE and isinstance(instruction.shape, ArrayShape):
            self._elementwise(computation, position, instruction.shape.dimensions)
            return
        results = self.values(computation, position)
        operands = [self.values(computation, i) for i in instruction.operands]
        if instruction.opcode in _TUPLES:
            self._tuple(instruction, results, operands)
        elif instruction.opcode in _CALLING:
            self._calling(computation, instruction, results, operands)
        elif results and operands:
            self._by_factors(
                computation, instruction, results, [v for values in operands for v in values]
            )

    def _elementwise(self, computation: Computation, position: int, sizes: Sizes) -> None:
        """Join the dimensions of operands with a result's, of the op that most are."""
        joining = [d for d, size in enumerate(sizes) if size > 1]
        for i in computation.instructions[position].operands if joining else ():
            shape = computation.instructions[i].shape
            if isinstance(shape, ArrayShape) and shape.dimensions == sizes:  # or it is a number
                for d in joining:
                    self.unite(
                        Cell(computation.name, i, WHOLE, d),
                        Cell(computation.name, position, WHOLE, d),
                    )

    def _by_factors(
        self,
        computation: Computation,
        instruction: Instruction,
        results: list[Value],
        operands: list[Value],
    ) -> None:
        """Join the dimensions that have a factor, with the first of them: a result's, if any.

        Those that are not passed through or reduced, of windows and slices, only if they are equal.
        """
        rule = rule_in(computation, instruction)
        if (len(operands), len(results)) != (len(rule.operands), len(rule.results)):
            return  # tuples in tuples
        first: dict[int, tuple[Value, int]] = {}
        arrays = zip((*results, *operands), (*rule.results, *rule.operands), strict=True)
        for value, dimensions in arrays:
            for d, factors in enumerate(dimensions):
                first_value, k = first.setdefault(factors[0], (value, d))
                if first_value is not value and (
                    value.sizes[d] == first_value.sizes[k] or rule.kind(factors[0]) in _SCALING
                ):
                    self.join(value, d, first_value, k)

    def _tuple(
        self, instruction: Instruction, results: list[Value], operands: list[list[Value]]
    ) -> None:
        if instruction.opcode == "tuple":
            for value in results:
                for source in operands[value.element]:
                    self.join_equal(value, source)
        else:
            index = instruction.attributes.integer("index")
            for value in results:
                for source in operands[0]:
                    if source.element == index:
                        self.join_equal(value, source)

    def _calling(
        self,
        computation: Computation,
        instruction: Instruction,
        results: list[Value],
        operands: list[list[Value]],
    ) -> None:
        called = [self.module.computation[name] for name in instruction.attributes.called]
        arguments = [operands[0]] * len(called) if instruction.opcode == "while" else operands
        if instruction.opcode == "conditional":
            arguments = operands[1:]
        for number, inner in enumerate(called):
            inner_arguments = (
                arguments
                if instruction.opcode in ("call", "fusion")
                else arguments[number : number + 1]
            )
            for place, values in zip(inner.parameters, inner_arguments, strict=False):
                self.join_values(self.values(inner, place), values)
            if instruction.opcode != "while" or inner.name == instruction.attributes.text("body"):
                self.join_values(self.values(inner, inner.root), results)
        if instruction.opcode == "while":
            self.join_values(results, operands[0])


_SCALING = (FactorKind.PASS_THROUGH, FactorKind.REDUCTION)
_TUPLES = frozenset({"tuple", "get-tuple-element"})
_CALLING = frozenset({"call", "fusion", "while", "conditional"})
