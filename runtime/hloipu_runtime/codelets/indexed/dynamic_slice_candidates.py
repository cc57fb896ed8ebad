"""Dynamic slice from ranges: each tile gives the elements that it has."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.placing import line_of_starts
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, Sizes, Tensor, Tensors
from hloipu_runtime.codelets.indexed.dynamic_slice import (
    DynamicSlice,
    widened,
    window_dimensions,
    window_work,
    with_ones,
)
from hloipu_runtime.codelets.indexed.gather import candidates
from hloipu_runtime.codelets.indexed.gather_parts import Places
from hloipu_runtime.codelets.indexed.or_bits import OrBits
from hloipu_runtime.codelets.indexed.ranges import agreed_starts, clamped
from hloipu_runtime.codelets.ops.move import every_dimension
from hloipu_runtime.kernels.core import movement
from hloipu_runtime.kernels.gather import GatherDimensions
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine


@codelet
class DynamicSliceCandidates(Codelet):
    """Takes, of a window, what falls into each range of `block` elements along one dimension.

    Operands as of `DynamicSlice`. The result has a leading dimension, one entry for each range:
    the window, with all bits of the elements in other ranges zero. `OrBits` puts it together.
    """

    name: ClassVar[str] = "dynamic-slice-candidates"
    dimension: int
    block: int
    dropped: Sizes = ()
    """As of `DynamicSlice`."""

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Split the ranges, and the window as `DynamicSlice` does."""
        shape = results[0].shape
        source = [
            ALL if index.label < 0 else Index(1 + index.label)
            for index in window_dimensions(operands[0].shape, shape[1:], self.dropped)
        ]
        source[self.dimension] = Index(0, self.block, 0, self.block)
        return Indexing(
            shape, (tuple(source), *((),) * (len(operands) - 1)), (every_dimension(len(shape)),)
        )

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Take the window as if all lay in the tile's range, and keep what does."""
        source, scalars = operands[0], operands[1:]
        result = widened(results[0], tuple(1 + d for d in self.dropped))
        sizes, rank = result.whole[1:], len(result.grid)
        at = agreed_starts(scalars, source.whole, sizes)
        if at is not None and self._splits_no_indexed(source, result):
            return [self._as_result(self._from_few_ranges(source, result, at), results[0])]
        dims = GatherDimensions(tuple(range(len(sizes))), (), tuple(range(len(sizes))), 0)
        columns = {
            d: np.atleast_1d(clamped(scalar.data, source.whole[d], sizes[d]))
            for d, scalar in enumerate(scalars)
        }
        columns = {d: c.reshape(c.shape[c.ndim - rank :]) for d, c in columns.items()}
        shape = np.broadcast_shapes((1,) * rank, *(c.shape for c in columns.values()))
        places = Places(columns, shape, rank)
        offers = candidates(dims, sizes, places, (self.dimension, self.block), source, result)
        return [self._as_result(offers, results[0])]

    def _as_result(self, offers: Array, result: Block) -> Array:
        """Return offers without the dimensions that the result lacks."""
        return offers.reshape(*offers.shape[: len(result.grid)], *result.part)

    def _splits_no_indexed(self, source: Block, result: Block) -> bool:
        """Whether tiles offer all of the window along the dimensions that it is shorter in."""
        return all(
            part == size or (d != self.dimension and size == whole)
            for d, (part, size, whole) in enumerate(
                zip(result.part[1:], result.whole[1:], source.whole, strict=True)
            )
        )

    def _from_few_ranges(self, source: Block, result: Block, at: Sequence[int]) -> Array:
        """Copy from the ranges that the window meets to their entries; all others are zero."""
        out = result.array
        if out is None:
            out = np.zeros((*result.grid, *result.part), source.data.dtype)
        else:
            out[...] = 0
        d, place, length = self.dimension, at[self.dimension], result.part[1 + self.dimension]
        axis, entries = line_of_starts(result, 0)
        begins = line_of_starts(source, d)[1]
        for number in range(place // self.block, -(-(place + length) // self.block)):
            holder = int(np.searchsorted(entries, number, "right")) - 1
            entry = number - int(entries[holder])
            if holder < 0 or entry >= result.part[0]:
                continue
            low = max(place, number * self.block)
            high = min(place + length, (number + 1) * self.block)
            begin = int(begins[holder if axis >= 0 else 0])
            grid = [slice(None)] * len(result.grid)
            if axis >= 0:
                grid[axis] = slice(holder, holder + 1)
            taken = [
                slice(None) if size == whole else slice(start, start + size)
                for start, size, whole in zip(at, result.whole[1:], source.whole, strict=True)
            ]
            kept = [slice(None)] * len(at)
            taken[d], kept[d] = slice(low - begin, high - begin), slice(low - place, high - place)
            window = source.data[movement.index_of([*grid, *taken])]
            target = out[movement.index_of([*grid, slice(entry, entry + 1), *kept])]
            target[...] = np.expand_dims(window, len(grid))
        return out

    def combined_with(
        self, combine: Codelet, others: Sequence[Array | None]
    ) -> tuple[Codelet, int] | None:
        """With `OrBits` behind it, this is a dynamic slice."""
        return (DynamicSlice(self.dropped), 0) if isinstance(combine, OrBits) else None

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Charge the window as if all lay in the tile's range: where it is, data decides."""
        shape = with_ones(results[0].shape[1:], self.dropped)
        most = tuple(map(min, shape, operands[0].shape))
        return window_work(machine, Tensor(results[0].element_type, most), operands[0].shape)
