"""Vertex groups on tile memories: one kernel call for each size class."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.straight import Straight, calls_on_arrays
from hloipu_runtime.codelets.core.tensors import Block
from hloipu_runtime.kernels.core.blocks import put
from hloipu_runtime.kernels.core.movement import copy_into
from hloipu_runtime.program.mapping import Span, Spans
from hloipu_runtime.program.program import Array
from hloipu_runtime.program.steps import Operand, VertexGroup
from hloipu_runtime.simulate.exact.classes import GridSlice, Part, SizeClass, size_classes
from hloipu_runtime.simulate.exact.moving import MovingMemory
from hloipu_runtime.simulate.exact.storage import TileStorage
from hloipu_runtime.simulate.exact.zero_ends import computed_share, is_cut_off, with_zero_ends
from hloipu_runtime.simulate.run.faults import TileFault
from hloipu_runtime.simulate.run.pool import Scratch

Action = Callable[[], object]

FEW_ELEMENTS = 1 << 14
"""Of results: of more, starting calls takes little of the time, and constants are not kept
(assumed)."""

MOST_OF_WHOLE = 1.25
"""Most of a tensor's elements that its parts may hold, unused ends included, to be computed on."""

ELEMENTS_OF_A_CALL = 1 << 12
"""More of them are computed on where that saves a call of a codelet for each so many (assumed)."""


class GroupCall(NamedTuple):
    """A call of a group's codelet: on a size class of tiles, or on all of them."""

    blocks: Sequence[Block]
    """Of the operands, then of the results."""
    moving: Sequence[MovingMemory | None]
    """Of each block: the memory that it lies in, if that moves."""
    before: Sequence[Action] = ()


def prepare_group(
    group: VertexGroup,
    inputs: Sequence[TileStorage],
    outputs: Sequence[TileStorage],
    scratch: Scratch,
) -> list[Action]:
    """Return the actions that compute a group, one call after the other.

    What stands between them is in `scratch`. Raises TileFault for parts that are not there.
    """
    calls = calls_of(group, inputs, outputs)
    return [action for call in calls for action in (*call.before, *_actions(group, call, scratch))]


def calls_of(
    group: VertexGroup, inputs: Sequence[TileStorage], outputs: Sequence[TileStorage]
) -> list[GroupCall]:
    """Return the calls that compute a group, one size class of tiles after the other."""
    operands = (*group.inputs, *group.outputs)
    storages = (*inputs, *outputs)
    for operand, storage in zip(operands, storages, strict=True):
        if storage.mapping.tiles != group.tiles:
            tiles = storage.mapping.tiles
            raise TileFault(
                group.name,
                f"variable {operand.variable} lies on {tiles.count} tiles from {tiles.first}, "
                f"its vertices on {group.tiles.count} from {group.tiles.first}",
            )
    classes = size_classes(
        group.tiles,
        [operand.spans for operand in operands],
        [storage.shape for storage in storages],
    )
    if all(map(_reads_all_it_has, operands, storages)):
        zeros = [
            [d for d in group.codelet.zero_ends(number) if is_cut_off(storage, d)]
            for number, storage in enumerate(inputs)
        ]
        zeros += [[] for _ in outputs]
        if _may_be_whole(group.codelet, storages, zeros, len(classes)):
            return [_whole_call(group.codelet, storages, zeros)]
    moving = [storage.moving for storage in storages]
    return [
        GroupCall(blocks, moving)
        for blocks in (_class_blocks(group, each, storages) for each in classes)
        if not all(0 in block.part for block in blocks[len(group.inputs) :])
    ]


def _reads_all_it_has(operand: Operand, storage: TileStorage) -> bool:
    return operand.spans == storage.mapping.spans


def _may_be_whole(
    codelet: Codelet, storages: Sequence[TileStorage], zeros: Sequence[Sequence[int]], classes: int
) -> bool:
    """Whether computing on unused ends of parts is harmless, and little more work.

    Memory that moves has no such ends, but where it is copied to get zeros there.
    """
    unused = [[is_cut_off(storage, d) for d in range(len(storage.shape))] for storage in storages]
    for storage, ends, dimensions in zip(storages, unused, zeros, strict=True):
        if storage.moving is not None and any(ends) and not dimensions:
            return False
        for d in dimensions:
            ends[d] = False
    if codelet.whole_parts or not codelet.ignores(unused):
        return codelet.whole_parts
    share = computed_share(storages)
    most = max(prod(storage.shape) for storage in storages)
    return share <= MOST_OF_WHOLE or (share - 1) * most <= (classes - 1) * ELEMENTS_OF_A_CALL


def _whole_call(
    codelet: Codelet, storages: Sequence[TileStorage], zeros: Sequence[Sequence[int]]
) -> GroupCall:
    """Return the call that computes on whole parts, their unused ends included."""
    actions: list[Action] = []
    moving: list[MovingMemory | None] = [storage.moving for storage in storages]
    blocks = []
    for number, (storage, dimensions) in enumerate(zip(storages, zeros, strict=True)):
        mapping = storage.mapping
        starts = tuple(
            _starts(mapping.spans, d, tuple((0, n) for n in mapping.tiles.extents), 0)
            for d in range(len(mapping.spans))
        )
        parts = storage.tiles
        if dimensions:
            parts, before = with_zero_ends(storage, dimensions, codelet.end_value(parts.dtype))
            actions += before
            moving[number] = None
        blocks.append(Block(parts, mapping.tiles.extents, mapping.block, starts, storage.shape))
    return GroupCall(blocks, moving, actions)


def _class_blocks(
    group: VertexGroup, chosen: SizeClass, storages: Sequence[TileStorage]
) -> list[Block]:
    return [
        _block(group, operand, storage, chosen.grid, part)
        for operand, storage, part in zip(
            (*group.inputs, *group.outputs), storages, chosen.parts, strict=True
        )
    ]


def _actions(group: VertexGroup, call: GroupCall, scratch: Scratch) -> list[Action]:
    """Return a group's codelet on blocks: as calls on their arrays where these may be told."""
    blocks, moving = call.blocks, call.moving
    operands, results = blocks[: len(group.inputs)], blocks[len(group.inputs) :]
    prepared = group.codelet.on_arrays(operands, results)
    moves = {number for number, memory in enumerate(moving) if memory is not None}
    if prepared is not None and moves <= {*prepared.blocks}:  # it looks anew at all that moves
        for at, number in enumerate(prepared.blocks):
            memory = moving[number]
            if memory is not None:
                memory.follow(prepared.arrays, at)
        return [prepared.run]
    if moves:
        return [_action(group, blocks, moving)]
    targets = [block.data for block in results]
    same = same_in_each_run(group.codelet, operands, results)
    if same is not None:
        return [partial(copy_into, *pair) for pair in zip(targets, same, strict=True)]
    straight = straight_on_tiles(group.codelet, operands, results)
    if straight is None:
        return [_action(group, blocks, moving)]
    arrays = [block.data for block in operands]
    calls = calls_on_arrays(straight, arrays, targets, scratch.take)
    scratch.next_call()
    return calls


def same_in_each_run(
    codelet: Codelet, operands: Sequence[Block], results: Sequence[Block]
) -> Sequence[Array] | None:
    """Return results that are views of the operand, or constants that are no more than numbers."""
    if operands and not codelet.rearranges:
        return None
    if not operands and not _are_few(results):
        return None
    arrays = codelet.run(operands, [block._replace(array=None) for block in results])
    is_seen = not operands or np.may_share_memory(arrays[0], operands[0].data)
    return arrays if is_seen else None


def _are_few(results: Sequence[Block]) -> bool:
    return sum(block.data.size for block in results) <= FEW_ELEMENTS


def straight_on_tiles(
    codelet: Codelet, operands: Sequence[Block], results: Sequence[Block]
) -> Straight | None:
    """Return a codelet as calls on the arrays of blocks; None where it is to be called as such."""
    is_fit = codelet.prepares_large or _are_few(results)
    straight = codelet.straight_on_grid(operands, results) if is_fit else None
    if straight is None or not straight.needs_row_major:
        return straight
    arrays = [block.data for block in operands]
    shape = results[0].data.shape
    return straight if all(x.flags.c_contiguous for x in arrays if x.shape == shape) else None


def _action(
    group: VertexGroup, blocks: Sequence[Block], moving: Sequence[MovingMemory | None]
) -> Action:
    """Return a call of a group's codelet on blocks, some of whose memories may move."""
    count = len(group.inputs)
    operands = [block.data for block in blocks[:count]]
    targets = [block.array for block in blocks[count:]]
    compute = partial(group.codelet.bound(blocks[:count], blocks[count:]), operands, targets)
    for number, memory in enumerate(moving):
        if memory is not None:
            memory.follow(*((operands, number) if number < count else (targets, number - count)))
    if len(targets) == 1:
        copyto = np.copyto

        def run_one() -> None:
            computed, place = compute()[0], targets[0]
            if computed is not place and place is not None:
                copyto(place, computed)

        return run_one

    def run() -> None:
        put(targets, compute())

    return run


def _starts(spans: Spans, dimension: int, grid: GridSlice, cut: int) -> Array | int:
    span = spans[dimension]
    if span.axis < 0:
        return span.offset + cut
    low, high = grid[span.axis]
    shape = [1] * len(grid)
    shape[span.axis] = high - low
    return (np.arange(low, high) * span.step + span.offset + cut).reshape(shape)


def _slopes(read: Span, own: Span) -> list[tuple[int, int]]:
    """Return (grid axis, by how much the read part moves along it within the held one)."""
    if read.axis == own.axis:
        return [(read.axis, read.step - own.step)] if read.axis >= 0 else []
    both = ((read.axis, read.step), (own.axis, -own.step))
    return [(axis, slope) for axis, slope in both if axis >= 0]


def _block(
    group: VertexGroup, operand: Operand, storage: TileStorage, grid: GridSlice, part: Part
) -> Block:
    """Return an operand's parts on a class of tiles, as a view of their memories."""
    rank = len(grid)
    here: tuple[Any, ...] = tuple(slice(low, high) for low, high in grid)
    array = storage.tiles[(*here, ...)]
    strides = list(array.strides)
    offset = [0] * len(operand.spans)
    for dimension, (read, own) in enumerate(zip(operand.spans, storage.mapping.spans, strict=True)):
        # Where the read part begins within the part that the tile holds: affine in the coordinates.
        begin = read.offset - own.offset + part.cut[dimension]
        low = high = 0
        for axis, slope in _slopes(read, own):
            first, last = grid[axis][0], grid[axis][1] - 1
            begin += first * slope
            low += min(0, (last - first) * slope)
            high += max(0, (last - first) * slope)
            strides[axis] += slope * strides[rank + dimension]
        size = part.sizes[dimension]
        if size and (begin + low < 0 or begin + high + size > own.size):
            raise TileFault(
                group.name,
                f"variable {operand.variable}, dimension {dimension}: elements {begin + low} to "
                f"{begin + high + size} of a part of {own.size} on its tile",
            )
        offset[dimension] = begin if size else 0
    origin: tuple[Any, ...] = tuple(slice(o, None) for o in offset)
    corner = array[(*(slice(None),) * rank, *origin, ...)]
    shape = tuple(high - low for low, high in grid) + part.sizes
    if 0 in shape:
        view = np.empty(shape, array.dtype)
    else:
        view = as_strided(corner, shape, strides, writeable=array.flags.writeable)
    starts = tuple(_starts(operand.spans, d, grid, part.cut[d]) for d in range(len(operand.spans)))
    return Block(view, shape[:rank], part.sizes, starts, storage.shape)
