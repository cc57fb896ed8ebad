"""Sorting operands together along one dimension, on one tile or as a step of a sort over tiles.

A dimension that is too long for a tile is sorted in steps between which elements only change tiles,
whatever the data (after bitonic sorting: K. E. Batcher, Sorting networks and their applications,
AFIPS 1968). See it as [parts, block], `parts` a power of two, and sort each block, every other one
backwards (`alternating`). Then for runs of 2, 4, .. parts, seen as [run, parts of the run, block]:
sort along the parts, then along the block, every other run backwards. Two neighbouring sorted runs
rise and fall once, and so does every column of the two. Of the elements up to any bound the columns
have equally many, give or take one; after sorting them every row holds what belongs to it, and
rises and falls once. That makes 1 + 2 log2(parts) steps. Many parts may be seen as several
dimensions that are sorted along one after the other, for the same reason.

Equal elements keep their order by a further operand, s32 `places`, which decides last. Elements at
places from `count` on fill up the last part: they stand last, and their values get lost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import ClassVar

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet, Indexing, codelet
from hloipu_runtime.codelets.core.expression import region
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.grids import share, spread
from hloipu_runtime.codelets.core.labels import batch_labels, require
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, Sizes, Tensors
from hloipu_runtime.codelets.costs.sort import SortShape, sort_work
from hloipu_runtime.kernels.core.extrema import has_negative_zero
from hloipu_runtime.kernels.sort_networks import argsort_by_comparator, is_merged_fast, merge
from hloipu_runtime.kernels.sorting import (
    Comparator,
    SortKey,
    argsort_by_keys,
    ascending_keys,
    put_keys,
    put_values,
    sort,
)
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine


@codelet
class Sort(Codelet):
    """Sorts operands of one shape together; there may be fewer results than operands."""

    name: ClassVar[str] = "sort"
    code_bytes: ClassVar[int] = 1024

    dimension: int
    keys: tuple[SortKey, ...] = ()
    """First key first; none: the comparator says what goes before what."""
    comparator: Expression | None = None
    """Of (a_1, b_1, .., a_n, b_n); without the operand of places, unless the program sorts that."""
    alternating: int = -1
    """Dimension at whose odd indices the order is backwards; -1: nowhere."""
    places: int = -1
    """Operand that decides between equals and says what is filling: the last one, or an operand of
    the program that counts along the dimension; -1: none."""
    count: int = 0
    """Where there are places: elements that are no filling."""
    rises_and_falls: bool = False
    """Whether rows rise and fall once, as in a merge, which takes fewer steps."""

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Every dimension but the sorted one may be split."""
        shape = operands[0].shape
        require(0 <= self.dimension < len(shape), "a sorted dimension that there is not")
        require(self.alternating < len(shape), "an alternating dimension that there is not")
        require(len(results) <= len(operands), "more results than operands")
        require(all(tensor.shape == shape for tensor in (*operands, *results)), "different shapes")
        used = [*(k.operand for k in self.keys), max(self.places, 0)]
        require(all(0 <= k < len(operands) for k in used), "a key that there is not")
        require(bool(self.keys) or self.comparator is not None, "neither keys nor a comparator")
        sizes, each = batch_labels(shape, (self.dimension,))
        return Indexing(sizes, (each,) * len(operands), (each,) * len(results))

    def ignores(self, unused: Sequence[Sequence[bool]]) -> bool:
        """Let it sort rows that nobody reads, but take in no elements that are none."""
        return not any(ends[self.dimension] for ends in unused)

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Sort along the axis of the dimension; all tiles' rows are rows of one batch."""
        grid = operands[0].grid
        axis = len(grid) + self.dimension
        shared = share(operands)
        backwards = _odd(operands[0], self.alternating) if self.alternating >= 0 else None
        if self._packs(shared.arrays) and shared.grid == grid:
            return self._sorted_packed(shared.arrays, axis, [x.array for x in results], backwards)
        ordered = self._sorted(shared.arrays, axis, len(results))
        ordered = [spread(x, grid, shared.grid) for x in ordered]
        if backwards is None:
            return ordered
        return [np.where(backwards, np.flip(x, axis), x) for x in ordered]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of a bitonic network on all rows of a tile."""
        shape = operands[0].shape
        length = shape[self.dimension]
        rows = operands[0].elements // length if length else 0
        nodes = len(self.comparator.nodes) if self.comparator and not self.keys else 0
        keys = tuple(operands[k.operand].element_type for k in self.keys)
        if not keys:
            keys = tuple(tensor.element_type for tensor in operands)
        elif self.places >= 0 and len(operands) > 1:
            keys = (*keys, operands[self.places].element_type)
        return sort_work(
            machine, SortShape(rows, length, len(operands), keys, nodes, self.rises_and_falls)
        )

    def may_overwrite(self, operand: int) -> bool:
        """Whether a network works in place: on its first operand."""
        return operand == 0

    def _packs(self, arrays: list[Array]) -> bool:
        """Whether a key and places fit 64 bits."""
        if self.places < 0 or len(self.keys) != 1 or not arrays[0].size:
            return False
        return arrays[self.keys[0].operand].itemsize <= 4

    def _sorted_packed(
        self,
        arrays: list[Array],
        axis: int,
        places: Sequence[Array | None],
        backwards: Array | None,
    ) -> list[Array]:
        """Sort along an axis by the only key, then by the operand of places, in cached pieces.

        Keys are at most 32 bits wide. What there is no place for is fresh. `backwards`, which
        broadcasts to the shape, tells which rows are sorted the other way round.
        """
        shape = arrays[0].shape
        outs = [
            np.empty(shape, x.dtype) if out is None else out
            for x, out in zip(arrays, places, strict=False)
        ]
        turned = None
        if backwards is not None:
            turned = np.broadcast_to(-backwards.astype(np.int64), shape)
        # As they lie in memory, where parts of tiles are interleaved.
        order = sorted(range(len(shape)), key=lambda d: -abs(arrays[0].strides[d]))
        given, made = ([x.transpose(order) for x in each] for each in (arrays, outs))
        for rows in _cached_pieces(given[0].shape, order.index(axis)):
            self._sort_piece(
                [x[rows] for x in given],
                order.index(axis),
                [x[rows] for x in made],
                None if turned is None else turned.transpose(order)[rows],
            )
        return outs

    def _sort_piece(
        self, arrays: list[Array], axis: int, outs: list[Array], turned: Array | None
    ) -> None:
        """Sort to `outs`: places from `count` on go last, keys of filling become zeros."""
        key, count = self.keys[0], np.uint32(self.count)
        x, at = np.ascontiguousarray(arrays[key.operand]), arrays[self.places].view(np.uint32)
        filling = at >= count if np.maximum.reduce(at, None) >= count else None
        if filling is not None:
            x = np.where(filling, x.dtype.type(0), x)
        is_invertible = _is_invertible(x, key)
        key = replace(key, order="total") if is_invertible else key
        packed = np.empty(x.shape, "<i8")
        halves = packed.view("<i4").reshape(*packed.shape, 2)
        low, high = halves[..., 0].view(np.uint32), halves[..., 1]
        low[...] = at
        put_keys(x, key, high)
        if filling is not None:
            # Its places are above all others, so that among equal ranks it goes last.
            np.copyto(high, np.int32(0x7FFFFFFF), where=filling)
        if turned is not None:
            packed ^= turned
        if not is_invertible or {key.operand, self.places} != set(range(len(arrays))):
            order = np.argsort(packed, axis=axis)
            wanted = [x if n == key.operand else arrays[n] for n in range(len(outs))]
            for out, array in zip(outs, taken(wanted, order, axis), strict=True):
                out[...] = array
            return
        if self.rises_and_falls and is_merged_fast(packed.shape, axis):
            merge(packed, axis)
        else:
            packed.sort(axis=axis)
        if turned is not None:
            packed ^= turned
        for n, out in enumerate(outs):
            if n == self.places:
                # The low half: a cast takes half of a strided copy.
                out.view(np.uint32)[...] = packed
            else:
                put_values(high, key, out)
                if filling is not None:
                    np.copyto(out, out.dtype.type(0), where=low >= count)

    def _sorted(self, arrays: list[Array], axis: int, count: int) -> list[Array]:
        if self.places < 0:
            keys = self.keys or _comparator(self.comparator)
            return sort(arrays, axis, keys)[:count]
        if arrays[0].size == 0:
            return arrays[:count]
        if self._packs(arrays):
            return self._sorted_packed(arrays, axis, [None] * count, None)
        rows = [np.moveaxis(x, axis, -1) for x in arrays]
        order = self._order(rows)
        return [np.moveaxis(x, -1, axis) for x in taken(rows[:count], order, order.ndim - 1)]

    def _order(self, rows: list[Array]) -> Array:
        """Return the order by all keys, or by the comparator, and by the places at last."""
        places = rows[self.places]
        if self.keys:
            ranks = [ascending_keys(np.ascontiguousarray(rows[k.operand]), k) for k in self.keys]
            filling = (places >= self.count).view(np.uint8)
            return argsort_by_keys([filling, *ranks, places.view(np.uint32)])
        goes_before, limit = _comparator(self.comparator), self.count
        operands = len(self.comparator.operand_types) if self.comparator else 0
        at = 2 * self.places

        def before(*pairs: Array) -> Array:
            values, (a, b) = pairs[:operands], pairs[at : at + 2]
            swapped = [x for pair in zip(values[1::2], values[::2], strict=True) for x in pair]
            forward, backward = goes_before(*values), goes_before(*swapped)
            by_value = np.where(np.equal(forward, backward), a < b, forward)
            return np.where((a >= limit) | (b >= limit), a < b, by_value)

        return argsort_by_comparator([np.ascontiguousarray(x) for x in rows], before)


def _comparator(expression: Expression | None) -> Comparator:
    if expression is None:
        raise ValueError("a sort needs keys or a comparator")
    compare = region(expression)
    return lambda *pairs: compare(*pairs)[0]


def _odd(block: Block, dimension: int) -> Array:
    """Tell, in a shape that broadcasts to grid + part, at which places an index is odd."""
    start, rank = np.asarray(block.starts[dimension]), len(block.part)
    outer = start.reshape((*start.shape, *(1,) * rank)) if start.ndim else start
    inner = np.arange(block.part[dimension]).reshape(
        [-1 if d == dimension else 1 for d in range(rank)]
    )
    return np.asarray((outer + inner) % 2 == 1)


CACHED_ELEMENTS = 1 << 15
"""Sorted at once: with what is made of each, some 30 bytes, they stay in a second-level cache."""


def _cached_pieces(shape: Sizes, axis: int) -> Iterator[tuple[slice, ...]]:
    """Yield indices that cut arrays between rows along an axis, in pieces as they lie in memory."""
    d = next((d for d, n in enumerate(shape) if n > 1 and d != axis), axis)
    if d == axis or prod(shape) <= CACHED_ELEMENTS:
        yield ()
        return
    step = -(-CACHED_ELEMENTS * shape[d] // prod(shape))
    for start in range(0, shape[d], step):
        here = slice(start, min(start + step, shape[d]))
        size = here.stop - here.start
        for inner in (
            _cached_pieces((*(1,) * d, size, *shape[d + 1 :]), axis) if size == 1 else [()]
        ):
            yield (*(slice(None),) * d, here, *inner[d + 1 :])


def taken(arrays: Sequence[Array], order: Array, axis: int) -> list[Array]:
    """Return arrays of one shape with the elements along an axis in the given order."""
    shape = order.shape
    inner = int(np.prod(shape[axis + 1 :], dtype=np.int64))
    length = shape[axis]
    flat = order.reshape(-1, length, inner)
    if inner > 1:
        flat = flat * inner
        flat += np.arange(inner)
    if flat.shape[0] > 1:
        flat = flat + np.arange(flat.shape[0])[:, np.newaxis, np.newaxis] * (length * inner)
    return [x.reshape(-1).take(flat.reshape(-1), mode="clip").reshape(shape) for x in arrays]


def _is_invertible(x: Array, key: SortKey) -> bool:
    """Whether ranks say which bits a value has."""
    if x.dtype.kind != "f" or key.order == "total":
        return True
    return not (has_negative_zero([x]) or np.isnan(x).any())
