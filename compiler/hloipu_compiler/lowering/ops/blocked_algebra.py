"""Blocked Cholesky decomposition and triangular solve, for matrices too large for one tile.

G. H. Golub and C. F. Van Loan, Matrix Computations: 4.2.9 (block Cholesky), 3.1.3 (block
substitution). Blocks on the diagonal are factored or solved on one tile or few, all else is
products over tiles.
"""

from math import prod

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.lowering.core.views import compute_spread, seen_as
from hloipu_compiler.planners.placing import moved, split
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.codelets.dense.linear_algebra import Cholesky, TriangularSolve
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.generate import Fill, Iota
from hloipu_runtime.codelets.ops.move import Transpose
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.program.mapping import Mapping, Sizes

LARGE = 128
"""From this size on matrices are cut, if there are few of them."""

_LEAST_BLOCK = 32
_MOST_BLOCKS = 32

Range = tuple[int, int]


def is_worth_cutting(builder: Builder, matrices: TileTensor) -> bool:
    """Whether matrices are large, and too few to keep the tiles busy."""
    *batch, n, _ = matrices.shape
    return n >= LARGE and 4 * prod(batch) <= builder.tile_count


def in_wide_type(builder: Builder, x: TileTensor) -> TileTensor:
    """Return narrow floats as f32, and what is not narrow as it is."""
    return x if ELEMENT_TYPES[x.element_type].bits >= 32 else converted(builder, x, "f32")


def converted(builder: Builder, x: TileTensor, element_type: str) -> TileTensor:
    """Return x in another type."""
    if x.element_type == element_type:
        return x
    return _elementwise(builder, (Node("convert", (0,), element_type),), x)


def block_ranges(n: int) -> list[Range]:
    """Return the ranges of rows of the blocks of an n by n matrix."""
    block = max(_LEAST_BLOCK, -(-n // _MOST_BLOCKS))
    return [(start, min(start + block, n)) for start in range(0, n, block)]


def blocked_cholesky(builder: Builder, a: TileTensor, *, lower: bool) -> TileTensor:
    """Return the factor; all of it is NaN where a matrix is not positive definite."""
    if not lower:
        factor = blocked_cholesky(builder, _adjoint(builder, a), lower=True)
        return _adjoint(builder, factor)
    kind, n = a.element_type, a.shape[-1]
    below = TriangularSolve(False, True, False, "ADJOINT", kind)
    factor = _filled(builder, a)
    for start, stop in block_ranges(n):
        panel = _cut(builder, a, (start, n), (start, stop))
        if start:
            left = _cut(builder, factor, (start, n), (0, start))
            top = _conjugate(builder, _cut(builder, factor, (start, stop), (0, start)))
            panel = _less(builder, panel, _product(builder, left, top, -1, -1))
        square = _cut(builder, panel, (0, stop - start), (0, stop - start))
        result = (kind, square.shape)
        (corner,) = compute_spread(builder, Cholesky(True, kind), [square], [result])
        factor = _put(builder, corner, factor, start, start)
        if stop < n:
            rest = _cut(builder, panel, (stop - start, n - start), (0, stop - start))
            (rows,) = compute_spread(builder, below, [corner, rest], [(kind, rest.shape)])
            factor = _put(builder, rows, factor, stop, start)
    return _failed_as_a_whole(builder, factor)


def blocked_solve(
    builder: Builder, codelet: TriangularSolve, a: TileTensor, b: TileTensor
) -> TileTensor:
    """Return x of op(a) x = b, or of x op(a) = b, as the codelet says."""
    n, rows_of_b = a.shape[-1], (0, b.shape[-2])
    columns_of_b = (0, b.shape[-1])
    flipped = codelet.transpose_a != "NO_TRANSPOSE"
    left = codelet.left_side
    # The first block that can be solved: the first of a lower triangle, from the left.
    forward = (codelet.lower != flipped) == left
    ranges = block_ranges(n)
    tensor = _filled(builder, b)
    for here in ranges if forward else reversed(ranges):
        part = _cut(builder, b, *((here, columns_of_b) if left else (rows_of_b, here)))
        done = (0, here[0]) if forward else (here[1], n)
        if done[0] < done[1]:
            known = _cut(builder, tensor, *((done, columns_of_b) if left else (rows_of_b, done)))
            # Of op(a): rows `here`, columns `done`, or the other way round from the right.
            across = left != flipped
            matrix = _cut(builder, a, *((here, done) if across else (done, here)))
            if codelet.transpose_a == "ADJOINT":
                matrix = _conjugate(builder, matrix)
            depth = -1 if across else -2
            sides = (matrix, known, depth, -2) if left else (known, matrix, -1, depth)
            part = _less(builder, part, _product(builder, *sides))
        corner = _cut(builder, a, here, here)
        (solved,) = compute_spread(builder, codelet, [corner, part], [(b.element_type, part.shape)])
        tensor = _put(builder, solved, tensor, here[0] if left else 0, 0 if left else here[0])
    return tensor


def _cut(builder: Builder, x: TileTensor, rows: Range, columns: Range) -> TileTensor:
    shape = (*x.shape[:-2], rows[1] - rows[0], columns[1] - columns[0])
    if shape == x.shape:
        return x
    shift = (*(0,) * (len(shape) - 2), rows[0], columns[0])
    box = tuple((0, n) for n in shape)
    return builder.assembled(
        x.element_type, shape, [(x, x.shape, box, shift)], mapping=_by_rows(builder, shape)
    )


def _by_rows(builder: Builder, shape: Sizes) -> Mapping:
    """Return a mapping with whole rows on tiles: shorter pieces would take more exchange code."""
    ones = (1,) * len(shape)
    placement = split(shape, (*ones[:-1], 0), ones, builder.tile_count)
    first = builder.first_tile(placement.tiles.count)
    return moved(placement, first, builder.tile_count).mapping(shape)


def _put(
    builder: Builder, block: TileTensor, base: TileTensor, row: int, column: int
) -> TileTensor:
    corner = (*(0,) * (len(base.shape) - 2), row, column)
    box = tuple((at, at + n) for at, n in zip(corner, block.shape, strict=True))
    shift = tuple(-at for at in corner)
    return builder.assembled(
        base.element_type, base.shape, [(block, block.shape, box, shift)], base
    )


def _product(
    builder: Builder, lhs: TileTensor, rhs: TileTensor, lhs_depth: int, rhs_depth: int
) -> TileTensor:
    """Return products of matrices, contracting one dimension of each, -1 or -2."""
    rank = len(lhs.shape)
    batch = tuple(range(rank - 2))
    codelet = Dot(batch, batch, (rank + lhs_depth,), (rank + rhs_depth,), lhs.element_type)
    rows, columns = lhs.shape[-3 - lhs_depth], rhs.shape[-3 - rhs_depth]
    shape = (*lhs.shape[:-2], rows, columns)
    return builder.compute(codelet, [lhs, rhs], [(lhs.element_type, shape)])[0]


def _elementwise(builder: Builder, nodes: tuple[Node, ...], *operands: TileTensor) -> TileTensor:
    """Compute nodes on operands of one shape."""
    kinds = tuple(tensor.element_type for tensor in operands)
    shape = operands[0].shape
    expression = Expression(kinds, nodes, (len(operands) + len(nodes) - 1,))
    labels = (tuple(range(len(shape))),) * len(operands)
    codelet = Elementwise(expression, labels, len(shape))
    return builder.compute(codelet, operands, [(nodes[-1].element_type, shape)])[0]


def _less(builder: Builder, x: TileTensor, y: TileTensor) -> TileTensor:
    return _elementwise(builder, (Node("subtract", (0, 1), x.element_type),), x, y)


def _conjugate(builder: Builder, x: TileTensor) -> TileTensor:
    if not ELEMENT_TYPES[x.element_type].is_complex:
        return x
    real = "f64" if x.element_type == "c128" else "f32"
    nodes = (
        Node("real", (0,), real),
        Node("imag", (0,), real),
        Node("negate", (2,), real),
        Node("complex", (1, 3), x.element_type),
    )
    return _elementwise(builder, nodes, x)


def _adjoint(builder: Builder, x: TileTensor) -> TileTensor:
    rank = len(x.shape)
    order = (*range(rank - 2), rank - 1, rank - 2)
    shape = tuple(x.shape[d] for d in order)
    turned = builder.compute(Transpose(order), [x], [(x.element_type, shape)])[0]
    return _conjugate(builder, turned)


def _filled(builder: Builder, like: TileTensor) -> TileTensor:
    is_complex = ELEMENT_TYPES[like.element_type].is_complex
    zero = (0.0).hex()
    zeros = Fill(f"{zero},{zero}" if is_complex else zero, like.element_type)
    return builder.compute(zeros, [], [(like.element_type, like.shape)])[0]


def _failed_as_a_whole(builder: Builder, factor: TileTensor) -> TileTensor:
    """Return the factor, or NaN in all its elements where the last one is NaN."""
    rank, kind = len(factor.shape), factor.element_type
    corner = _last(builder, factor)
    test = Node("compare", (1, 1), "pred", (("direction", "NE"),))
    expression = Expression((kind, kind), (test, Node("select", (2, 1, 0), kind)), (3,))
    codelet = Elementwise(expression, (tuple(range(rank)), tuple(range(rank - 2))), rank)
    return builder.compute(codelet, [factor, corner], [(kind, factor.shape)])[0]


def _last(builder: Builder, x: TileTensor) -> TileTensor:
    n = x.shape[-1]
    return seen_as(builder, [_cut(builder, x, (n - 1, n), (n - 1, n))], x.shape[:-2])[0]


def has_failed(builder: Builder, factor: TileTensor) -> TileTensor:
    """Return s32 1 for each matrix that was not positive definite, else 0."""
    test = Node("compare", (0, 0), "pred", (("direction", "NE"),))
    return _elementwise(builder, (test, Node("convert", (1,), "s32")), _last(builder, factor))


def triangle_of(
    builder: Builder, inside: TileTensor, outside: TileTensor, *, lower: bool
) -> TileTensor:
    """Return matrices of which one triangle, with the diagonal, is `inside`, the rest `outside`."""
    rank, shape = len(inside.shape), inside.shape
    (rows,) = builder.compute(Iota(rank - 2, "s32"), [], [("s32", shape)])
    (columns,) = builder.compute(Iota(rank - 1, "s32"), [], [("s32", shape)])
    direction = "GE" if lower else "LE"
    nodes = (
        Node("compare", (2, 3), "pred", (("direction", direction),)),
        Node("select", (4, 0, 1), inside.element_type),
    )
    return _elementwise(builder, nodes, inside, outside, rows, columns)
