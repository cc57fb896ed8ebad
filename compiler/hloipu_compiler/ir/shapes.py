"""Shapes: arrays with layouts, tuples, tokens and buffers, as immutable, interned-friendly values.

Equality is exact, layouts included. `compatible` is the looser relation that HLO's rules use.
Hashes are computed once: a memo looks shapes up millions of times.
"""

from collections.abc import Iterator
from dataclasses import field
from functools import lru_cache
from itertools import accumulate

from hloipu_runtime.element_types import ElementType
from hloipu_runtime.frozen import dataclass

UNBOUNDED = -1
"""Size of a dimension written `?`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Order of dimensions in memory, minor to major, and the raw text after `:` (tiles, space…)."""

    minor_to_major: tuple[int, ...]
    extension: str = ""
    """For example `T(8,128)S(5)`, kept as written; parsed on demand by `hlo.layout_extension`."""

    def __str__(self) -> str:
        order = ",".join(map(str, self.minor_to_major))
        return f"{{{order}:{self.extension}}}" if self.extension else f"{{{order}}}"


@dataclass(frozen=True, slots=True, eq=False)
class ArrayShape:
    """An array: element type, sizes, and for each size whether it is only a bound (`<=n`, `?`).

    `token[]` and `opaque[]` are arrays without dimensions whose element type says so.
    """

    element_type: ElementType
    dimensions: tuple[int, ...] = ()
    layout: Layout | None = None
    dynamic: tuple[bool, ...] | None = None
    """None when every size is static, which is nearly always."""
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        key = (self.element_type.name, self.dimensions, self.layout, self.dynamic)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, ArrayShape)
            and self._hash == other._hash
            and self.element_type is other.element_type
            and self.dimensions == other.dimensions
            and self.layout == other.layout
            and self.dynamic == other.dynamic
        )

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dimensions)

    @property
    def is_scalar(self) -> bool:
        """Whether the shape is a number: no dimensions, and neither token nor opaque."""
        return not self.dimensions and self.element_type.is_array

    @property
    def is_static(self) -> bool:
        """Whether every size is known."""
        return self.dynamic is None

    @property
    def element_count(self) -> int:
        """Number of elements; dynamic sizes count as their bounds, unbounded ones as 0."""
        count = 1
        for size in self.dimensions:
            count *= max(size, 0)
        return count

    @property
    def byte_count(self) -> int:
        """Bytes of the elements, packed: eight s1 or two s4 elements to a byte."""
        return (self.element_count * self.element_type.bits + 7) // 8

    def without_layout(self) -> "ArrayShape":
        """Return the same shape with no layout said."""
        if self.layout is None:
            return self
        return ArrayShape(self.element_type, self.dimensions, None, self.dynamic)

    def __str__(self) -> str:
        sizes = ",".join(
            "?"
            if size == UNBOUNDED
            else f"<={size}"
            if self.dynamic and self.dynamic[i]
            else str(size)
            for i, size in enumerate(self.dimensions)
        )
        return f"{self.element_type.name}[{sizes}]{self.layout or ''}"


@dataclass(frozen=True, slots=True, eq=False)
class TupleShape:
    """A tuple of shapes, possibly nested and possibly empty."""

    elements: tuple["Shape", ...] = ()
    leaf_count: int = field(init=False, repr=False)
    depth: int = field(init=False, repr=False)
    has_buffer: bool = field(init=False, repr=False)
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        leaves = sum(e.leaf_count if isinstance(e, TupleShape) else 1 for e in self.elements)
        depth = 1 + max((e.depth for e in self.elements if isinstance(e, TupleShape)), default=0)
        object.__setattr__(self, "leaf_count", leaves)
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "has_buffer", any(map(holds_buffer, self.elements)))
        object.__setattr__(self, "_hash", hash((TupleShape, self.elements)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, TupleShape)
            and self._hash == other._hash
            and self.elements == other.elements
        )

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.elements))})"


@dataclass(frozen=True, slots=True)
class BufferShape:
    """A mutable buffer of one array shape, written `b(f32[4])`."""

    contents: ArrayShape

    def __str__(self) -> str:
        return f"b({self.contents})"


Shape = ArrayShape | TupleShape | BufferShape


def holds_buffer(shape: Shape) -> bool:
    """Whether a shape is a buffer or a tuple with one somewhere in it."""
    return isinstance(shape, BufferShape) or (isinstance(shape, TupleShape) and shape.has_buffer)


def leaves(shape: Shape) -> Iterator[tuple[tuple[int, ...], ArrayShape | BufferShape]]:
    """Yield (index path, leaf shape) of every leaf, in order; the path is `()` for a lone array."""
    stack: list[tuple[tuple[int, ...], Shape]] = [((), shape)]
    while stack:
        path, at = stack.pop()
        if isinstance(at, TupleShape):
            stack += [((*path, i), e) for i, e in reversed(list(enumerate(at.elements)))]
        else:
            yield path, at


def subshape(shape: Shape, path: tuple[int, ...]) -> Shape | None:
    """Return the shape at an index path, or None where there is none."""
    for index in path:
        if not isinstance(shape, TupleShape) or not 0 <= index < len(shape.elements):
            return None
        shape = shape.elements[index]
    return shape


def compatible(a: Shape, b: Shape) -> bool:
    """Whether two shapes agree in structure, element types and sizes; layouts are ignored.

    Dynamic sizes compare by their bounds and unbounded ones with any size, as XLA's
    `ShapeUtil::Compatible` does.
    """
    if a is b:
        return True
    if isinstance(a, ArrayShape):
        return (
            isinstance(b, ArrayShape)
            and a.element_type is b.element_type
            and (a.dimensions == b.dimensions or _sizes_agree(a.dimensions, b.dimensions))
        )
    if isinstance(a, TupleShape):
        return (
            isinstance(b, TupleShape)
            and len(a.elements) == len(b.elements)
            and all(
                compatible(one, other) for one, other in zip(a.elements, b.elements, strict=True)
            )
        )
    return isinstance(b, BufferShape) and compatible(a.contents, b.contents)


def _sizes_agree(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return len(a) == len(b) and all(
        one == other or UNBOUNDED in (one, other) for one, other in zip(a, b, strict=True)
    )


def byte_count(shape: Shape) -> int:
    """Bytes of all leaves together."""
    return sum(
        (leaf.contents if isinstance(leaf, BufferShape) else leaf).byte_count
        for _, leaf in leaves(shape)
    )


def element_count(shape: Shape) -> int:
    """Elements of all leaves together."""
    return sum(leaf.element_count for leaf in leaves_of(shape))


def with_default_layout(shape: Shape) -> Shape:
    """Return `shape` with a row-major layout wherever an array of rank 1 and more says none."""
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(map(with_default_layout, shape.elements)))
    if isinstance(shape, BufferShape):
        return shape
    if shape.layout is not None or not shape.dimensions:
        return shape
    order = tuple(range(shape.rank - 1, -1, -1))
    return ArrayShape(shape.element_type, shape.dimensions, Layout(order), shape.dynamic)


def without_layouts(shape: Shape) -> Shape:
    """Return `shape` with every layout left out."""
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(map(without_layouts, shape.elements)))
    if isinstance(shape, BufferShape):
        return BufferShape(shape.contents.without_layout())
    return shape.without_layout()


def array_shape(shape: Shape) -> ArrayShape:
    """Return a shape that is known to be an array."""
    if not isinstance(shape, ArrayShape):
        raise TypeError(f"{shape} is not an array")
    return shape


def sizes_of(shape: Shape) -> tuple[int, ...]:
    """Return the sizes of an array's dimensions; none for what is not an array."""
    return shape.dimensions if isinstance(shape, ArrayShape) else ()


def leaves_of(shape: Shape) -> list[ArrayShape]:
    """Return the arrays of a shape, tuples walked in order."""
    if isinstance(shape, ArrayShape):
        return [shape]
    leaves: list[ArrayShape] = []
    stack: list[Shape] = [shape]
    while stack:
        part = stack.pop()
        if isinstance(part, TupleShape):
            stack.extend(reversed(part.elements))
        elif isinstance(part, ArrayShape):
            leaves.append(part)
        else:
            leaves.append(part.contents)
    return leaves


def leaf_range(shape: TupleShape, index: int) -> slice:
    """Return which leaves of a tuple belong to one of its elements."""
    starts = _leaf_starts(shape)
    return slice(starts[index], starts[index + 1])


@lru_cache(maxsize=64)
def _leaf_starts(shape: TupleShape) -> tuple[int, ...]:
    """Return the number of the first leaf of each element, and of all leaves."""
    counts = (
        element.leaf_count if isinstance(element, TupleShape) else 1 for element in shape.elements
    )
    return tuple(accumulate(counts, initial=0))
