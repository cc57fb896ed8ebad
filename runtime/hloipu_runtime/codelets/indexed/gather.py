"""Gather: slices picked by an index operand."""

from collections.abc import Sequence
from math import ceil
from typing import Any, ClassVar

import numpy as np

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.placing import (
    Box,
    box_of_parts,
    delivered,
    follows,
    is_whole,
    line_of_starts,
)
from hloipu_runtime.codelets.core.straight import Straight, one_call
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, Bound, Sizes, Tensor, Tensors
from hloipu_runtime.codelets.costs.moving import NO_WORK, multi_slice_slots, repeats_work
from hloipu_runtime.codelets.indexed.gather_parts import (
    Places,
    batch_dimensions,
    gather_parts,
    local_dims,
    offsets,
    places_of,
)
from hloipu_runtime.codelets.indexed.or_bits import OrBits
from hloipu_runtime.codelets.ops.move import every_dimension
from hloipu_runtime.kernels.gather import GatherDimensions, clamp_starts, gather, gathering
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork, single_vertices_cycles
from hloipu_runtime.machine.model import Machine

_SKIPPED_SLOTS = 8
"""Of a worker, for a slice elsewhere (graphcore/poplibs: lib/popops/PerformanceEstimation.cpp)."""


@codelet
class Gather(Codelet):
    """Picks the slice at each index vector; starts are clamped. Operands: table, indices."""

    name: ClassVar[str] = "gather"
    is_compiled: ClassVar[bool] = True
    dims: GatherDimensions
    slice_sizes: Sizes

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Split the result in any way, the indices with it, and the table where slices are whole.

        Dimensions that the indices walk along are whole on each tile.
        """
        shapes = operands[0].shape, operands[1].shape
        shape = results[0].shape
        source = _operand_indices(self.dims, self.slice_sizes, *shapes)
        return Indexing(shape, source, (every_dimension(len(shape)),))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Gather on all tiles at once."""
        table, indices = operands
        (result,) = results
        if is_whole(result) and is_whole(table):
            gathered = gather(table.data, indices.data, self.dims, self.slice_sizes)
            return [delivered(gathered, result)]
        places = places_of(self.dims, self.slice_sizes, indices, table.whole)
        sizes = _shift_to_parts(self.dims, self.slice_sizes, places, table, result)
        gathered = _gather_at(table, places, self.dims, sizes)
        return [delivered(np.broadcast_to(gathered, (*result.grid, *result.part)), result)]

    def bound(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run`; tiles that make up one box, each with what it takes, are as one."""
        general = super().bound(operands, results)
        if not results[0].grid or any(block.array is None for block in (*operands, *results)):
            return general
        target = box_of_parts(results[0])
        table, places = (box_of_parts(block, shared=True) for block in operands)
        if target is None or table is None or places is None:
            return general
        boxes = table[1], places[1]
        if not _have_their_slices(
            self.dims, self.slice_sizes, operands, results[0], boxes, target[1]
        ):
            return general
        shape, indices_shape = (
            tuple(high - low for low, high in box) for _, box in (table, places)
        )
        sizes = tuple(map(min, self.slice_sizes, shape))
        take = gathering(shape, indices_shape, self.dims, sizes)
        box_of_result, box_of_table, box_of_places = target[0], table[0], places[0]

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> Sequence[Array]:
            out = outs[0]
            if out is None:
                return general(arrays, outs)
            box_of_result(out)[...] = take(box_of_table(arrays[0]), box_of_places(arrays[1]))
            return [out]

        return run

    def straight(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return the gather as one call; of whole slices alone it is a view."""
        table, indices = operands[0].part, operands[1].part
        function = gathering(table, indices, self.dims, self.slice_sizes)
        indexed = (*self.dims.start_index_map, *self.dims.operand_batching_dims)
        is_fresh = any(table[d] != self.slice_sizes[d] for d in indexed)
        return one_call(function, 2, results[0].part, is_fresh=is_fresh)

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Charge the slices, dealt to the workers."""
        return _slices_work(machine, self.dims, operands, results[0], results[0].shape)


@codelet
class GatherCandidates(Codelet):
    """Picks, of each slice, what falls into each range of `block` elements of one table dimension.

    Operands as of `Gather`. The result has a leading dimension, one entry for each range: what
    `Gather` gives, with all bits of the elements in other ranges zero. `OrBits` puts it together.
    """

    name: ClassVar[str] = "gather-candidates"
    dims: GatherDimensions
    slice_sizes: Sizes
    dimension: int
    block: int
    ranges: int = 0
    """Number of ranges, over which slices are taken to be spread evenly; 0: all fall into each."""

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Split the ranges, and all else as `Gather` does."""
        table, indices = operands[0].shape, operands[1].shape
        shape = results[0].shape
        source, places = _operand_indices(self.dims, self.slice_sizes, table, indices, first=1)
        ranges = list(source)
        ranges[self.dimension] = Index(0, self.block, 0, self.block)
        return Indexing(shape, (tuple(ranges), places), (every_dimension(len(shape)),))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Gather as if all lay in the tile's range, and keep what does."""
        table, indices = operands
        places = places_of(self.dims, self.slice_sizes, indices, table.whole)
        return [
            candidates(
                self.dims, self.slice_sizes, places, (self.dimension, self.block), table, results[0]
            )
        ]

    def bound(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run`; tiles that make up one box, each with its range of the table, are as one.

        Slices of one element along the ranges are gathered once and go to the entry of the range
        that they lie in; longer ones, which several ranges may have parts of, are not.
        """
        general = super().bound(operands, results)
        (result,), dims, d = results, self.dims, self.dimension
        if not result.grid or any(block.array is None for block in (*operands, result)):
            return general
        target = box_of_parts(result)
        table, places = (box_of_parts(block, shared=True) for block in operands)
        if target is None or table is None or places is None:
            return general
        axis, entries = line_of_starts(result, 0)
        holders, begins = line_of_starts(operands[0], d)
        if (
            self.slice_sizes[d] != 1
            or d not in dims.start_index_map
            or axis != holders
            or begins.tolist() != (entries * self.block).tolist()
        ):
            return general
        slices = result._replace(
            part=result.part[1:], starts=result.starts[1:], whole=result.whole[1:]
        )
        boxes = table[1], places[1]
        if not _have_their_slices(
            dims, self.slice_sizes, operands, slices, boxes, target[1][1:], ranges=d
        ):
            return general
        shape, indices_shape = (tuple(high - low for low, high in box) for box in boxes)
        take = gathering(shape, indices_shape, dims, tuple(map(min, self.slice_sizes, shape)))
        (low, high), first, length = table[1][d], target[1][0][0], operands[0].whole[d]
        vector_dim = dims.index_vector_dim
        column: tuple[Any, ...] = (slice(None),) * vector_dim
        if vector_dim < len(indices_shape):
            column = (*column, dims.start_index_map.index(d))
        batch = [n for n in range(len(slices.part)) if n not in dims.offset_dims]
        if not batch:
            return general  # of one vector there is nothing to choose from
        batch_first = (*batch, *dims.offset_dims)
        entries_first = (0, *(1 + n for n in batch_first))
        box_of_result, box_of_table, box_of_places = target[0], table[0], places[0]
        sizes = [high - low for low, high in target[1][1:]]
        everywhere = np.indices([sizes[n] for n in batch], sparse=True)
        has_all = (low, high) == (0, length)

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> Sequence[Array]:
            out = outs[0]
            if out is None:
                return general(arrays, outs)
            out.fill(0)
            indices = box_of_places(arrays[1])
            rows = clamp_starts(indices[column], length - 1)
            if has_all:
                picked = take(box_of_table(arrays[0]), indices).transpose(batch_first)
                entry = rows // self.block - first
                box_of_result(out).transpose(entries_first)[(entry, *everywhere)] = picked
                return [out]
            inside = np.nonzero((rows >= low) & (rows < high))
            if inside[0].size:
                local = np.array(indices, np.int64)
                local[column] = rows - low
                picked = take(box_of_table(arrays[0]), local).transpose(batch_first)
                entry = rows[inside] // self.block - first
                box_of_result(out).transpose(entries_first)[(entry, *inside)] = picked[inside]
            return [out]

        return run

    def combined_with(
        self, combine: Codelet, others: Sequence[Array | None]
    ) -> tuple[Codelet, int] | None:
        """With `OrBits` behind it, this is a gather."""
        return (Gather(self.dims, self.slice_sizes), 0) if isinstance(combine, OrBits) else None

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Charge the slices that lie in the tile's ranges, a look at the others, and zeros.

        Where slices lie, data decides. That they lie evenly is what poplibs's planner assumes
        (include/popops/DynamicSlice.hpp: indicesDistribution).
        """
        slices, share = results[0].shape[1:], 1.0
        filling = NO_WORK
        if self.ranges:
            share = min(1.0, results[0].shape[0] / self.ranges)
            filling = repeats_work(machine, results[0].element_type, 1, results[0].elements)
        work = _slices_work(machine, self.dims, operands, results[0], slices, share)
        return TileWork(work.cycles + filling.cycles, work.assumed_cycles + filling.assumed_cycles)


def candidates(
    dims: GatherDimensions,
    slice_sizes: Sizes,
    places: Places,
    ranges: tuple[int, int],
    table: Block,
    result: Block,
) -> Array:
    """Return what `GatherCandidates` does; `ranges` are its dimension and block."""
    dimension, block = ranges
    rank = len(table.grid)
    slices = Block(None, result.grid, result.part[1:], result.starts[1:], result.whole[1:])
    sizes = list(_shift_to_parts(dims, slice_sizes, places, table, slices, dimension))
    places.shifted(dimension, -np.asarray(table.starts[dimension], np.int64))
    columns = {d: column[..., np.newaxis] for d, column in places.columns.items()}
    elements = columns[dimension] + np.arange(sizes[dimension])
    columns[dimension] = np.clip(elements, 0, max(0, table.part[dimension] - 1))
    singles = Places(columns, (*places.shape, sizes[dimension]), rank)
    sizes[dimension] = 1
    one_by_one, order = _one_by_one(dims, dimension, len(table.part), places.batch_rank)
    axes = (*range(rank), *(rank + d for d in order))
    picked = _gather_at(table, singles, one_by_one, sizes).transpose(axes)
    entry = elements // block
    entry = entry.reshape(entry.shape + (1,) * (picked.ndim - entry.ndim)).transpose(axes)
    if dimension in dims.collapsed_slice_dims:
        picked, entry = picked[..., 0], entry[..., 0]
    shape = (*result.grid, *result.part)
    out = np.empty(shape, picked.dtype) if result.array is None else result.array
    out[...] = 0
    entries = np.arange(result.part[0]).reshape(-1, *(1 for _ in slices.part))
    here = np.expand_dims(entry, rank) == entries
    np.copyto(out, np.expand_dims(picked, rank), where=here)
    return out


def _have_their_slices(
    dims: GatherDimensions,
    sizes: Sizes,
    operands: Blocks,
    result: Block,
    boxes: tuple[Box, Box],
    box: Box,
    ranges: int = -1,
) -> bool:
    """Whether each tile has the places of its slices, and all of the table that they reach.

    `boxes` are those of table and indices, `box` is that of the result. Of the table's dimension
    `ranges` tiles need not have all.
    """
    table, indices = operands
    leaders = dict(batch_dimensions(dims, len(indices.part)))
    of_slices = {offset.table: offset.result for offset in offsets(dims, len(sizes))}
    reached = {d: place for d, place in of_slices.items() if sizes[d] == table.whole[d]}
    if any(box[of_slices[d]] != (0, sizes[d]) for d in of_slices.keys() - reached.keys()):
        return False  # parts of slices that start anywhere
    batching = zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True)
    reached |= {d: leaders[place] for d, place in batching}
    return all(
        (block is table and d == ranges)
        or (
            mine[d] == box[followed[d]] and follows(block, d, result, followed[d])
            if d in followed
            else block.part[d] == block.whole[d]
        )
        for block, mine, followed in zip(operands, boxes, (reached, leaders), strict=True)
        for d in range(len(block.part))
    )


def _one_by_one(
    dims: GatherDimensions, dimension: int, table_rank: int, batch_rank: int
) -> tuple[GatherDimensions, tuple[int, ...]]:
    """Return a gather of single elements along a dimension, these the last of the batch.

    Its result has the batch first. Returned too is the order that makes of its dimensions those
    of the result; elements of a collapsed dimension come last.
    """
    pairs = offsets(dims, table_rank)
    others = [pair for pair in pairs if pair.table != dimension]
    collapsed = {*dims.collapsed_slice_dims, dimension}
    gathered = GatherDimensions(
        tuple(batch_rank + 1 + n for n in range(len(others))),
        tuple(sorted(collapsed)),
        dims.start_index_map,
        dims.index_vector_dim,
        dims.operand_batching_dims,
        dims.start_indices_batching_dims,
    )
    order = [-1] * (batch_rank + len(pairs))
    for pair in pairs:
        order[pair.result] = (
            batch_rank if pair.table == dimension else batch_rank + 1 + others.index(pair)
        )
    batch = iter(range(batch_rank))
    order = [next(batch) if source < 0 else source for source in order]
    if len(others) == len(pairs):
        order.append(batch_rank)
    return gathered, tuple(order)


def _gather_at(
    table: Block, places: Places, dims: GatherDimensions, slice_sizes: Sequence[int]
) -> Array:
    rank = len(table.grid)
    return gather_parts(table.data, places.vectors(), rank, local_dims(dims, places), slice_sizes)


def _shift_to_parts(
    dims: GatherDimensions,
    slice_sizes: Sizes,
    places: Places,
    table: Block,
    result: Block,
    ranges: int = -1,
) -> Sizes:
    """Move places on to where each tile's part of a slice begins; return the parts' sizes.

    Where slices are whole, the table's part is that of the slice, but in the dimension `ranges`.
    """
    sizes = list(slice_sizes)
    for d, place in offsets(dims, len(table.part)):
        sizes[d] = result.part[place]
        is_followed = slice_sizes[d] == table.whole[d] and d != ranges
        if sizes[d] != slice_sizes[d] and not is_followed:
            places.shifted(d, result.starts[place])
    return tuple(sizes)


def _operand_indices(
    dims: GatherDimensions, slice_sizes: Sizes, table: Sizes, indices: Sizes, first: int = 0
) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
    """Return how table and indices follow the result's dimensions, the first of them `first`."""
    source, places = [ALL] * len(table), [ALL] * len(indices)
    for offset in offsets(dims, len(table)):
        if slice_sizes[offset.table] == table[offset.table]:
            source[offset.table] = Index(first + offset.result)
    batching = dict(zip(dims.start_indices_batching_dims, dims.operand_batching_dims, strict=True))
    for d, place in batch_dimensions(dims, len(indices)):
        places[d] = Index(first + place)
        if d in batching:
            source[batching[d]] = Index(first + place)
    return tuple(source), tuple(places)


def _slices_work(
    machine: Machine,
    dims: GatherDimensions,
    operands: Tensors,
    result: Tensor,
    slices: Sizes,
    share: float = 1.0,
) -> TileWork:
    """Return the work of copying slices, each in its contiguous pieces, dealt to the workers.

    `share` of them lie in the part of the table; workers look at the others in vain.
    """
    table = operands[0]
    if not result.elements or not Tensor("", slices).elements:
        return NO_WORK
    sizes = [1] * len(table.shape)
    for offset in offsets(dims, len(table.shape)):
        sizes[offset.table] = slices[offset.result]
    run = 1
    for size, whole in zip(reversed(sizes), reversed(table.shape), strict=True):
        run *= size
        if size != whole:
            break
    pieces = Tensor("", slices).elements // run
    each = over(pieces, machine.tile.worker_contexts)
    there = min(each, ceil(each * share))
    slots = 30 + there * multi_slice_slots(machine, result.element_type, run)
    slots += (each - there) * _SKIPPED_SLOTS
    count = min(pieces, machine.tile.worker_contexts)
    cycles = single_vertices_cycles(machine, [(count, slots)])
    one_piece = run == Tensor("", tuple(sizes)).elements
    return TileWork(cycles, 0 if one_piece else cycles)
