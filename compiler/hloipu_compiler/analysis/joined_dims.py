"""Union-find over the dimensions of a module's arrays."""

from collections.abc import Iterator
from typing import NamedTuple

from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape

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


class Joined:
    """Union-find over dimensions; those of size 1 are in none."""

    def __init__(self) -> None:
        self.parent: dict[Cell, Cell] = {}

    def find(self, cell: Cell) -> Cell:
        """Return the member that stands for a dimension's class."""
        root = cell
        while (above := self.parent.get(root, root)) != root:
            root = above
        while cell != root:
            self.parent[cell], cell = root, self.parent.get(cell, root)
        return root

    def join(self, a: Value, i: int, b: Value, k: int) -> None:
        """Put two dimensions into one class, unless one of them has size 1."""
        if a.sizes[i] > 1 and b.sizes[k] > 1:
            self.parent[self.find(a.cell(i))] = self.find(b.cell(k))

    def join_equal(self, a: Value, b: Value) -> None:
        """Join the dimensions of two values, one by one, where their sizes agree."""
        if len(a.sizes) == len(b.sizes):
            for i, (m, n) in enumerate(zip(a.sizes, b.sizes, strict=True)):
                if m == n:
                    self.join(a, i, b, i)
