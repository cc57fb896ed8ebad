"""Codelets that take or replace a window whose place is known at run time only.

Operands that say where are scalars, one for each dimension, on every tile. No tile sends what its
data decides: a dimension that is indexed lies whole on each tile, or each tile holds a range of it
and works on what falls into that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from hloipu_runtime.codelets.codelet import (
    ALL,
    Array,
    Block,
    Codelet,
    Index,
    Indexing,
    Sizes,
    Tensor,
    codelet,
)
from hloipu_runtime.codelets.gather import candidates
from hloipu_runtime.codelets.gather_parts import Places
from hloipu_runtime.codelets.move import every_dimension
from hloipu_runtime.codelets.moving_costs import NO_WORK, packed_bytes
from hloipu_runtime.codelets.or_bits import OrBits
from hloipu_runtime.codelets.placing import (
    delivered,
    first_start,
    is_whole,
    line_of_starts,
    owned_copy,
    same_memory,
)
from hloipu_runtime.codelets.ranges import (
    Stretch,
    Walk,
    agreed_starts,
    clamped,
    moving_window,
    stretches,
)
from hloipu_runtime.kernels import movement
from hloipu_runtime.kernels.gather import GatherDimensions
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork, rearrange_on_tile, shared_vertex_cycles
from hloipu_runtime.machine.model import Machine

SUPERVISOR_CYCLES = 25
"""Of a vertex that slices where the data says."""


@codelet
@dataclass(frozen=True)
class DynamicSlice(Codelet):
    """Takes the window of the result's size. Operands: data, one start for each dimension."""

    name: ClassVar[str] = "dynamic-slice"

    def indexing(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Indexing:
        """Split the result in any way; the operand only in dimensions that are taken whole."""
        whole, shape = operands[0].shape, results[0].shape
        return Indexing(
            shape,
            (_whole_dimensions(whole, shape), *((),) * (len(operands) - 1)),
            (every_dimension(len(shape)),),
        )

    def run(self, operands: Sequence[Block], results: Sequence[Block]) -> list[Array]:
        """Return a view, moving on from tile to tile where tiles hold parts of the window."""
        source, scalars, result = operands[0], operands[1:], results[0]
        if is_whole(result):
            at = [scalar.data for scalar in scalars]
            return [delivered(movement.dynamic_slice(source.data, at, result.part), result)]
        told = agreed_starts(scalars, source.whole, result.whole)
        if told is None:
            return [_by_place(self.run, operands, results, result.whole)]
        return [delivered(_window_of(source, result, told), result)]

    def work(
        self, machine: Machine, operands: Sequence[Tensor], results: Sequence[Tensor]
    ) -> TileWork:
        """Charge moving the result's elements."""
        return window_work(machine, results[0], operands[0].shape)


@codelet
@dataclass(frozen=True)
class DynamicUpdateSlice(Codelet):
    """Replaces a window. Operands: data, window, one start for each dimension.

    Each tile replaces what falls into its range of the data. The work is that of doing it in
    place; who still needs the data as it was copies it first.
    """

    name: ClassVar[str] = "dynamic-update-slice"
    overwrites_a_part: ClassVar[bool] = True

    def indexing(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Indexing:
        """Split every dimension; the window only where it is as long as the data."""
        shape, window = results[0].shape, operands[1].shape
        every = every_dimension(len(shape))
        scalars = ((),) * (len(operands) - 2)
        return Indexing(shape, (every, _whole_dimensions(window, shape), *scalars), (every,))

    def run(self, operands: Sequence[Block], results: Sequence[Block]) -> list[Array]:
        """Write each tile's share of the window."""
        source, window, scalars, result = operands[0], operands[1], operands[2:], results[0]
        if is_whole(source):
            at = [scalar.data for scalar in scalars]
            place = result.array
            if place is not None and same_memory(place, source.data):
                place = source.data
            return [movement.dynamic_update_slice(source.data, window.data, at, place)]
        told = agreed_starts(scalars, source.whole, window.whole)
        if told is None:
            return [_by_place(self.run, operands, results, window.whole)]
        out = owned_copy(source, result)
        _write_window(out, source, window, told)
        return [out]

    def work(
        self, machine: Machine, operands: Sequence[Tensor], results: Sequence[Tensor]
    ) -> TileWork:
        """Charge moving the window's elements, as many as a tile can hold."""
        shape = results[0].shape
        most = tuple(map(min, operands[1].shape, shape))
        return window_work(machine, Tensor(results[0].element_type, most), shape)

    def may_overwrite(self, operand: int) -> bool:
        """In place, what is not replaced costs nothing."""
        return operand == 0


@codelet
@dataclass(frozen=True)
class DynamicSliceCandidates(Codelet):
    """Takes, of a window, what falls into each range of `block` elements along one dimension.

    Operands as of `DynamicSlice`. The result has a leading dimension, one entry for each range:
    the window, with all bits of the elements in other ranges zero. `OrBits` puts it together.
    """

    name: ClassVar[str] = "dynamic-slice-candidates"
    dimension: int
    block: int

    def indexing(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Indexing:
        """Split the ranges, and the window as `DynamicSlice` does."""
        shape = results[0].shape
        source = [
            ALL if index.label < 0 else Index(1 + index.label)
            for index in _whole_dimensions(operands[0].shape, shape[1:])
        ]
        source[self.dimension] = Index(0, self.block, 0, self.block)
        return Indexing(
            shape,
            (tuple(source), *((),) * (len(operands) - 1)),
            (every_dimension(len(shape)),),
        )

    def run(self, operands: Sequence[Block], results: Sequence[Block]) -> list[Array]:
        """Take the window as if all lay in the tile's range, and keep what does."""
        source, scalars, result = operands[0], operands[1:], results[0]
        sizes, rank = result.whole[1:], len(result.grid)
        at = agreed_starts(scalars, source.whole, sizes)
        if at is not None and self._splits_no_indexed(source, result):
            return [self._from_few_ranges(source, result, at)]
        dims = GatherDimensions(tuple(range(len(sizes))), (), tuple(range(len(sizes))), 0)
        columns = {
            d: np.atleast_1d(clamped(scalar.data, source.whole[d], sizes[d]))
            for d, scalar in enumerate(scalars)
        }
        columns = {d: c.reshape(c.shape[c.ndim - rank :]) for d, c in columns.items()}
        shape = np.broadcast_shapes((1,) * rank, *(c.shape for c in columns.values()))
        places = Places(columns, shape, rank)
        return [candidates(dims, sizes, places, (self.dimension, self.block), source, result)]

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
        return (DynamicSlice(), 0) if isinstance(combine, OrBits) else None

    def work(
        self, machine: Machine, operands: Sequence[Tensor], results: Sequence[Tensor]
    ) -> TileWork:
        """Charge the window as if all lay in the tile's range: where it is, data decides."""
        shape = results[0].shape[1:]
        most = tuple(map(min, shape, operands[0].shape))
        return window_work(machine, Tensor(results[0].element_type, most), operands[0].shape)


def window_work(machine: Machine, moved: Tensor, data: Sizes) -> TileWork:
    """Return the work of moving a window of `moved` between its own memory and data of a shape.

    Start-up, then each contiguous piece by all workers (graphcore/poplibs:
    lib/popops/popopsCycleEstimators.cpp, DynamicSlice1D), or one rearranging copy, assumed to be
    able to begin where the data says.
    """
    if not moved.elements:
        return NO_WORK
    run = 1
    for size, whole in zip(reversed(moved.shape), reversed(data), strict=True):
        run *= size
        if size != whole:
            break
    pieces = moved.elements // run
    piece_bytes = packed_bytes(moved.element_type, run)
    share = over(piece_bytes, machine.tile.worker_contexts)
    stores = over(share, machine.tile.store_bytes_per_cycle)
    direct = shared_vertex_cycles(machine, SUPERVISOR_CYCLES, 39 + (24 + 2 * stores) * pieces)
    moved_bytes = packed_bytes(moved.element_type, moved.elements)
    copied = SUPERVISOR_CYCLES + rearrange_on_tile(machine, moved_bytes, piece_bytes).cycles
    return TileWork(direct) if direct <= copied else TileWork(copied, copied)


def _whole_dimensions(some: Sizes, others: Sizes) -> tuple[Index, ...]:
    """Return an index for each dimension that is as long in both, and `ALL` for the others."""
    return tuple(
        Index(d) if size == other else ALL
        for d, (size, other) in enumerate(zip(some, others, strict=True))
    )


def _window_of(source: Block, result: Block, at: Sequence[int]) -> Array:
    """Return each tile's part of the window at a place that all tiles agree on."""
    rank = len(source.grid)
    first, walks = [0] * rank, []
    for d, place in enumerate(at):
        first.append(place + first_start(result, d) - first_start(source, d))
        axis, starts = line_of_starts(result, d)
        if axis >= 0 and source.whole[d] != result.whole[d]:
            step = int(starts[1] - starts[0])
            if np.any(np.diff(starts) != step):
                return _window_by_index(source, result, at)
            walks.append(Walk(axis, rank + d, step))
    shape = (*source.grid, *result.part)
    return _window_at(source.data, first, shape, walks)


def _window_by_index(source: Block, result: Block, at: Sequence[int]) -> Array:
    """Return each tile's part of the window where parts are not equally far apart."""
    rank, dimensions = len(source.grid), len(at)
    index: list[Array] = [
        np.arange(extent).reshape([-1 if e == axis else 1 for e in range(rank + dimensions)])
        for axis, extent in enumerate(source.grid)
    ]
    for d, place in enumerate(at):
        along = [-1 if e == d else 1 for e in range(dimensions)]
        begin = np.asarray(result.starts[d]) - np.asarray(source.starts[d]) + place
        begin = np.broadcast_to(begin, source.grid).reshape(*source.grid, *[1] * dimensions)
        index.append(begin + np.arange(result.part[d]).reshape(along))
    return np.asarray(source.data[tuple(index)])


def _write_window(out: Array, source: Block, window: Block, at: Sequence[int]) -> None:
    """Write, on every tile, what of the window falls into its range of the data."""
    rank = len(source.grid)
    axes, found = [], []
    for d, place in enumerate(at):
        if window.whole[d] == source.whole[d]:
            axes.append(-1)
            found.append([Stretch(slice(None), slice(None), 0, 0)])
            continue
        axis, starts = line_of_starts(source, d)
        axes.append(axis)
        found.append(stretches(starts, source.part[d], place, window.part[d]))
    for chosen in product(*found):
        grid, walks = [slice(None)] * rank, []
        for d, (axis, stretch) in enumerate(zip(axes, chosen, strict=True)):
            if axis >= 0:
                grid[axis] = stretch.coordinates
                if stretch.coordinates.stop - stretch.coordinates.start > 1:
                    walks.append(Walk(axis, rank + d, stretch.step))
        target = out[movement.index_of([*grid, *(s.local for s in chosen)])]
        first = [0] * rank + [s.position for s in chosen]
        here = window.data[movement.index_of(grid)]
        target[...] = _window_at(here, first, target.shape, walks)


def _window_at(
    x: Array, first: Sequence[int], shape: Sequence[int], walks: Sequence[Walk]
) -> Array:
    """Return the view of a shape that begins at `first`, moving on if it has to."""
    if walks:
        return moving_window(x, first, shape, walks)
    return x[movement.index_of(slice(at, at + n) for at, n in zip(first, shape, strict=True))]


def _by_place(
    run: Callable[[Sequence[Block], Sequence[Block]], list[Array]],
    operands: Sequence[Block],
    results: Sequence[Block],
    window: Sizes,
) -> Array:
    """Run once for each place that some tile was told, and keep what those tiles compute.

    A program that is right tells all tiles the same: this is for those that are not.
    """
    data, scalars = operands[: -len(window)], operands[-len(window) :]
    result, grid = results[0], operands[0].grid
    told = np.stack(
        [
            np.broadcast_to(clamped(scalar.data, whole, size), grid)
            for scalar, whole, size in zip(scalars, operands[0].whole, window, strict=True)
        ],
        axis=-1,
    )
    out = np.empty((*grid, *result.part), operands[0].data.dtype)
    for place in np.unique(told.reshape(-1, len(window)), axis=0):
        agreed = [
            scalar._replace(array=np.broadcast_to(at, grid))
            for scalar, at in zip(scalars, place, strict=True)
        ]
        (made,) = run([*data, *agreed], [result._replace(array=None)])
        mine = (told == place).all(axis=-1)
        out[mine] = made[mine]
    return delivered(out, result)
