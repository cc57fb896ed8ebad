"""Dot: contraction of two operands, whole, cut into pieces of depth, or added to sums."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.grids import pair, piece_runs, split
from hloipu_runtime.codelets.core.straight import Straight, one_call
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, Bound, Sizes, Tensors
from hloipu_runtime.codelets.costs.amp import Product, product_table_bytes, product_work
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.kernels.contractions.contraction import (
    DotDimensions,
    Matrices,
    arrangement,
    free_dims,
    seen_as_matrices,
)
from hloipu_runtime.kernels.contractions.dot import (
    dot_general,
    dotting,
    is_matrix_product,
    round_result,
)
from hloipu_runtime.kernels.contractions.matmul import for_blas, multiplying
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.core.rounding import is_narrow
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine

if TYPE_CHECKING:
    from hloipu_runtime.codelets.core.call_writer import CallWriter
from hloipu_runtime.element_types import ELEMENT_TYPES

MOST_ELEMENTS = 1 << 18
"""Of an operand or a product that is prepared as calls: larger ones take a hundred times as long to
multiply as to begin with (assumed)."""


@codelet
class Dot(Codelet):
    """Contracts two operands; the result has batch dims, free dims of lhs, free dims of rhs.

    With `part` the first contracted dimension is cut into pieces of that many elements, and the
    result has a leading dimension that counts the pieces: sums of each alone.
    """

    name: ClassVar[str] = "dot"
    is_compiled: ClassVar[bool] = True
    prepares_large: ClassVar[bool] = True
    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    element_type: str
    """Of the result."""
    part: int = 0

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return labels of the result's dimensions in order; pieces are a label too."""
        lhs, rhs = operands
        pieces = 1 if self.part else 0
        lhs_free = free_dims(len(lhs.shape), self.lhs_batch, self.lhs_contracting)
        rhs_free = free_dims(len(rhs.shape), self.rhs_batch, self.rhs_contracting)
        left = [ALL] * len(lhs.shape)
        right = [ALL] * len(rhs.shape)
        for position, (a, b) in enumerate(zip(self.lhs_batch, self.rhs_batch, strict=True)):
            left[a] = right[b] = Index(pieces + position)
        first = pieces + len(self.lhs_batch)
        for position, d in enumerate(lhs_free):
            left[d] = Index(first + position)
        for position, d in enumerate(rhs_free):
            right[d] = Index(first + len(lhs_free) + position)
        if self.part:
            left[self.lhs_contracting[0]] = Index(0, self.part, 0, self.part)
            right[self.rhs_contracting[0]] = Index(0, self.part, 0, self.part)
        shape = results[0].shape
        labels = tuple(Index(label) for label in range(len(shape)))
        return Indexing(shape, (tuple(left), tuple(right)), (labels,))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Contract; grid axes along which only one operand varies become free dims of it."""
        lhs, rhs = operands
        if not results[0].grid and not self.part:
            return [dot_general(lhs.data, rhs.data, self._dimensions, self.element_type)]
        return list(self._on_grid(lhs, rhs, results[0])([lhs.data, rhs.data], [None]))

    def bound(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run`, what layouts decide decided once where blocks have arrays."""
        (result,) = results
        lhs, rhs = operands
        if not result.grid and not self.part:
            function = dotting(lhs.part, rhs.part, self._dimensions, self.element_type)
        elif lhs.array is None or rhs.array is None:
            return super().bound(operands, results)
        else:
            return self._on_grid(lhs, rhs, result)

        shape = (*result.grid, *result.part)

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> list[Array]:
            with quietly():
                computed = function(arrays[0], arrays[1])
            if outs[0] is None and computed.shape != shape:
                computed = np.broadcast_to(computed, shape)
            return [computed]

        return run

    def _on_grid(self, lhs: Block, rhs: Block, result: Block) -> Bound:
        """Return the product of arrays that lie as those of the blocks do, to be broadcast."""
        varies = pair(lhs, rhs).varies
        left, right = (
            tuple(slice(None) if both[side] else 0 for both in varies) for side in (0, 1)
        )
        a, b = lhs.data[left], rhs.data[right]
        folded = folded_dot(self, varies, len(lhs.part), len(rhs.part))
        multiply = self._multiply(a, b, folded.dimensions)
        places: tuple[Any, ...] = tuple(slice(None) if any(both) else None for both in varies)
        order = None if folded.order == tuple(sorted(folded.order)) else folded.order
        back = [folded.order.index(d) for d in range(len(folded.order))]
        repeats = not all(any(both) for both in varies)
        dtype = storage_dtype(self.element_type)
        shape = (*result.grid, *result.part)

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> list[Array]:
            out = outs[0]
            target = None
            if out is not None and not repeats and out.dtype is dtype:
                target = out if order is None else out.transpose(back)
            with quietly():
                computed = multiply(arrays[0][left], arrays[1][right], target)
            if out is not None and computed is target:
                return [out]
            if order is not None:
                computed = computed.transpose(order)
            if repeats:
                computed = computed[places]
            if out is None and computed.shape != shape:
                computed = np.broadcast_to(computed, shape)
            return [computed]

        return run

    def straight_on_grid(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return the product of floats as calls, operands put in order as BLAS takes them."""
        from hloipu_runtime.codelets.core.call_writer import CallWriter

        (lhs, rhs), (result,) = operands, results
        dtype = storage_dtype(self.element_type)
        if not (dtype.kind == "f" and lhs.data.dtype == rhs.data.dtype == dtype):
            return None
        varies = pair(lhs, rhs).varies
        folded = folded_dot(self, varies, len(lhs.part), len(rhs.part))
        dims = folded.dimensions
        left = self._taking(lhs, [has for has, _ in varies], dims.lhs_contracting)
        right = self._taking(rhs, [has for _, has in varies], dims.rhs_contracting)
        if left is None or right is None:
            return None
        taken = left(lhs.data), right(rhs.data)
        if not all(0 < x.size <= MOST_ELEMENTS for x in (*taken, result.data)):
            return None
        how = arrangement(*taken, cut_dimensions(dims) if self.part else dims)
        writer = CallWriter([lhs.data.shape, rhs.data.shape])
        a = _written_matrices(writer, 0, left, how.left, lhs.data)
        b = _written_matrices(writer, 1, right, how.right, rhs.data)
        shape = (*writer.shapes[a][:-1], writer.shapes[b][-1])
        multiply = multiplying(writer.shapes[a], writer.shapes[b])
        number = writer.computed(multiply, (a, b), shape, dtype)
        if is_narrow(self.element_type):
            rounded = partial(round_result, element_type=self.element_type, storage=dtype)
            number = writer.computed(rounded, (number,), writer.shapes[number])
        places: tuple[Any, ...] = tuple(slice(None) if any(both) else None for both in varies)
        order = how.order or tuple(range(len(how.shape)))
        whole = (*result.grid, *result.part)

        def in_order(product: Array) -> Array:
            seen = product.reshape(how.shape).transpose(order).transpose(folded.order)[places]
            return np.broadcast_to(seen, whole)

        def out_of_order(place: Array) -> Array | None:
            """Return where the product goes that lies in its place on the tiles."""
            if place.dtype != dtype or not all(any(both) for both in varies):
                return None
            seen = place.transpose([folded.order.index(d) for d in range(place.ndim)])
            return seen_as_matrices(seen, how.order, shape)

        return writer.straight([writer.view(in_order, number, whole, out_of_order)])

    def _taking(
        self, block: Block, has: Sequence[bool], contracting: tuple[int, ...]
    ) -> Callable[[Array], Array] | None:
        """Return what takes an operand without shared grid axes, split into equal pieces.

        None where the last piece is shorter.
        """
        taken = tuple(slice(None) if x else 0 for x in has)
        if not self.part:
            return itemgetter(taken)
        d = contracting[0]
        runs = piece_runs(block.data[taken].shape[d], self.part)
        return None if len(runs) > 1 else lambda x: split(x[taken], d, *runs[0])

    def _multiply(
        self, a: Array, b: Array, dimensions: DotDimensions
    ) -> Callable[[Array, Array, Array | None], Array]:
        """Return the product of arrays of these shapes, or of each of their pieces."""
        if not self.part:
            if is_matrix_product(a.shape, b.shape, dimensions, self.element_type):
                whole = dotting(a.shape, b.shape, dimensions, self.element_type)
                return lambda a, b, out: whole(a, b)
            return dotting(a.shape, b.shape, dimensions, self.element_type)
        left, right = dimensions.lhs_contracting[0], dimensions.rhs_contracting[0]
        cut = cut_dimensions(dimensions)
        pieces = []
        for run in piece_runs(a.shape[left], self.part):
            x, y = split(a, left, *run).shape, split(b, right, *run).shape
            taken = slice(run[0], run[1])
            first = (*(slice(None),) * left, taken)
            second = (*(slice(None),) * right, taken)
            pieces.append((first, x, second, y, dotting(x, y, cut, self.element_type)))

        if len(pieces) == 1:
            first, x, second, y, function = pieces[0]
            return lambda a, b, out: function(a[first].reshape(x), b[second].reshape(y), out)

        def multiply(a: Array, b: Array, out: Array | None) -> Array:
            products = [
                function(a[first].reshape(x), b[second].reshape(y))
                for first, x, second, y, function in pieces
            ]
            return np.concatenate(products)

        return multiply

    def ignores(self, unused: Sequence[Sequence[bool]]) -> bool:
        """Let rows and columns be computed that nobody reads, but add no such terms."""
        return not any(
            unused[side][d]
            for side, contracting in enumerate((self.lhs_contracting, self.rhs_contracting))
            for d in contracting
        )

    def straight(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return the product as one call, of two matrices with little around it."""
        if self.part:
            return None
        lhs, rhs = operands[0].part, operands[1].part
        function = dotting(lhs, rhs, self._dimensions, self.element_type)
        into = is_matrix_product(lhs, rhs, self._dimensions, self.element_type)
        dtype = storage_dtype(self.element_type) if into else None
        return one_call(function, 2, results[0].part, dtype, is_fresh=True)

    def transposed(
        self, permutation: Sequence[int], ranks: Sequence[int]
    ) -> tuple[Codelet, tuple[int, ...]] | None:
        """Return the product of the operands the other way round, whose free dims come in turn."""
        batch = len(self.lhs_batch)
        left = ranks[0] - batch - len(self.lhs_contracting)
        rank = left + ranks[1] - len(self.rhs_contracting)
        turned = (*range(batch), *range(batch + left, rank), *range(batch, batch + left))
        if self.part or tuple(permutation) != turned:
            return None
        both = replace(
            self,
            lhs_batch=self.rhs_batch,
            rhs_batch=self.lhs_batch,
            lhs_contracting=self.rhs_contracting,
            rhs_contracting=self.lhs_contracting,
        )
        return both, (1, 0)

    def combined_with(
        self, combine: Codelet, others: Sequence[Array | None]
    ) -> tuple[Codelet, int] | None:
        """Return the product over the whole depth, where pieces are added to a zero."""
        if not self.part or not isinstance(combine, Reduce) or len(others) != 1:
            return None
        if combine.monoid != "add" or combine.dimensions != (0,) or combine.parts:
            return None
        if others[0] is None or np.any(others[0]):
            return None
        if self.element_type == "f16":
            return None  # each piece is rounded; of wider sums only the order differs
        return replace(self, part=0, element_type=combine.element_types[0]), 0

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of one product for each piece and batch element."""
        # Pieces of f16 are partial sums as the unit keeps them; a whole product is rounded to it.
        half = bool(self.part) and self.element_type == "f16"
        types = (operands[0].element_type, operands[1].element_type)
        size = self._product(operands, results)
        return product_work(machine, size, types, results[0].element_type, half_partials=half)

    @property
    def code_kind(self) -> str:
        """That of products by the AMP unit."""
        return "product"

    def table_bytes(self, machine: Machine, operands: Tensors, results: Tensors) -> int:
        """Return the bytes of the tables of a product by the AMP unit."""
        types = (operands[0].element_type, operands[1].element_type)
        return product_table_bytes(machine, self._product(operands, results), types)

    def _product(self, operands: Tensors, results: Tensors) -> Product:
        lhs, rhs = operands
        depth = prod(lhs.shape[d] for d in self.lhs_contracting)
        pieces = results[0].shape[0] if self.part else 1
        if self.part and depth:
            first = lhs.shape[self.lhs_contracting[0]]
            depth = depth // first * min(first, self.part)
        return Product(
            pieces * prod(lhs.shape[d] for d in self.lhs_batch),
            free_size(lhs.shape, self.lhs_batch, self.lhs_contracting),
            depth,
            free_size(rhs.shape, self.rhs_batch, self.rhs_contracting),
        )

    @cached_property
    def _dimensions(self) -> DotDimensions:
        return DotDimensions(
            self.lhs_batch, self.rhs_batch, self.lhs_contracting, self.rhs_contracting
        )


def _written_matrices(
    writer: "CallWriter", operand: int, take: Callable[[Array], Array], form: Matrices, array: Array
) -> int:
    """Write an operand as matrices that BLAS takes; `array` is it, or lies as it does."""
    matrices = form.of(take(array))
    if np.may_share_memory(matrices, array):
        number = writer.view(lambda x: form.of(take(x)), operand, matrices.shape)
        return number if for_blas(matrices) is matrices else writer.row_major(number)
    moved = take(array).transpose(form.order)
    number = writer.view(lambda x: take(x).transpose(form.order), operand, moved.shape)
    number = writer.reshaped(writer.row_major(number), form.shape)
    if not form.is_turned:
        return number
    return writer.view(lambda x: x.swapaxes(-1, -2), number, matrices.shape)


class Folded(NamedTuple):
    """A dot on a grid as one dot, and how its result's dimensions go back in order."""

    dimensions: DotDimensions
    order: tuple[int, ...]


@lru_cache(maxsize=1024)
def folded_dot(
    dot: Dot, varies: tuple[tuple[bool, bool], ...], lhs_rank: int, rhs_rank: int
) -> Folded:
    """Make grid axes that both operands vary along batch dims, the others free dims."""
    lhs_axes = [axis for axis, (left, _) in enumerate(varies) if left]
    rhs_axes = [axis for axis, (_, right) in enumerate(varies) if right]
    both = [axis for axis in lhs_axes if axis in rhs_axes]
    a, b = len(lhs_axes), len(rhs_axes)
    dimensions = DotDimensions(
        (*map(lhs_axes.index, both), *(a + d for d in dot.lhs_batch)),
        (*map(rhs_axes.index, both), *(b + d for d in dot.rhs_batch)),
        tuple(a + d for d in dot.lhs_contracting),
        tuple(b + d for d in dot.rhs_contracting),
    )
    pieces = 1 if dot.part else 0
    batch = len(dot.lhs_batch)
    lhs_only = [axis for axis in lhs_axes if axis not in both]
    rhs_only = [axis for axis in rhs_axes if axis not in both]
    lhs_free = lhs_rank - batch - len(dot.lhs_contracting)
    rhs_free = rhs_rank - batch - len(dot.rhs_contracting)
    # The product: pieces, axes of both, batch dims, lhs's axes and free dims, rhs's.
    first_batch = pieces + len(both)
    first_left = first_batch + batch
    first_right = first_left + len(lhs_only) + lhs_free
    place = {axis: pieces + i for i, axis in enumerate(both)}
    place |= {axis: first_left + i for i, axis in enumerate(lhs_only)}
    place |= {axis: first_right + i for i, axis in enumerate(rhs_only)}
    order = [place[axis] for axis in sorted(place)]
    order += range(pieces)
    order += range(first_batch, first_batch + batch)
    order += range(first_left + len(lhs_only), first_right)
    order += range(first_right + len(rhs_only), first_right + len(rhs_only) + rhs_free)
    return Folded(dimensions, tuple(order))


@lru_cache(maxsize=1024)
def cut_dimensions(dims: DotDimensions) -> DotDimensions:
    """Return the dims after the first contracted one was split into (pieces, size)."""
    left, right = dims.lhs_contracting[0], dims.rhs_contracting[0]
    return DotDimensions(
        (left, *(d + (d > left) for d in dims.lhs_batch)),
        (right, *(d + (d > right) for d in dims.rhs_batch)),
        tuple(d + (d >= left) for d in dims.lhs_contracting),
        tuple(d + (d >= right) for d in dims.rhs_contracting),
    )


def free_size(shape: Sizes, batch: tuple[int, ...], contracting: tuple[int, ...]) -> int:
    """Return the number of rows or columns of an operand."""
    return prod(shape[d] for d in free_dims(len(shape), batch, contracting))


@codelet
class AddedDot(Codelet):
    """Contracts lhs and rhs and adds that to the third operand; floats are rounded once.

    The depth of a large product may so come to the tiles slice by slice.
    """

    name: ClassVar[str] = "added_dot"
    dot: Dot

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return the indexing of the product; sums follow its results."""
        product = self.dot.indexing(operands[:2], results)
        return product._replace(operands=(*product.operands, product.results[0]))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Contract in f32 where the sums are narrower, and add."""
        kind = self.dot.element_type
        is_narrow = ELEMENT_TYPES[kind].is_float and ELEMENT_TYPES[kind].bits < 32
        wide = replace(self.dot, element_type="f32") if is_narrow else self.dot
        places = [block._replace(array=None) for block in results]
        (product,) = wide.run(operands[:2], places)
        with quietly():
            total = product + operands[2].data
        return [round_result(total, kind, storage_dtype(kind))]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of the product: the unit loads sums where it else begins with zeros.

        A pass over a position takes a slot more then, which no pass but the first spares.
        (graphcore/poplibs: lib/poplin/PerformanceEstimation.hpp,
        getConvPartial1x1InnerLoopCycleEstimate.)
        """
        return self.dot.work(machine, operands[:2], results)

    def may_overwrite(self, operand: int) -> bool:
        """Add sums up where they lie."""
        return operand == 2

    @property
    def code_kind(self) -> str:
        """That of the product."""
        return self.dot.code_kind

    def runs_code_of(self, types: tuple[str, ...]) -> tuple[Codelet, tuple[str, ...]]:
        """Return the product: poplin's vertices are told whether to begin with zeros."""
        return self.dot, (*types[:2], types[-1])

    def table_bytes(self, machine: Machine, operands: Tensors, results: Tensors) -> int:
        """Return the bytes of the tables of the product."""
        return self.dot.table_bytes(machine, operands[:2], results)
