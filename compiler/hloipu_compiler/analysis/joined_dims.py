"""Union-find over the dimensions of a module's arrays."""

from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape

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
