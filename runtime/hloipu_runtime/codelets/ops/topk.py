"""Top-k of rows, of pieces of rows, and of candidates of pieces.

Floats compare in total order; equal elements come in the order of their places (kernels/topk.py).
"""

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.grids import share, spread
from hloipu_runtime.codelets.core.labels import batch_labels, require
from hloipu_runtime.codelets.core.tensors import Array, Blocks, Tensors
from hloipu_runtime.codelets.costs.sort import merging_work, selecting_work
from hloipu_runtime.kernels.sorting import SortKey, argsort_by_keys, ascending_keys
from hloipu_runtime.kernels.topk import best_pairs, topk
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine

NO_PLACE = (1 << 31) - 1
"""Place of what fills up the candidates of a piece of fewer than k elements."""


@codelet
class TopK(Codelet):
    """Finds the k best elements of each row (last dimension) and their places, best first."""

    name: ClassVar[str] = "topk"
    code_bytes: ClassVar[int] = 1024

    k: int
    largest: bool = True

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Every dimension but the last may be split."""
        shape = operands[0].shape
        require(0 <= self.k <= shape[-1], "more than there are")
        require(
            all(tensor.shape == (*shape[:-1], self.k) for tensor in results),
            "results of another shape",
        )
        sizes, each = batch_labels(shape, (len(shape) - 1,))
        return Indexing(sizes, (each,), (each,) * len(results))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Return values and s32 places."""
        shared = share(operands)
        best = topk(shared.arrays[0], self.k, largest=self.largest)
        return [spread(x, operands[0].grid, shared.grid) for x in best]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work on a tile's rows."""
        x = operands[0]
        rows, length = prod(x.shape[:-1]), x.shape[-1]
        return selecting_work(machine, x.element_type, rows, length, self.k)


@codelet
class TopKPieces(Codelet):
    """Finds the k best elements of each piece of `block` elements of each row.

    Results have a dimension that counts the pieces before the last one. Places count from the start
    of the row; a piece of fewer than k elements is filled up with `NO_PLACE`.
    """

    name: ClassVar[str] = "topk_pieces"
    code_bytes: ClassVar[int] = 1024

    k: int
    block: int
    largest: bool = True

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Rows and pieces may be split."""
        shape, row = results[0].shape, operands[0].shape
        require(self.k >= 0 < self.block, "no pieces")
        pieces = -(-row[-1] // self.block)
        require(shape == (*row[:-1], pieces, self.k), "results of another shape")
        sizes, each = batch_labels(shape, (len(shape) - 1,))
        piece = Index(len(sizes) - 1, self.block, 0, self.block)
        return Indexing(sizes, ((*each[:-2], piece),), (each,) * len(results))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Return values and s32 places of the candidates."""
        x, pieces = operands[0].data, results[0].part[-2]
        count = x.shape[-1]
        whole = min(count // self.block, pieces)
        full = x[..., : whole * self.block].reshape(*x.shape[:-1], whole, self.block)
        values, places = self._filled(full)
        if whole < pieces:
            rest = self._filled(x[..., np.newaxis, whole * self.block :])
            values = np.concatenate([values, rest[0]], axis=-2)
            places = np.concatenate([places, rest[1]], axis=-2)
        origins = np.arange(pieces, dtype=np.int32)[:, np.newaxis] * np.int32(self.block)
        start = np.asarray(operands[0].starts[-1], np.int32)
        if start.ndim:
            start = start.reshape(*start.shape, *(1,) * len(results[0].part))
        return [values, np.where(places == NO_PLACE, places, places + (origins + start))]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work on a tile's pieces."""
        x, rows = operands[0], prod(results[0].shape[:-1])
        length = min(self.block, x.shape[-1])
        return selecting_work(machine, x.element_type, rows, length, self.k)

    def combined_with(
        self, combine: Codelet, others: Sequence[Array | None]
    ) -> tuple[Codelet, int] | None:
        """Join candidates of pieces with their merge: these are the candidates of larger pieces."""
        if not isinstance(combine, TopKMerge) or combine.largest != self.largest:
            return None
        if combine.k != self.k:
            return None
        return TopKPieces(self.k, self.block * combine.pieces, self.largest), 0

    def _filled(self, rows: Array) -> tuple[Array, Array]:
        """Return the k best of rows, filled up where there are fewer."""
        best = topk(rows, min(self.k, rows.shape[-1]), largest=self.largest)
        return _filled_up(*best, self.k)


@codelet
class TopKMerge(Codelet):
    """Finds the k best of the candidates of each `pieces` pieces: (values, places) to the same.

    Operands have the shape [rows.., pieces, candidates], results [rows.., groups, k]. Where a group
    has fewer candidates than k it is filled up with `NO_PLACE`.
    """

    name: ClassVar[str] = "topk_merge"
    code_bytes: ClassVar[int] = 1024

    k: int
    pieces: int
    largest: bool = True

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Rows and groups may be split."""
        shape, given = results[0].shape, operands[0].shape
        require(self.k >= 0 < self.pieces, "no groups")
        groups = -(-given[-2] // self.pieces)
        require(shape == (*given[:-2], groups, self.k), "results of another shape")
        sizes, each = batch_labels(shape, (len(shape) - 1,))
        group = Index(len(sizes) - 1, self.pieces, 0, self.pieces)
        return Indexing(sizes, ((*each[:-2], group, ALL),) * 2, (each,) * len(results))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Return values and s32 places of the best."""
        values, places = (block.data for block in operands)
        groups = results[0].part[-2]
        whole = min(values.shape[-2] // self.pieces, groups)
        split = (*values.shape[:-2], whole, self.pieces * values.shape[-1])
        cut = whole * self.pieces
        best = self._best(values[..., :cut, :].reshape(split), places[..., :cut, :].reshape(split))
        if whole < groups:
            last = (*values.shape[:-2], 1, (values.shape[-2] - cut) * values.shape[-1])
            rest = self._best(
                values[..., cut:, :].reshape(last), places[..., cut:, :].reshape(last)
            )
            best = [np.concatenate(pair, axis=-2) for pair in zip(best, rest, strict=True)]
        return best

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work on a tile's groups."""
        pieces, candidates = operands[0].shape[-2:]
        groups, pieces = prod(results[0].shape[:-1]), min(self.pieces, pieces)
        kind = operands[0].element_type
        return merging_work(machine, kind, groups, pieces, candidates, self.k)

    def _best(self, values: Array, places: Array) -> list[Array]:
        at = places.view(np.uint32)
        filling = at == np.uint32(NO_PLACE)
        is_filled = bool(filling.any())
        if values.itemsize <= 4:
            best, places = best_pairs(
                values, at, self.k, largest=self.largest, last=filling if is_filled else None
            )
            if is_filled:
                np.copyto(best, values.dtype.type(0), where=places == NO_PLACE)
        else:
            ranks = ascending_keys(np.ascontiguousarray(values), SortKey(0, self.largest))
            order = argsort_by_keys([filling.view(np.uint8), ranks, at])[..., : self.k]
            best, places = (np.take_along_axis(x, order, axis=-1) for x in (values, places))
        return list(_filled_up(best, places, self.k))


def _filled_up(values: Array, places: Array, k: int) -> tuple[Array, Array]:
    """Return the best of rows, filled up where there are fewer than k."""
    count = values.shape[-1]
    if count == k:
        return values, places
    shape = (*values.shape[:-1], k)
    filled, at = np.zeros(shape, values.dtype), np.full(shape, NO_PLACE, np.int32)
    filled[..., :count], at[..., :count] = values, places
    return filled, at
