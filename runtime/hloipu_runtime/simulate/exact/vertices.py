"""Vertex groups on tile memories: one kernel call for each size class."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hloipu_runtime.codelets.core.codelet import Block, Codelet
from hloipu_runtime.kernels.core.blocks import put
from hloipu_runtime.program.mapping import Span, Spans, extent_of
from hloipu_runtime.program.program import Array
from hloipu_runtime.program.steps import Operand, VertexGroup
from hloipu_runtime.simulate.exact.classes import GridSlice, Part, SizeClass, size_classes
from hloipu_runtime.simulate.exact.storage import TileStorage
from hloipu_runtime.simulate.run.faults import TileFault

Action = Callable[[], None]

MOST_OF_WHOLE = 1.25
"""Most of a tensor's elements that its parts may hold, unused ends included, to be computed on."""


def prepare_group(
    group: VertexGroup, inputs: Sequence[TileStorage], outputs: Sequence[TileStorage]
) -> list[Action]:
    """Return one action for each size class of a group; raises TileFault for parts not there."""
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
    if all(map(_reads_all_it_has, operands, storages)) and _may_be_whole(group.codelet, storages):
        return [_whole_action(group.codelet, inputs, outputs)]
    classes = size_classes(
        group.tiles,
        [operand.spans for operand in operands],
        [storage.shape for storage in storages],
    )
    return [_class_action(group, each, storages) for each in classes]


def _reads_all_it_has(operand: Operand, storage: TileStorage) -> bool:
    return operand.spans == storage.mapping.spans


def _may_be_whole(codelet: Codelet, storages: Sequence[TileStorage]) -> bool:
    """Whether computing on unused ends of parts is harmless, and little more work."""
    if codelet.whole_parts:
        return True
    unused = [[_is_cut_off(storage, d) for d in range(len(storage.shape))] for storage in storages]
    return codelet.ignores(unused) and all(
        prod(extent_of(storage.mapping.tiles, span) * span.size for span in storage.mapping.spans)
        <= MOST_OF_WHOLE * prod(storage.shape)
        for storage in storages
    )


def _is_cut_off(storage: TileStorage, dimension: int) -> bool:
    """Whether some part of a dimension goes beyond an end of it."""
    span = storage.mapping.spans[dimension]
    reach = (extent_of(storage.mapping.tiles, span) - 1) * span.step
    low, high = span.offset + min(0, reach), span.offset + max(0, reach) + span.size
    return low < 0 or high > storage.shape[dimension]


def _whole_action(
    codelet: Codelet, inputs: Sequence[TileStorage], outputs: Sequence[TileStorage]
) -> Action:
    """Return the action that computes on whole parts, their unused ends included."""

    def block(storage: TileStorage) -> Block:
        mapping = storage.mapping
        starts = tuple(
            _starts(mapping.spans, d, tuple((0, n) for n in mapping.tiles.extents), 0)
            for d in range(len(mapping.spans))
        )
        return Block(storage.tiles, mapping.tiles.extents, mapping.block, starts, storage.shape)

    return _action(
        codelet, [block(storage) for storage in inputs], [block(storage) for storage in outputs]
    )


def _class_action(group: VertexGroup, chosen: SizeClass, storages: Sequence[TileStorage]) -> Action:
    blocks = [
        _block(group, operand, storage, chosen.grid, part)
        for operand, storage, part in zip(
            (*group.inputs, *group.outputs), storages, chosen.parts, strict=True
        )
    ]
    results = blocks[len(group.inputs) :]
    if all(0 in block.part for block in results):
        return _nothing
    return _action(group.codelet, blocks[: len(group.inputs)], results)


def _nothing() -> None:
    pass


def _action(codelet: Codelet, inputs: list[Block], outputs: list[Block]) -> Action:
    targets = [block.array for block in outputs]
    compute = _compute(codelet, inputs, outputs)
    if len(targets) == 1 and targets[0] is not None:
        place, copyto = targets[0], np.copyto

        def run_one() -> None:
            computed = compute()[0]
            if computed is not place:
                copyto(place, computed)

        return run_one

    def run() -> None:
        put(targets, compute())

    return run


def _compute(
    codelet: Codelet, inputs: list[Block], outputs: list[Block]
) -> Callable[[], Sequence[Array]]:
    """Return a codelet's call on these blocks, made ready where the codelet knows how."""
    if type(codelet).bound is Codelet.bound:
        return partial(codelet.run, inputs, outputs)
    bound = codelet.bound(inputs, outputs)
    return partial(bound, [block.data for block in inputs], [block.array for block in outputs])


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
