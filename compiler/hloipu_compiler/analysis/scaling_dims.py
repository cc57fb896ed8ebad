"""Which dimensions of a module's values are one: they grow and shrink together.

A batch, say: the leading dimension of the data, of every activation, of what they are summed over.
Dimensions that an op makes equal, or multiples of each other, fall into one class (union-find).
Ops that are not known here join nothing; whoever cuts a class has the verifier say whether that
was all of it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hloipu_compiler.ir.attributes import ConvolutionLabels
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait
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


def arrays_of(shape: Shape) -> Iterator[tuple[int, ArrayShape]]:
    """Yield the arrays of a value with their elements' numbers; those of inner tuples are left."""
    if isinstance(shape, ArrayShape):
        yield WHOLE, shape
    elif isinstance(shape, TupleShape):
        for number, element in enumerate(shape.elements):
            if isinstance(element, ArrayShape):
                yield number, element


class _Classing:
    """Union-find over dimensions; those of size 1 are in none."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.parent: dict[Cell, Cell] = {}
        self.reshapes: list[tuple[Value, Value]] = []

    def cells(self) -> Iterator[Cell]:
        for computation in self.module.computations:
            for position, x in enumerate(computation.instructions):
                for element, shape in arrays_of(x.shape):
                    for dimension, size in enumerate(shape.dimensions):
                        if size > 1:
                            yield Cell(computation.name, position, element, dimension)

    def find(self, cell: Cell) -> Cell:
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
            rule = _RULES.get(x.opcode, _like if x.opcode in _LIKE else None)
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


Rule = Callable[[_Classing, Instruction, list[Value], list[Value]], None]


def _like(work: _Classing, _: Instruction, results: list[Value], operands: list[Value]) -> None:
    """Every operand and result of one rank has the same dimensions."""
    for value in (*results[1:], *operands):
        work.join_equal(value, results[0])


def _broadcast(
    work: _Classing, x: Instruction, results: list[Value], operands: list[Value]
) -> None:
    for i, k in enumerate(x.attributes.integers("dimensions")):
        work.join(operands[0], i, results[0], k)


def _transpose(
    work: _Classing, x: Instruction, results: list[Value], operands: list[Value]
) -> None:
    for k, i in enumerate(x.attributes.integers("dimensions")):
        work.join(operands[0], i, results[0], k)


def _reduce(work: _Classing, x: Instruction, results: list[Value], operands: list[Value]) -> None:
    gone = set(x.attributes.integers("dimensions"))
    arrays = operands[: len(operands) // 2]
    for other in arrays[1:]:
        work.join_equal(other, arrays[0])
    kept = [i for i in range(len(arrays[0].sizes)) if i not in gone]
    for result in results:
        for k, i in enumerate(kept):
            work.join(arrays[0], i, result, k)


def _dot(work: _Classing, x: Instruction, results: list[Value], operands: list[Value]) -> None:
    lhs, rhs = operands[:2]
    names = ("lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims")
    batches, others, left, right = (x.attributes.integers(name) for name in names)
    for i, k in (*zip(batches, others, strict=True), *zip(left, right, strict=True)):
        work.join(lhs, i, rhs, k)
    for number, i in enumerate(batches):
        work.join(lhs, i, results[0], number)
    place = len(batches)
    for side, taken in ((lhs, {*batches, *left}), (rhs, {*others, *right})):
        for i in range(len(side.sizes)):
            if i not in taken:
                work.join(side, i, results[0], place)
                place += 1


def _convolution(
    work: _Classing, x: Instruction, results: list[Value], operands: list[Value]
) -> None:
    labels = x.attributes.get("dim_labels")
    if not isinstance(labels, ConvolutionLabels):
        return
    lhs, rhs = operands[:2]
    work.join(lhs, labels.lhs.index("b"), results[0], labels.out.index("b"))
    work.join(lhs, labels.lhs.index("f"), rhs, labels.rhs.index("i"))
    work.join(rhs, labels.rhs.index("o"), results[0], labels.out.index("f"))


def _window(work: _Classing, x: Instruction, results: list[Value], operands: list[Value]) -> None:
    """Dimensions over which no window goes are the same in all that have their size."""
    sizes = [w.size for w in x.attributes.window().dimensions]
    for value in (*results[1:], *operands):
        if len(value.sizes) == len(sizes) == len(results[0].sizes):
            for i, size in enumerate(sizes):
                if size == 1 and value.sizes[i] == results[0].sizes[i]:
                    work.join(value, i, results[0], i)


def _select_and_scatter(
    work: _Classing, x: Instruction, results: list[Value], operands: list[Value]
) -> None:
    work.join_equal(operands[0], results[0])
    _window(work, x, results, operands[1:2])


def _concatenate(
    work: _Classing, x: Instruction, results: list[Value], operands: list[Value]
) -> None:
    (along,) = x.attributes.integers("dimensions")
    for value in operands:
        for i in range(len(value.sizes)):
            if i != along:
                work.join(value, i, results[0], i)


def _first_like(
    work: _Classing, _: Instruction, results: list[Value], operands: list[Value]
) -> None:
    """Join the operands with the result where their sizes agree."""
    for value in operands:
        work.join_equal(value, results[0])


def _gather(work: _Classing, x: Instruction, results: list[Value], operands: list[Value]) -> None:
    attributes = x.attributes
    offsets = attributes.integers("offset_dims")
    hidden = {*attributes.integers("collapsed_slice_dims")}
    hidden |= {*attributes.integers("operand_batching_dims")}
    kept = [d for d in range(len(operands[0].sizes)) if d not in hidden]
    slices = attributes.integers("slice_sizes")
    for place, d in zip(offsets, kept, strict=False):
        if slices[d] == operands[0].sizes[d]:
            work.join(operands[0], d, results[0], place)
    _join_rows(work, x, results[0], operands[1], set(offsets))
    pairs = zip(
        attributes.integers("operand_batching_dims"),
        attributes.integers("start_indices_batching_dims"),
        strict=False,
    )
    for d, i in pairs:
        work.join(operands[0], d, operands[1], i)


def _join_rows(
    work: _Classing, x: Instruction, value: Value, indices: Value, windows: set[int]
) -> None:
    """Join the dimensions of indices with those of a value that are no windows."""
    vector = x.attributes.integer("index_vector_dim")
    places = [p for p in range(len(value.sizes)) if p not in windows]
    rows = [d for d in range(len(indices.sizes)) if d != vector]
    for place, d in zip(places, rows, strict=False):
        work.join(indices, d, value, place)


def _scatter(work: _Classing, x: Instruction, results: list[Value], operands: list[Value]) -> None:
    count = len(operands) // 2
    indices, updates = operands[count], operands[count + 1 :]
    attributes = x.attributes
    windows = attributes.integers("update_window_dims")
    hidden = {*attributes.integers("inserted_window_dims")}
    hidden |= {*attributes.integers("input_batching_dims")}
    kept = [d for d in range(len(operands[0].sizes)) if d not in hidden]
    for value, result in zip(operands[:count], results, strict=False):
        work.join_equal(value, result)
    for update in updates:
        for place, d in zip(windows, kept, strict=False):
            if update.sizes[place] == operands[0].sizes[d]:
                work.join(update, place, operands[0], d)
        _join_rows(work, x, update, indices, set(windows))


_TUPLES = frozenset({"tuple", "get-tuple-element"})
_CALLING = frozenset({"call", "fusion", "while", "conditional"})
_LIKE = frozenset(
    {name for name, op in OPS.items() if Trait.ELEMENTWISE in op.traits}
    | set(
        "copy reverse sort map bitcast-convert reduce-precision opt-barrier domain select clamp "
        "cholesky topk".split()
    )
)
_RULES: Mapping[str, Rule] = {
    "broadcast": _broadcast,
    "transpose": _transpose,
    "reduce": _reduce,
    "dot": _dot,
    "convolution": _convolution,
    "reduce-window": _window,
    "select-and-scatter": _select_and_scatter,
    "concatenate": _concatenate,
    "gather": _gather,
    "scatter": _scatter,
    **dict.fromkeys(
        "pad slice dynamic-slice dynamic-update-slice batch-norm-training batch-norm-inference "
        "batch-norm-grad triangular-solve".split(),
        _first_like,
    ),
}
