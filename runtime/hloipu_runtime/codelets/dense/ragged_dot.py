"""Ragged dot: groups of consecutive rows, or of products, each contracted apart."""

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from hloipu_runtime.codelets.core.codelet import (
    ALL,
    Array,
    Blocks,
    Codelet,
    Index,
    Indexing,
    Sizes,
    Tensors,
    codelet,
)
from hloipu_runtime.codelets.core.grids import one_by_one
from hloipu_runtime.codelets.costs.amp import Product, product_work
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.kernels.contractions.contraction import DotDimensions, free_dims
from hloipu_runtime.kernels.contractions.dot import RaggedDotDimensions, ragged_dot
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine


@codelet
class RaggedDot(Codelet):
    """Contracts groups of lhs along its ragged dimension; operands are lhs, rhs, group sizes.

    Free dimensions of rhs may be split, and where one list of sizes serves all, also those of lhs
    but the ragged one. Where groups lie is known at run time only, so tiles need the whole ragged
    dimension; they are computed one after the other.
    """

    name: ClassVar[str] = "ragged_dot"
    dot: Dot
    lhs_ragged: int
    rhs_group: int
    """Dimension of rhs that counts groups; -1: it has none."""

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return labels of free dimensions."""
        lhs, rhs, group_sizes = operands
        left, right = [ALL] * len(lhs.shape), [ALL] * len(rhs.shape)
        result = [ALL] * len(results[0].shape)
        sizes: list[int] = []
        lhs_free, rhs_free = self._free(len(lhs.shape), len(rhs.shape))
        first = len(results[0].shape) - len(rhs_free) - len(lhs_free)
        for place, d in enumerate(lhs_free):
            if len(group_sizes.shape) == 1 and d != self.lhs_ragged:
                left[d] = result[first + place] = Index(len(sizes))
                sizes.append(lhs.shape[d])
        for place, d in enumerate(rhs_free):
            right[d] = result[first + len(lhs_free) + place] = Index(len(sizes))
            sizes.append(rhs.shape[d])
        numbers = (ALL,) * len(group_sizes.shape)
        return Indexing(tuple(sizes), (tuple(left), tuple(right), numbers), (tuple(result),))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Contract, on a grid one tile after the other."""
        if results[0].grid:
            dtype = storage_dtype(self.dot.element_type)
            return one_by_one(self.run, operands, results, [dtype])
        lhs, rhs, group_sizes = (block.data for block in operands)
        dot = DotDimensions(
            self.dot.lhs_batch,
            self.dot.rhs_batch,
            self.dot.lhs_contracting,
            self.dot.rhs_contracting,
        )
        group = self.rhs_group if self.rhs_group >= 0 else None
        dims = RaggedDotDimensions(dot, self.lhs_ragged, group)
        computed = ragged_dot(lhs, rhs, group_sizes, dims, self.dot.element_type)
        return [np.asarray(computed)]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of a product for each group, all of one size; that is an assumption."""
        lhs, rhs, group_sizes = operands
        groups = max(1, group_sizes.shape[-1])
        lhs_free, rhs_free = self._free(len(lhs.shape), len(rhs.shape))
        rows, depth = _size(lhs.shape, lhs_free), _size(lhs.shape, self.dot.lhs_contracting)
        if self.lhs_ragged in self.dot.lhs_contracting:
            depth = -(-depth // groups)
        elif self.lhs_ragged in lhs_free:
            rows = -(-rows // groups)
        else:
            groups = 1
        size = Product(
            groups * _size(lhs.shape, self.dot.lhs_batch), rows, depth, _size(rhs.shape, rhs_free)
        )
        types = (lhs.element_type, rhs.element_type)
        work = product_work(machine, size, types, results[0].element_type)
        return TileWork(work.cycles, work.cycles)

    def _free(self, lhs_rank: int, rhs_rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the free dimensions of both operands, the group dimension left out."""
        dot = self.dot
        batch = (*dot.rhs_batch, self.rhs_group) if self.rhs_group >= 0 else dot.rhs_batch
        return (
            free_dims(lhs_rank, dot.lhs_batch, dot.lhs_contracting),
            free_dims(rhs_rank, batch, dot.rhs_contracting),
        )


def _size(shape: Sizes, dimensions: Sequence[int]) -> int:
    return prod(shape[d] for d in dimensions)
