"""The law of every codelet: vertices on parts make exactly the parts of the whole result.

The split is done the slow way, part by part, from `indexing` alone: a referee for codelets and for
the engine, sharing code with neither.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet, Index, Indexing
from hloipu_runtime.codelets.core.straight import calls_on_arrays
from hloipu_runtime.codelets.core.tensors import Block, Tensor
from hloipu_runtime.kernels.core.blocks import put
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.core.storage import storage_dtype

Array = np.ndarray[Any, Any]
Same = Callable[[Array, Array], None]
"""Raises AssertionError where two results differ; the whole run's comes second."""


class Given(NamedTuple):
    """An operand: its element type and its value, in storage form."""

    element_type: str
    array: Array

    @property
    def tensor(self) -> Tensor:
        """Type and size."""
        return Tensor(self.element_type, self.array.shape)


class _Span(NamedTuple):
    """Part of one dimension: where it starts, how long it is, how much is cut off below."""

    start: int
    size: int
    cut: int


def same_values(split: Array, whole: Array) -> None:
    """Compare values exactly; NaNs are equal, and zeros of two signs are not."""
    np.testing.assert_array_equal(split, whole)
    if split.dtype.kind == "f":
        numbers = ~np.isnan(whole)
        np.testing.assert_array_equal(np.signbit(split)[numbers], np.signbit(whole)[numbers])


def close_values(relative: float, absolute: float = 0.0) -> Same:
    """Return a comparison that allows for another order of sums within a part."""

    def same(split: Array, whole: Array) -> None:
        np.testing.assert_allclose(split, whole, rtol=relative, atol=absolute)

    return same


def run_whole(
    codelet: Codelet, operands: Sequence[Given], results: Sequence[Tensor], *, into: bool = False
) -> list[Array]:
    """Run on whole tensors, as the functional mode does; `into` hands it arrays for the results."""
    blocks = [_whole_block(x.array.shape, _frozen(x.array)) for x in operands]
    targets = [
        _whole_block(r.shape, _poison(r.shape, r.element_type) if into else None) for r in results
    ]
    made = codelet.run(blocks, targets)
    assert len(made) == len(results)
    for array, result in zip(made, results, strict=True):
        assert array.shape == result.shape
        assert array.dtype == storage_dtype(result.element_type)
    return made


def check_law(
    codelet: Codelet,
    operands: Sequence[Given],
    results: Sequence[Tensor],
    blocks: Mapping[int, int],
    *,
    same: Same = same_values,
) -> list[Array]:
    """Split by `blocks` (label -> block size) in every way the engine may; return the whole result.

    Ways: results fresh, into given arrays, over an operand; operands dense or stored once where
    tiles share them; where the codelet allows it, the last parts as long as all others.
    """
    indexing = codelet.indexing([x.tensor for x in operands], results)
    _check_indexing(indexing, operands, results)
    whole = run_whole(codelet, operands, results)
    for array, into in zip(whole, run_whole(codelet, operands, results, into=True), strict=True):
        same(into, array)
    ways = [
        _Way(into=False, multicast=True, over=None, padded=False),
        _Way(into=True, multicast=False, over=None, padded=False),
        _Way(into=True, multicast=True, over=None, padded=False),
        *(
            _Way(into=True, multicast=False, over=k, padded=False)
            for k in range(len(operands))
            if codelet.may_overwrite(k)
        ),
    ]
    if codelet.whole_parts:
        ways.append(_Way(into=True, multicast=False, over=None, padded=True))
    for way in ways:
        split = _run_split(codelet, indexing, operands, results, blocks, way)
        for part, expected in zip(split, whole, strict=True):
            same(part, expected)
    return whole


def check_every_split(
    codelet: Codelet,
    operands: Sequence[Given],
    results: Sequence[Tensor],
    *,
    same: Same = same_values,
) -> list[Array]:
    """Check the law for each label split alone and for all together, into uneven parts."""
    indexing = codelet.indexing([x.tensor for x in operands], results)
    sizes = indexing.sizes
    splits = [{label: max(1, (2 * size) // 5) for label, size in enumerate(sizes) if size > 1}]
    for label, size in enumerate(sizes):
        splits.extend({label: block} for block in {1, max(1, size // 2), max(1, size - 1)})
    whole: list[Array] = []
    for blocks in splits:
        whole = check_law(codelet, operands, results, blocks, same=same)
    return whole


class _Way(NamedTuple):
    """How the engine hands data to a codelet."""

    into: bool
    multicast: bool
    over: int | None
    padded: bool


def _check_indexing(
    indexing: Indexing, operands: Sequence[Given], results: Sequence[Tensor]
) -> None:
    """Check that labels are in range, index one dimension of a tensor, and cover the results."""
    shapes = [*(x.array.shape for x in operands), *(r.shape for r in results)]
    dimensions = [*indexing.operands, *indexing.results]
    assert len(indexing.operands) == len(operands)
    assert len(indexing.results) == len(results)
    for shape, indices in zip(shapes, dimensions, strict=True):
        assert len(shape) == len(indices)
        labels = [index.label for index in indices if index.label >= 0]
        assert len(labels) == len(set(labels))
        assert all(label < len(indexing.sizes) for label in labels)
        assert all(index.stride > 0 and index.window > 0 for index in indices if index.label >= 0)


def _run_split(
    codelet: Codelet,
    indexing: Indexing,
    operands: Sequence[Given],
    results: Sequence[Tensor],
    blocks: Mapping[int, int],
    way: _Way,
) -> list[Array]:
    """Run every class of parts in one call, and put the results together."""
    labels = [label for label, size in enumerate(indexing.sizes) if size]
    per_label = [_classes(indexing, operands, results, x, blocks, way.padded) for x in labels]
    whole = [_poison(r.shape, r.element_type) for r in results]
    seen = [np.zeros(r.shape, bool) for r in results]
    for chosen in product(*per_label):
        coordinates = dict(zip(labels, chosen, strict=True))
        _run_class(codelet, indexing, operands, results, coordinates, way, whole, seen)
    for mask in seen:
        assert mask.all(), "parts of a result that no tile computes"
    return whole


Ranges = list[tuple[int, int]]
"""First index and number of indices of each part of a class, along one label."""


def _classes(
    indexing: Indexing,
    operands: Sequence[Given],
    results: Sequence[Tensor],
    label: int,
    blocks: Mapping[int, int],
    padded: bool,
) -> list[Ranges]:
    """Group the parts of one label: equal sizes and equal cuts in all tensors."""
    size = indexing.sizes[label]
    block = blocks.get(label, size)
    groups: dict[Any, Ranges] = {}
    shapes = [*(x.array.shape for x in operands), *(r.shape for r in results)]
    for start in range(0, size, block):
        count = block if padded else min(block, size - start)
        key = tuple(
            (span.size, span.cut)
            for shape, indices in zip(shapes, [*indexing.operands, *indexing.results], strict=True)
            for extent, index in zip(shape, indices, strict=True)
            if index.label == label
            for span in [_span(index, extent, (start, count), padded)]
        )
        groups.setdefault((count, key), []).append((start, count))
    return list(groups.values())


def _span(index: Index, extent: int, part: tuple[int, int], padded: bool) -> _Span:
    """Return the part of a dimension that indices [start, start + count) touch."""
    if index.label < 0:
        return _Span(0, extent, 0)
    start = part[0] * index.stride + index.offset
    end = start + (part[1] - 1) * index.stride + index.window
    low = min(max(start, 0), extent)
    return _Span(low, (end if padded else min(max(end, low), extent)) - low, low - start)


def _run_class(
    codelet: Codelet,
    indexing: Indexing,
    operands: Sequence[Given],
    results: Sequence[Tensor],
    coordinates: Mapping[int, Ranges],
    way: _Way,
    whole: list[Array],
    seen: list[Array],
) -> None:
    axes = [label for label, ranges in coordinates.items() if len(ranges) > 1]
    grid = tuple(len(coordinates[label]) for label in axes)
    inputs = []
    for number, (given, indices) in enumerate(zip(operands, indexing.operands, strict=True)):
        block = _block(given, indices, coordinates, axes, way)
        if number != way.over:
            _frozen_in_place(block.data)
        inputs.append(block)
    outputs = []
    for number, (result, indices) in enumerate(zip(results, indexing.results, strict=True)):
        empty = Given(result.element_type, _poison(result.shape, result.element_type))
        block = _block(empty, indices, coordinates, axes, way._replace(multicast=False))
        array = None
        if number == 0 and way.over is not None:
            assert inputs[way.over].part == block.part
            array = inputs[way.over].array
        elif way.into:
            array = _poison((*grid, *block.part), result.element_type)
        outputs.append(block._replace(array=array))
    if way.into and not way.padded:
        made = _run_prepared(codelet, inputs, outputs)
    else:
        made = codelet.run(inputs, outputs)
    assert len(made) == len(results)
    for number, (array, block) in enumerate(zip(made, outputs, strict=True)):
        assert array.shape == (*grid, *block.part), "a result's shape is not grid + part"
        assert array.dtype == whole[number].dtype
        indices = indexing.results[number]
        for place in np.ndindex(grid):
            box = _box(results[number].shape, indices, coordinates, axes, place, way.padded)
            at = tuple(slice(s.start, s.start + s.size) for s in box)
            inside = tuple(
                slice(0, max(0, min(s.size, n - s.start)))
                for s, n in zip(box, results[number].shape, strict=True)
            )
            part = np.asarray(array[place])[inside] if inside else np.asarray(array[place])
            again = np.asarray(seen[number][at])
            np.testing.assert_array_equal(np.asarray(whole[number][at])[again], part[again])
            whole[number][at] = part
            seen[number][at] = True


def _run_prepared(
    codelet: Codelet, inputs: Sequence[Block], outputs: Sequence[Block]
) -> list[Array]:
    """Run as the exact mode does: prepared on other values than there are when it runs."""
    arrays, places = [block.data for block in inputs], [block.data for block in outputs]
    values = [x.copy() for x in arrays]
    straight = codelet.straight_on_grid(inputs, outputs)
    if straight is not None and straight.needs_row_major:
        straight = None
    if straight is None and codelet.on_arrays(inputs, outputs) is None:
        put(places, codelet.bound(inputs, outputs)(arrays, places))
        return places
    for x in arrays:
        x.flags.writeable = True
        x[...] = 0
    with quietly():
        prepared = codelet.on_arrays(inputs, outputs)
        if prepared is not None:
            calls: list[Callable[[], object]] = [prepared.run]
        elif straight is not None:
            calls = calls_on_arrays(straight, arrays, places, np.empty)
        for x, value in zip(arrays, values, strict=True):
            x[...] = value
        for call in calls:
            call()
    return places


def _box(
    shape: Sequence[int],
    indices: Sequence[Index],
    coordinates: Mapping[int, Ranges],
    axes: Sequence[int],
    place: Sequence[int],
    padded: bool,
) -> list[_Span]:
    """Return the part that the tile at a place of the grid has of a tensor."""
    chosen = dict(zip(axes, place, strict=True))
    return [
        _span(
            index,
            extent,
            coordinates[index.label][chosen.get(index.label, 0)]
            if index.label in coordinates
            else (0, 0),
            padded and index.label in coordinates,
        )
        if index.label < 0 or index.label in coordinates
        else _Span(0, 0, 0)
        for extent, index in zip(shape, indices, strict=True)
    ]


def _block(
    given: Given,
    indices: Sequence[Index],
    coordinates: Mapping[int, Ranges],
    axes: Sequence[int],
    way: _Way,
) -> Block:
    """Cut a tensor into the parts of a class; shared parts are stored once if `multicast`."""
    grid = tuple(len(coordinates[label]) for label in axes)
    shape = given.array.shape
    first = _box(shape, indices, coordinates, axes, (0,) * len(grid), way.padded)
    part = tuple(span.size for span in first)
    used = [any(index.label == label for index in indices) for label in axes]
    kept = tuple(n if u or not way.multicast else 1 for n, u in zip(grid, used, strict=True))
    array = _poison((*kept, *part), given.element_type)
    for place in np.ndindex(kept):
        box = _box(shape, indices, coordinates, axes, place, way.padded)
        piece = given.array[tuple(slice(s.start, s.start + s.size) for s in box)]
        array[(*place, *(slice(0, n) for n in piece.shape))] = piece
    starts: list[Array | int] = []
    for dimension, index in enumerate(indices):
        if index.label not in axes:
            starts.append(first[dimension].start)
            continue
        axis = axes.index(index.label)
        values = [
            _span(index, shape[dimension], indices_of, way.padded).start
            for indices_of in coordinates[index.label]
        ]
        starts.append(
            np.array(values, np.int64).reshape([-1 if a == axis else 1 for a in range(len(axes))])
        )
    return Block(np.broadcast_to(array, (*grid, *part)) if kept != grid else array, grid, part,
                 tuple(starts), shape)  # fmt: skip


def _whole_block(shape: tuple[int, ...], array: Array | None) -> Block:
    return Block(array, (), shape, (0,) * len(shape), shape)


def _frozen(array: Array) -> Array:
    """Return a view that cannot be written."""
    view = array.view()
    view.flags.writeable = False
    return view


def _frozen_in_place(array: Array) -> None:
    """Forbid writing to an operand."""
    array.flags.writeable = False


def _poison(shape: Sequence[int], element_type: str) -> Array:
    """Return an array of values that are unlikely to come out of anything by chance."""
    dtype = storage_dtype(element_type)
    if dtype.kind in "fc":
        return np.full(shape, np.nan, dtype)
    if dtype.kind == "b":
        return np.asarray(np.arange(prod(shape)).reshape(shape) % 2 == 0)
    return np.full(shape, 0x5B, dtype)
