"""Instructions as nodes of a graph: each opcode of a block, with the shape of its result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

Sizes = tuple[int, ...]
Settings = Mapping[str, Sizes]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One instruction; equal only to itself."""

    opcode: str
    operands: tuple["Node", ...]
    type: str
    sizes: Sizes
    settings: Settings = field(default_factory=dict)
    """Lists of integers among its attributes: for gradients, and for the text."""
    said: str = ""
    """Further attributes, as they are printed; a constant's literal."""
    called: tuple[tuple[str, "Region"], ...] = ()
    """Computations by the attribute that names each."""
    parts: tuple[tuple[str, Sizes], ...] = ()
    """Types and sizes of a tuple's arrays; the type and the sizes above are those of none then."""
    below: int = 0
    """Of an integer parameter: its values are below this."""

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A computation."""

    parameters: tuple[Node, ...]
    root: Node


def parameter(type_: str, sizes: Sequence[int], below: int = 0) -> Node:
    """Return a parameter; which one it is follows from its computation."""
    return Node("parameter", (), type_, tuple(sizes), below=below)


def tuple_parameter(parts: Sequence[tuple[str, Sizes]]) -> Node:
    """Return a parameter that is a tuple."""
    return Node("parameter", (), "", (), parts=tuple(parts))


def constant(type_: str, value: float | int) -> Node:
    """Return a scalar."""
    is_float = type_[0] in "fb"
    said = "-inf" if value == float("-inf") else f"{value:g}" if is_float else str(int(value))
    return Node("constant", (), type_, (), said=said)


def full(type_: str, sizes: Sequence[int], value: float | int) -> Node:
    """Return an array of one number."""
    return broadcast(constant(type_, value), sizes, ())


def iota(type_: str, sizes: Sequence[int], dimension: int) -> Node:
    """Return an array that counts along one dimension."""
    return Node("iota", (), type_, tuple(sizes), said=f"iota_dimension={dimension}")


def elementwise(opcode: str, *operands: Node) -> Node:
    """Return an elementwise op's result; a `select` has its type from its second operand."""
    shape = operands[-1]
    return Node(opcode, operands, shape.type, shape.sizes)


def compare(direction: str, x: Node, y: Node) -> Node:
    """Return where one array's elements compare to another's as said."""
    return Node("compare", (x, y), "pred", x.sizes, said=f"direction={direction}")


def converted(x: Node, type_: str) -> Node:
    """Return an array in another type; itself where it has that type."""
    return x if x.type == type_ else Node("convert", (x,), type_, x.sizes)


def broadcast(x: Node, sizes: Sequence[int], dimensions: Sequence[int]) -> Node:
    """Return an array repeated along all dimensions but those named."""
    return Node("broadcast", (x,), x.type, tuple(sizes), {"dimensions": tuple(dimensions)})


def reshape(x: Node, sizes: Sequence[int]) -> Node:
    """Return an array in another shape; itself where it has that."""
    assert prod(sizes) == prod(x.sizes), (x.sizes, sizes)
    return x if tuple(sizes) == x.sizes else Node("reshape", (x,), x.type, tuple(sizes))


def transpose(x: Node, permutation: Sequence[int]) -> Node:
    """Return an array with its dimensions in another order; itself where they stay."""
    if tuple(permutation) == tuple(range(x.rank)):
        return x
    sizes = tuple(x.sizes[i] for i in permutation)
    return Node("transpose", (x,), x.type, sizes, {"dimensions": tuple(permutation)})


def reverse(x: Node, dimensions: Sequence[int]) -> Node:
    """Return an array turned round along dimensions."""
    return Node("reverse", (x,), x.type, x.sizes, {"dimensions": tuple(dimensions)})


def slice_(x: Node, starts: Sequence[int], stops: Sequence[int], strides: Sequence[int]) -> Node:
    """Return a part of an array."""
    bounds = list(zip(starts, stops, strides, strict=True))
    sizes = tuple(-((a - b) // c) for a, b, c in bounds)
    said = "slice={" + ", ".join(f"[{a}:{b}:{c}]" for a, b, c in bounds) + "}"
    settings = {"starts": tuple(starts), "stops": tuple(stops), "strides": tuple(strides)}
    return Node("slice", (x,), x.type, sizes, settings, said)


def part(x: Node, dimension: int, start: int, stop: int) -> Node:
    """Return an array cut along one dimension."""
    starts = [0] * x.rank
    stops = list(x.sizes)
    starts[dimension], stops[dimension] = start, stop
    return slice_(x, starts, stops, [1] * x.rank)


def concatenate(operands: Sequence[Node], dimension: int) -> Node:
    """Return arrays one after the other along a dimension."""
    sizes = list(operands[0].sizes)
    sizes[dimension] = sum(x.sizes[dimension] for x in operands)
    settings = {"dimensions": (dimension,)}
    return Node("concatenate", tuple(operands), operands[0].type, tuple(sizes), settings)


def pad(x: Node, low: Sequence[int], high: Sequence[int], inner: Sequence[int]) -> Node:
    """Return an array with zeros around it and between its elements."""
    edges = list(zip(low, high, inner, strict=True))
    sizes = tuple(
        a + b + n + max(0, n - 1) * c for n, (a, b, c) in zip(x.sizes, edges, strict=True)
    )
    said = "padding=" + "x".join(f"{a}_{b}_{c}" for a, b, c in edges)
    settings = {"low": tuple(low), "high": tuple(high), "inner": tuple(inner)}
    return Node("pad", (x, constant(x.type, 0)), x.type, sizes, settings, said)


def reduce(x: Node, dimensions: Sequence[int], opcode: str = "add") -> Node:
    """Return sums, or the largest elements, along dimensions."""
    start = constant(x.type, 0 if opcode == "add" else float("-inf"))
    sizes = tuple(n for i, n in enumerate(x.sizes) if i not in dimensions)
    settings = {"dimensions": tuple(dimensions)}
    called = (("to_apply", scalar_region(opcode, x.type)),)
    return Node("reduce", (x, start), x.type, sizes, settings, called=called)


def scalar_region(opcode: str, type_: str) -> Region:
    """Return the computation of one op on two scalars."""
    x, y = parameter(type_, ()), parameter(type_, ())
    if opcode in ("GE", "GT"):
        return Region((x, y), compare(opcode, x, y))
    return Region((x, y), elementwise(opcode, x, y))


@dataclass(frozen=True, slots=True)
class Contraction:
    """Which dimensions of two operands a product goes through together."""

    lhs_batch: Sizes
    rhs_batch: Sizes
    lhs: Sizes
    rhs: Sizes

    def settings(self) -> Settings:
        """Return the attributes of a dot."""
        named = {
            "lhs_batch_dims": self.lhs_batch,
            "rhs_batch_dims": self.rhs_batch,
            "lhs_contracting_dims": self.lhs,
            "rhs_contracting_dims": self.rhs,
        }
        return {k: v for k, v in named.items() if v or "contracting" in k}


def free_dimensions(x: Node, batch: Sequence[int], contracted: Sequence[int]) -> Sizes:
    """Return the dimensions of an operand that only it has."""
    return tuple(i for i in range(x.rank) if i not in batch and i not in contracted)


def dot(x: Node, y: Node, how: Contraction, type_: str = "") -> Node:
    """Return a product: batch dimensions first, then those of each operand alone."""
    sizes = (
        *(x.sizes[i] for i in how.lhs_batch),
        *(x.sizes[i] for i in free_dimensions(x, how.lhs_batch, how.lhs)),
        *(y.sizes[i] for i in free_dimensions(y, how.rhs_batch, how.rhs)),
    )
    return Node("dot", (x, y), type_ or x.type, sizes, how.settings())


def product(x: Node, of_x: str, y: Node, of_y: str, wanted: str, type_: str = "") -> Node:
    """Return a product whose dimensions go by letters, its result in the order that is wanted."""
    batch = [a for a in of_x if a in of_y and a in wanted]
    summed = [a for a in of_x if a in of_y and a not in wanted]
    how = Contraction(
        tuple(map(of_x.index, batch)),
        tuple(map(of_y.index, batch)),
        tuple(map(of_x.index, summed)),
        tuple(map(of_y.index, summed)),
    )
    unordered = dot(x, y, how, type_)
    own = [a for a in of_x if a not in of_y] + [a for a in of_y if a not in of_x]
    order = batch + own
    return transpose(unordered, [order.index(a) for a in wanted])


def gather_rows(table: Node, ids: Node) -> Node:
    """Return rows of a table of two dimensions by their numbers."""
    width = table.sizes[1]
    said = (
        f"offset_dims={{{ids.rank}}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, "
        f"index_vector_dim={ids.rank}, slice_sizes={{1,{width}}}"
    )
    return Node("gather", (table, ids), table.type, (*ids.sizes, width), said=said)


def scatter_rows(table: Node, ids: Node, rows: Node) -> Node:
    """Return a table with rows added by their numbers."""
    said = (
        f"update_window_dims={{{ids.rank}}}, inserted_window_dims={{0}}, "
        f"scatter_dims_to_operand_dims={{0}}, index_vector_dim={ids.rank}"
    )
    called = (("to_apply", scalar_region("add", table.type)),)
    operands = (table, ids, rows)
    return Node("scatter", operands, table.type, table.sizes, said=said, called=called)


def dynamic_slice(x: Node, starts: Sequence[Node], sizes: Sequence[int]) -> Node:
    """Return a part of an array that begins where numbers say."""
    settings = {"dynamic_slice_sizes": tuple(sizes)}
    return Node("dynamic-slice", (x, *starts), x.type, tuple(sizes), settings)


def dynamic_update(x: Node, update: Node, starts: Sequence[Node]) -> Node:
    """Return an array with a part replaced that begins where numbers say."""
    return Node("dynamic-update-slice", (x, update, *starts), x.type, x.sizes)


def at_index(x: Node, index: Node, axis: int = 0) -> Node:
    """Return one array of a stack, which is stacked along an axis."""
    starts = [index if d == axis else constant("s32", 0) for d in range(x.rank)]
    row = dynamic_slice(x, starts, (*x.sizes[:axis], 1, *x.sizes[axis + 1 :]))
    return reshape(row, x.sizes[:axis] + x.sizes[axis + 1 :])


def with_index(x: Node, index: Node, update: Node, axis: int = 0) -> Node:
    """Return a stack with one of its arrays replaced."""
    starts = [index if d == axis else constant("s32", 0) for d in range(x.rank)]
    one = reshape(update, (*x.sizes[:axis], 1, *x.sizes[axis + 1 :]))
    return dynamic_update(x, one, starts)


def stacked_sizes(sizes: Sequence[int], count: int, axis: int) -> Sizes:
    """Return the sizes of a stack of arrays along an axis."""
    return (*sizes[:axis], count, *sizes[axis:])


def element(x: Node, index: int) -> Node:
    """Return an array of a tuple."""
    type_, sizes = x.parts[index]
    return Node("get-tuple-element", (x,), type_, sizes, said=f"index={index}")


def tuple_of(arrays: Sequence[Node]) -> Node:
    """Return a tuple."""
    parts = tuple((x.type, x.sizes) for x in arrays)
    return Node("tuple", tuple(arrays), "", (), parts=parts)


def sorted_pair(x: Node, y: Node, dimension: int) -> tuple[Node, Node]:
    """Return an array in falling order along a dimension, and another one in the same order."""
    a, b = parameter(x.type, ()), parameter(x.type, ())
    c, d = parameter(y.type, ()), parameter(y.type, ())
    region = Region((a, b, c, d), compare("GT", a, b))
    parts = ((x.type, x.sizes), (y.type, y.sizes))
    settings = {"dimensions": (dimension,)}
    called = (("to_apply", region),)
    pair = Node("sort", (x, y), "", (), settings, "is_stable=true", called, parts)
    return element(pair, 0), element(pair, 1)


def top_k(x: Node, k: int) -> tuple[Node, Node]:
    """Return the largest elements along the last dimension, and their numbers."""
    sizes = (*x.sizes[:-1], k)
    parts = ((x.type, sizes), ("s32", sizes))
    pair = Node("topk", (x,), "", (), said=f"k={k}, largest=true", parts=parts)
    return element(pair, 0), element(pair, 1)
