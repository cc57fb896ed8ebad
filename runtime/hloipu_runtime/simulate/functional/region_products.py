"""Writes products of a region: the loop of `np.matmul` on matrices as the plain path has them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.kernels.contractions.blas_threads import ALWAYS_ONE_THREAD_FLOPS, SMALL_PRODUCTS
from hloipu_runtime.kernels.contractions.contraction import DotDimensions, arrangement
from hloipu_runtime.kernels.contractions.dot import is_matrix_product
from hloipu_runtime.kernels.contractions.matmul import is_one_call
from hloipu_runtime.kernels.core.rounding import is_narrow
from hloipu_runtime.kernels.native.numpy_loops import NumpyLoop
from hloipu_runtime.kernels.native.regions import Held, Place, Register, merged
from hloipu_runtime.program.steps import ValueId
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.functional.region_expressions import rounding
from hloipu_runtime.simulate.functional.region_values import Refused, RegionValues, Sizes


class RegionProducts(RegionValues):
    """Products of matrices."""

    def _dot(self, what: Dot, node: Node) -> Held:
        kind = self._form(node.writes[0])[1]
        dims = DotDimensions(
            what.lhs_batch, what.rhs_batch, what.lhs_contracting, what.rhs_contracting
        )
        if kind not in ("f32", "f64"):
            raise Refused
        lhs, rhs = (self._operand(v, kind) for v in node.reads)
        a, b = lhs.view, rhs.view
        simple = is_matrix_product(a.shape, b.shape, dims, kind)
        if simple and a.flags.forc and b.flags.forc:
            left = lhs.seen(a.T if dims.lhs_contracting[0] == 0 else a)
            right = rhs.seen(b.T if dims.rhs_contracting[0] == 1 else b)
            product = self._product(left, right, node.writes[0], [lhs, rhs])
        else:
            product = self._arranged_product(lhs, rhs, dims)
        return self._rounded(product, self.table[node.writes[0]].element_type)

    def _arranged_product(self, lhs: Place, rhs: Place, dims: DotDimensions) -> Place:
        """Multiply operands put in order as BLAS takes them."""
        how = arrangement(lhs.view, rhs.view, dims)
        left, right = (self._matrices(x, m) for x, m in ((lhs, how.left), (rhs, how.right)))
        if not is_one_call(left.view, right.view):
            raise Refused
        product = self._product(left, right, None, [lhs, rhs])
        product = product.seen(product.view.reshape(how.shape, copy=False))
        return product if how.order is None else product.seen(product.view.transpose(how.order))

    def _rounded(self, product: Place, element: str) -> Place:
        """Round what was just made, of a narrow type."""
        if is_narrow(element):
            op = rounding(element, self.halves)
            with self.region.each(product.view.shape, [product]) as ((at,), access):
                value = self.region.load("f32", at, access)
                self.region.store("f32", self.region.op(op, "f32", value), at, access)
        return product

    def _operand(self, value: ValueId, kind: str) -> Place:
        held = self._value(value)
        if held.type != kind:
            raise Refused
        if isinstance(held, Register):
            return self.region.in_memory(held, self.table[value].shape)
        if self._is_unsure(held):
            raise Refused
        return held

    def _matrices(self, x: Place, matrices: Any) -> Place:
        """Return an operand as matrices, copied where the plain path copies it."""
        view = matrices.of(x.view)
        if np.may_share_memory(view, x.memory.stand_in):
            return x.seen(view)
        moved = x.seen(x.view.transpose(matrices.order))
        copy = self.region.temporary(moved.view.shape, x.type)
        self.region.copy(moved, copy)
        seen = copy.view.reshape(matrices.shape)
        return copy.seen(seen.swapaxes(-1, -2) if matrices.is_turned else seen)

    def _product(
        self, left: Place, right: Place, written: ValueId | None, reads: Sequence[Held]
    ) -> Place:
        """Multiply as `np.matmul` does, by its own loop."""
        a, b = left.view, right.view
        vector_left, vector_right = a.ndim == 1, b.ndim == 1
        rows = a[None] if vector_left else a
        columns = b[:, None] if vector_right else b
        m, k, n = rows.shape[-2], rows.shape[-1], columns.shape[-1]
        if m * k * n > SMALL_PRODUCTS:
            raise Refused  # the plain path cuts it into pieces, or takes more threads
        self.multiplies |= 2 * m * k * n > ALWAYS_ONE_THREAD_FLOPS
        batch = rows.shape[:-2]
        shape = (*batch, *(() if vector_left else (m,)), *(() if vector_right else (n,)))
        if written is not None and self.table[written].shape == shape:
            target = self._place_for(written, reads)
        else:
            target = self.region.temporary(shape, left.type)
        out = target.view.reshape(*batch, m, n)
        whole = [left.seen(rows), right.seen(columns), target.seen(out)]
        matrices = _merged_batches(batch, [x.view.strides[:-2] for x in whole])
        loop = NumpyLoop(np.matmul, left.type)
        if matrices is None or loop.address is None:
            raise Refused
        count, steps = matrices
        # Numpy takes 0 for the stride of a dimension of one element.
        strides = [
            0 if size == 1 else stride
            for x in whole
            for size, stride in zip(x.view.shape[-2:], x.view.strides[-2:], strict=True)
        ]
        pointers = [self.region.address(x) for x in whole]
        self.region.numpys(loop, pointers, [count, m, k, n], [*steps, *strides])
        return target


def _merged_batches(batch: Sizes, strides: Sequence[Sizes]) -> tuple[int, Sizes] | None:
    """Return leading dimensions as one: how many, and its strides; None where they are not one."""
    dimensions = merged(batch, strides)
    if len(dimensions) > 1:
        return None
    return dimensions[0] if dimensions else (1, (0,) * len(strides))
