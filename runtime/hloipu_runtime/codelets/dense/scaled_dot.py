"""Scaled dot, of small formats with a scale for each block, and ragged dot, of groups of rows."""

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.grids import one_by_one, pair, repeat
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, Sizes, Tensor, Tensors
from hloipu_runtime.codelets.costs.amp import Product, product_work
from hloipu_runtime.codelets.dense.dot import Dot, folded_dot, free_size
from hloipu_runtime.kernels.contractions.contraction import DotDimensions, free_dims
from hloipu_runtime.kernels.contractions.dot import (
    RaggedDotDimensions,
    ScaledOperand,
    ragged_dot,
    scaled_dot,
)
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine


@codelet
class ScaledDot(Codelet):
    """Contracts lhs and rhs after scaling; operands are lhs, rhs and their scales.

    A scale has its operand's rank and divides each of its sizes, or is one number. Free dimensions
    may be split, along scaled ones block by block, and batch dimensions that blocks do not span.
    """

    name: ClassVar[str] = "scaled_dot"
    dot: Dot
    types: tuple[str, str, str, str]
    """Of the operands."""

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return labels of the result's dimensions, those of blocks counting blocks."""
        dot = self.dot
        indices = [[ALL] * len(tensor.shape) for tensor in operands]
        result = [ALL] * len(results[0].shape)
        sizes: list[int] = []
        blocks = [_blocks(operands[0], operands[2]), _blocks(operands[1], operands[3])]
        for place, dims in enumerate(zip(dot.lhs_batch, dot.rhs_batch, strict=True)):
            if all(blocks[side][d] <= 1 for side, d in enumerate(dims)):
                for side, d in enumerate(dims):
                    _follow(operands, indices, side, d, Index(len(sizes)), Index(len(sizes)))
                result[place] = Index(len(sizes))
                sizes.append(results[0].shape[place])
        place = len(dot.lhs_batch)
        sides = ((dot.lhs_batch, dot.lhs_contracting), (dot.rhs_batch, dot.rhs_contracting))
        for side, (batch, contracting) in enumerate(sides):
            for d in free_dims(len(operands[side].shape), batch, contracting):
                block = max(1, blocks[side][d])
                along = Index(len(sizes), block, 0, block)
                _follow(operands, indices, side, d, along, Index(len(sizes)))
                result[place] = along
                sizes.append(-(-results[0].shape[place] // block))
                place += 1
        return Indexing(tuple(sizes), tuple(map(tuple, indices)), (tuple(result),))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Contract; grid axes along which one operand and its scale vary are free dims of it."""
        lhs, lhs_scale = _alike(operands[0], operands[2])
        rhs, rhs_scale = _alike(operands[1], operands[3])
        a, b, varies = pair(lhs, rhs)
        folded = folded_dot(self.dot, varies, len(lhs.part), len(rhs.part))
        scales = [
            scale[tuple(slice(None) if has[side] else 0 for has in varies)] if scale.ndim else scale
            for side, scale in enumerate((lhs_scale, rhs_scale))
        ]
        computed = scaled_dot(
            ScaledOperand(a, self.types[0], scales[0], self.types[2]),
            ScaledOperand(b, self.types[1], scales[1], self.types[3]),
            folded.dimensions,
            self.dot.element_type,
        )
        shape = (*results[0].grid, *results[0].part)
        return [repeat(computed.transpose(folded.order), varies, shape)]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of a product; scaling is assumed to cost a multiply for each element."""
        lhs, rhs = operands[:2]
        dot = self.dot
        size = Product(
            prod(lhs.shape[d] for d in dot.lhs_batch),
            free_size(lhs.shape, dot.lhs_batch, dot.lhs_contracting),
            prod(lhs.shape[d] for d in dot.lhs_contracting),
            free_size(rhs.shape, dot.rhs_batch, dot.rhs_contracting),
        )
        types = (lhs.element_type, rhs.element_type)
        work = product_work(machine, size, types, results[0].element_type)
        scaling = 2 * (lhs.elements + rhs.elements)
        return TileWork(work.cycles + scaling, work.assumed_cycles + scaling)


def _blocks(operand: Tensor, scale: Tensor) -> list[int]:
    """Return, for each dimension, the elements that share a scale; 0: all of them."""
    if not scale.shape:
        return [0] * len(operand.shape)
    return [
        0 if blocks <= 1 else size // blocks
        for size, blocks in zip(operand.shape, scale.shape, strict=True)
    ]


def _follow(
    operands: Tensors,
    indices: list[list[Index]],
    side: int,
    dimension: int,
    along: Index,
    of_scale: Index,
) -> None:
    """Let a dimension of an operand, and of its scale where it has several, follow a label."""
    indices[side][dimension] = along
    scale = operands[2 + side].shape
    if scale and scale[dimension] > 1:
        indices[2 + side][dimension] = of_scale


def _alike(values: Block, scale: Block) -> tuple[Block, Array]:
    """Return an operand and its scale, both stored along the grid axes that either varies along.

    A scale that is one number stands for none, and is returned without axes.
    """
    if not scale.whole:
        return values, np.zeros((), scale.data.dtype)
    x, factors = values.data, scale.data
    rank = len(values.grid)
    cut = tuple(
        slice(None) if x.strides[axis] or factors.strides[axis] else slice(0, 1)
        for axis in range(rank)
    )
    stored = (x.shape[axis] if c == slice(None) else 1 for axis, c in enumerate(cut))
    sizes = tuple(stored)
    dense = [
        np.ascontiguousarray(np.broadcast_to(y[cut], (*sizes, *y.shape[rank:])))
        for y in (x, factors)
    ]
    whole = np.broadcast_to(dense[0], x.shape)
    return values._replace(array=whole), np.broadcast_to(dense[1], factors.shape)


@codelet
class RaggedDot(Codelet):
    """Contracts groups of lhs along its ragged dimension; operands are lhs, rhs, group sizes.

    Free dimensions of rhs may be split, and where one list of sizes serves all, also those of lhs
    but the ragged one, and batch dimensions. Where groups lie is known at run time only, so tiles
    need the whole ragged dimension; they are computed one after the other. With a `part` of `dot`
    the depth is cut as a dot product's is, unless that is what is ragged.
    """

    name: ClassVar[str] = "ragged_dot"
    dot: Dot
    lhs_ragged: int
    rhs_group: int
    """Dimension of rhs that counts groups; -1: it has none."""

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return labels of pieces, and of batch and free dimensions."""
        lhs, rhs, group_sizes = operands
        dot = self.dot
        left, right = [ALL] * len(lhs.shape), [ALL] * len(rhs.shape)
        result = [ALL] * len(results[0].shape)
        sizes: list[int] = []
        if dot.part:
            left[dot.lhs_contracting[0]] = right[dot.rhs_contracting[0]] = Index(
                0, dot.part, 0, dot.part
            )
            result[0] = Index(0)
            sizes.append(results[0].shape[0])
        lhs_free, rhs_free = self._free(len(lhs.shape), len(rhs.shape))
        first = len(results[0].shape) - len(rhs_free) - len(lhs_free)
        if len(group_sizes.shape) == 1:
            batch = first - len(dot.lhs_batch)
            for place, (d, other) in enumerate(zip(dot.lhs_batch, dot.rhs_batch, strict=True)):
                if d != self.lhs_ragged:
                    left[d] = right[other] = result[batch + place] = Index(len(sizes))
                    sizes.append(lhs.shape[d])
            for place, d in enumerate(lhs_free):
                if d != self.lhs_ragged:
                    left[d] = result[first + place] = Index(len(sizes))
                    sizes.append(lhs.shape[d])
        for place, d in enumerate(rhs_free):
            right[d] = result[first + len(lhs_free) + place] = Index(len(sizes))
            sizes.append(rhs.shape[d])
        numbers = (ALL,) * len(group_sizes.shape)
        return Indexing(tuple(sizes), (tuple(left), tuple(right), numbers), (tuple(result),))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Contract one tile after the other, and one piece of the depth after the other."""
        if results[0].grid:
            dtype = storage_dtype(self.dot.element_type)
            return one_by_one(self.run, operands, results, [dtype])
        lhs, rhs, group_sizes = (block.data for block in operands)
        part = self.dot.part
        if not part:
            return [self._product(lhs, rhs, group_sizes)]
        pieces = []
        for low in range(0, part * results[0].part[0], part):
            a, b = (
                x[(slice(None),) * d + (slice(low, low + part),)]
                for x, d in ((lhs, self.dot.lhs_contracting[0]), (rhs, self.dot.rhs_contracting[0]))
            )
            pieces.append(self._product(a, b, group_sizes))
        return [np.stack(pieces)]

    def _product(self, lhs: Array, rhs: Array, group_sizes: Array) -> Array:
        dot = DotDimensions(
            self.dot.lhs_batch,
            self.dot.rhs_batch,
            self.dot.lhs_contracting,
            self.dot.rhs_contracting,
        )
        group = self.rhs_group if self.rhs_group >= 0 else None
        dims = RaggedDotDimensions(dot, self.lhs_ragged, group)
        return np.asarray(ragged_dot(lhs, rhs, group_sizes, dims, self.dot.element_type))

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of a product for each group, all of one size; that is an assumption."""
        lhs, rhs, group_sizes = operands
        groups = max(1, group_sizes.shape[-1])
        lhs_free, rhs_free = self._free(len(lhs.shape), len(rhs.shape))
        rows, depth = _size(lhs.shape, lhs_free), _size(lhs.shape, self.dot.lhs_contracting)
        pieces = results[0].shape[0] if self.dot.part else 1
        depth = -(-depth // max(1, pieces))
        if self.lhs_ragged in self.dot.lhs_contracting:
            depth = -(-depth // groups)
        elif self.lhs_ragged in lhs_free:
            rows = -(-rows // groups)
        else:
            groups = 1
        products = pieces * groups * _size(lhs.shape, self.dot.lhs_batch)
        size = Product(products, rows, depth, _size(rhs.shape, rhs_free))
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
