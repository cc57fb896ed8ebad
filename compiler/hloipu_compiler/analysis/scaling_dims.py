"""Dimensions of a module's values that scale together.

A batch, say: the leading dimension of the data, of every activation, of what they are summed over.
Dimensions that an op makes equal, or multiples of each other, fall into one class (union-find).
Ops that are not known here join nothing; whoever cuts a class has the verifier say whether that
was all of it.
"""

from collections.abc import Iterator, Mapping

from hloipu_compiler.analysis.joined_dims import WHOLE, Cell, Joined, Value, arrays_of
from hloipu_compiler.analysis.scaling_rules import RULES
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape
from hloipu_runtime.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Classes:
    """Every dimension's class, by any one of its members."""

    of_cell: Mapping[Cell, Cell]

    def members(self) -> dict[Cell, list[Cell]]:
        """Return the members of every class."""
        found: dict[Cell, list[Cell]] = {}
        for cell, first in self.of_cell.items():
            found.setdefault(first, []).append(cell)
        return found


def scaling_classes(module: Module) -> Classes:
    """Return the classes of the dimensions of all arrays with more than one element there."""
    work = _Classing(module)
    for computation in module.computations:
        for position in range(len(computation.instructions)):
            work.visit(computation, position)
    work.settle_reshapes()
    return Classes({cell: work.find(cell) for cell in work.cells()})


def looked_up(module: Module, classes: Classes) -> frozenset[Cell]:
    """Return the classes of the dimensions that indices point into: rows of tables, time steps."""
    found: set[Cell] = set()
    for computation in module.computations:
        for x in computation.instructions:
            if x.opcode in ("gather", "scatter"):
                name = "collapsed_slice_dims" if x.opcode == "gather" else "inserted_window_dims"
                table = x.operands[0]
                places = x.attributes.integers(name)
            elif x.opcode in ("dynamic-slice", "dynamic-update-slice"):
                part = computation.instructions[x.operands[1]] if "update" in x.opcode else x
                table = x.operands[0]
                places = _cut(computation.instructions[table].shape, part.shape)
            else:
                continue
            for d in places:
                cell = classes.of_cell.get(Cell(computation.name, table, WHOLE, d))
                if cell is not None:
                    found.add(cell)
    return frozenset(found)


def weights(module: Module, classes: Classes) -> frozenset[Cell]:
    """Return the classes that products of parameters sum over, and no product of them keeps.

    The input side of a weight is such a one; a batch is kept by the products that go forward.
    """
    summed: set[Cell] = set()
    kept: set[Cell] = set()
    entry = module.entry
    plain = _plain(entry)
    for x in entry.instructions:
        if x.opcode != "dot":
            continue
        names = ("lhs_contracting_dims", "rhs_contracting_dims")
        for i, name in zip(x.operands[:2], names, strict=True):
            shape = entry.instructions[i].shape
            if not plain[i] or not isinstance(shape, ArrayShape):
                continue
            over = set(x.attributes.integers(name))
            for d in range(shape.rank):
                cell = classes.of_cell.get(Cell(entry.name, i, WHOLE, d))
                if cell is not None:
                    (summed if d in over else kept).add(cell)
    return frozenset(summed - kept)


def _plain(computation: Computation) -> list[bool]:
    """Return which values are parameters, or these in another order or type."""
    found: list[bool] = []
    for x in computation.instructions:
        moved = x.opcode in _MOVING and found[x.operands[0]]
        found.append(x.parameter_number >= 0 or moved)
    return found


_MOVING = frozenset({"transpose", "reshape", "convert", "copy", "get-tuple-element"})


def _cut(whole: Shape, part: Shape) -> tuple[int, ...]:
    """Return the dimensions of which a part has not all."""
    if not isinstance(whole, ArrayShape) or not isinstance(part, ArrayShape):
        return ()
    pairs = zip(whole.dimensions, part.dimensions, strict=False)
    return tuple(d for d, (all_of_it, some) in enumerate(pairs) if some < all_of_it)


class _Classing(Joined):
    """Joins what each instruction of a module makes equal."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module
        self.reshapes: list[tuple[Value, Value]] = []

    def cells(self) -> Iterator[Cell]:
        for computation in self.module.computations:
            for position, x in enumerate(computation.instructions):
                for element, shape in arrays_of(x.shape):
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
        others = {value.element: value for value in b}
        for value in a:
            if value.element in others:
                self.join_equal(value, others[value.element])

    def visit(self, computation: Computation, position: int) -> None:
        """Join what one instruction makes equal."""
        x = computation.instructions[position]
        results = self.values(computation, position)
        operands = [self.values(computation, i) for i in x.operands]
        if x.opcode in _TUPLES:
            self._tuple(x, results, operands)
        elif x.opcode in _CALLING:
            self._calling(computation, x, results, operands)
        elif results and all(operands):
            first = [values[0] for values in operands]
            rule = RULES.get(x.opcode)
            if x.opcode == "reshape":
                self.reshapes.append((first[0], results[0]))
            elif rule is not None:
                rule(self, x, results, first)

    def _tuple(self, x: Instruction, results: list[Value], operands: list[list[Value]]) -> None:
        if x.opcode == "tuple":
            for value in results:
                for source in operands[value.element]:
                    self.join_equal(value, source)
        else:
            index = x.attributes.integer("index")
            for value in results:
                for source in operands[0]:
                    if source.element == index:
                        self.join_equal(value, source)

    def _calling(
        self,
        computation: Computation,
        x: Instruction,
        results: list[Value],
        operands: list[list[Value]],
    ) -> None:
        called = [self.module.computation[name] for name in x.attributes.called]
        arguments = [operands[0]] * len(called) if x.opcode == "while" else operands
        if x.opcode == "conditional":
            arguments = operands[1:]
        for number, inner in enumerate(called):
            given = arguments if x.opcode in ("call", "fusion") else arguments[number : number + 1]
            for place, values in zip(inner.parameters, given, strict=False):
                self.join_values(self.values(inner, place), values)
            if x.opcode != "while" or inner.name == x.attributes.text("body"):
                self.join_values(self.values(inner, inner.root), results)
        if x.opcode == "while":
            self.join_values(results, operands[0])

    def settle_reshapes(self) -> None:
        """Join the dimensions that reshapes split and merge.

        A dimension that takes in several is joined with the outermost of them: there a batch is.
        """
        for source, result in self.reshapes:
            for left, right in _groups(source.sizes, result.sizes):
                if left and right:
                    self.join(source, left[0], result, right[0])


def _groups(a: tuple[int, ...], b: tuple[int, ...]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the dimensions of two shapes that a reshape makes of each other; those of 1 are left.

    Each group has the same number of elements on both sides, and as few dimensions as can be.
    """
    left = [i for i, n in enumerate(a) if n != 1]
    right = [i for i, n in enumerate(b) if n != 1]
    i = k = 0
    while i < len(left) and k < len(right):
        first_i, first_k = i, k
        m, n = a[left[i]], b[right[k]]
        i, k = i + 1, k + 1
        while m != n:
            if m < n and i < len(left):
                m, i = m * a[left[i]], i + 1
            elif n < m and k < len(right):
                n, k = n * b[right[k]], k + 1
            else:
                return
        yield left[first_i:i], right[first_k:k]


_TUPLES = frozenset({"tuple", "get-tuple-element"})
_CALLING = frozenset({"call", "fusion", "while", "conditional"})
