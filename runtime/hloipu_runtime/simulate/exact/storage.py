"""Tile memories: one array a variable, cut into the parts that tiles hold.

In memory, each dimension stands as (grid coordinate, element of the part), dimensions in order, so
that parts which lie side by side make one contiguous array; axes that replicate come first. What a
vertex sees is the same memory with all grid axes in front: its tile's part and nothing else.
"""

from collections.abc import Callable
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.blocks import LINE_BYTES
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.program.mapping import Mapping, Sizes, extent_of
from hloipu_runtime.program.program import Array, Variable
from hloipu_runtime.program.steps import VariableId
from hloipu_runtime.simulate.exact.moving import MovingMemory
from hloipu_runtime.simulate.exact.shared_buffers import Place, part_strides, reach, whole_place
from hloipu_runtime.simulate.run.pool import Take, fresh

POISON_BYTE = 0xA7
"""Fills integers and complex numbers before use; floats get NaN, predicates the value true."""


@dataclass(frozen=True)
class TileStorage:
    """The memory of one variable on all its tiles."""

    tiles: Array
    """Shape: grid extents, then the part's sizes."""
    merged: Array
    """The same memory: replicated extents, then for each dimension all parts in a row."""
    mapping: Mapping
    shape: Sizes
    memory: Array | None = None
    """The bytes that it lies in, which may be more; None: they belong to another variable."""
    value: Array | None = None
    """The variable's value, where it lies in another one's memory, for reading."""
    begin: int = 0
    """The byte of the memory where the first part begins."""
    moving: MovingMemory | None = None
    """Of memory that is elsewhere in each run: all arrays above only say how it lies there."""

    def poison(self) -> None:
        """Make all of it unlike anything that was written."""
        poison(self.merged)

    def whole(self) -> Array:
        """Return the variable's value, put together from the tiles' parts.

        Of replicated parts the first is taken, where parts overlap the one with the element first.
        """
        if self.value is not None:
            return self.value if self.moving is None else self.moving.seen(self.value)
        return self._joined if self._is_joined else self._put_together()

    @cached_property
    def _is_joined(self) -> bool:
        """Whether parts lie side by side, in order."""
        return all(
            span.axis < 0 or (span.step == span.size and span.offset == 0)
            for span in self.mapping.spans
        )

    @cached_property
    def _joined(self) -> Array:
        """The value as parts that lie side by side have it."""
        return self._put_together()

    def _put_together(self) -> Array:
        first: tuple[Any, ...] = (0,) * len(self.mapping.replicated_axes)
        whole: Array = self.merged[(*first, ...)]
        for dimension, (span, size) in enumerate(zip(self.mapping.spans, self.shape, strict=True)):
            if span.axis < 0 or (span.step == span.size and span.offset == 0):
                cut = (slice(None),) * dimension + (slice(-span.offset, size - span.offset),)
                whole = whole[cut]
                continue
            extent = self.mapping.tiles.extents[span.axis]
            index = np.arange(size)
            owner = np.clip((index - span.offset) // span.step, 0, extent - 1)
            whole = whole.take(owner * (span.size - span.step) + index - span.offset, dimension)
        return whole


def allocate(
    variable: Variable, *, shared: bool, take: Take = fresh, others: tuple[int, int] = (0, 0)
) -> TileStorage:
    """Return memory for a variable, taken from `take`.

    `shared`: replicated parts stand there once, for reading. `others`: where those that lie in the
    same memory begin and end, in bytes from the first one.
    """
    mapping = variable.mapping
    dtype = storage_dtype(variable.element_type)
    replicated = mapping.replicated_axes
    extents = mapping.tiles.extents
    lengths = [1 if shared else extents[axis] for axis in replicated]
    order: list[int] = list(replicated)
    memory_shape = list(lengths)
    merged_shape = list(lengths)
    for dimension, span in enumerate(mapping.spans):
        count = extent_of(mapping.tiles, span)
        if span.axis >= 0:
            order.append(span.axis)
            memory_shape.append(count)
        order.append(len(extents) + dimension)
        memory_shape.append(span.size)
        merged_shape.append(count * span.size)
    size = prod(memory_shape) * dtype.itemsize
    begin = -(others[0] // LINE_BYTES) * LINE_BYTES
    memory = take(begin + max(size, others[1]))
    cells = memory[begin : begin + size].view(dtype).reshape(memory_shape)
    tiles = cells.transpose(np.argsort(order))
    if shared and replicated:
        tiles = np.broadcast_to(tiles, mapping.storage_shape)
    merged = cells.reshape(merged_shape)
    return TileStorage(tiles, merged, mapping, variable.shape, memory, begin=begin)


def moved(
    variable: Variable, number: VariableId, others: tuple[int, int], *, is_lent: bool
) -> TileStorage:
    """Return the memory of a variable that moves, laid out as one whole array.

    `others` as in `allocate`. What is lent is not written.
    """
    place = whole_place(number, variable)
    low, high = reach(place, variable)
    begin = -min(low, others[0], 0)
    size = prod(variable.shape) * storage_dtype(variable.element_type).itemsize
    # Only its address counts: what nobody touches takes no memory.
    memory = np.empty(begin + max(high, others[1], size), np.uint8)
    tiles, value = _parts(place, variable, memory, begin)
    moving = MovingMemory(value)
    tiles.flags.writeable = value.flags.writeable = not is_lent
    return TileStorage(tiles, value, variable.mapping, variable.shape, memory, value, begin, moving)


def within(storage: TileStorage, place: Place, variable: Variable) -> TileStorage:
    """Return the memory of a variable that lies in that of another one."""
    assert storage.memory is not None
    tiles, value = _parts(place, variable, storage.memory, storage.begin)
    tiles.flags.writeable = value.flags.writeable = False
    return TileStorage(
        tiles, value, variable.mapping, variable.shape, value=value, moving=storage.moving
    )


def _parts(place: Place, variable: Variable, memory: Array, begin: int) -> tuple[Array, Array]:
    dtype = storage_dtype(variable.element_type)
    first, strides = part_strides(place, variable)
    shape = variable.mapping.storage_shape
    tiles: Array = np.ndarray(shape, dtype, memory, begin + first, strides)
    value: Array = np.ndarray(variable.shape, dtype, memory, begin + place.offset, place.strides)
    return tiles, value


def poison(array: Array) -> None:
    """Overwrite an array with what no program computes by chance."""
    if array.dtype == np.bool_:
        array.fill(True)
    elif array.dtype.kind == "f":
        array.fill(np.nan)
    else:
        array.reshape(-1).view(np.uint8).fill(POISON_BYTE)


def scatter_whole(storage: TileStorage, value: Array) -> None:
    """Write a whole value into all tiles' parts."""
    scattering(storage)(value)


def scattering(storage: TileStorage) -> Callable[[Array], None]:
    """Return what writes whole values into all tiles' parts."""
    spans, tiles = storage.mapping.spans, storage.mapping.tiles
    cuts: list[Any] = [slice(None)] * len(storage.mapping.replicated_axes)
    taken: list[tuple[int, Array]] = []
    for dimension, (span, size) in enumerate(zip(spans, storage.shape, strict=True)):
        if span.axis < 0 or (span.step == span.size and span.offset == 0):
            cuts.append(slice(-span.offset, size - span.offset))
            continue
        starts = np.arange(tiles.extents[span.axis]) * span.step + span.offset
        index = (starts[:, None] + np.arange(span.size)).ravel()
        taken.append((dimension, np.clip(index, 0, max(size - 1, 0))))
        cuts.append(slice(None))
    target: Array = storage.merged[(*cuts, ...)]
    if not taken:
        return partial(np.copyto, target)

    def scatter(value: Array) -> None:
        for dimension, index in taken:
            value = value.take(index, dimension)
        np.copyto(target, value)

    return scatter
