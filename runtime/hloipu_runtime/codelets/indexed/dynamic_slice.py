"""Dynamic slice and update: windows at run-time places.

Operands that say where are scalars, one for each dimension, on every tile. No tile sends what its
data decides: a dimension that is indexed lies whole on each tile, or each tile holds a range of it
and works on what falls into that.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from operator import sub
from typing import Any, ClassVar

import numpy as np

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.grids import are_stored_once
from hloipu_runtime.codelets.core.placing import (
    delivered,
    first_start,
    follows,
    is_whole,
    line_of_starts,
    owned_copy,
    same_memory,
    whole_of_parts,
)
from hloipu_runtime.codelets.core.straight import Straight, Take, one_call
from hloipu_runtime.codelets.core.tensors import (
    Array,
    Block,
    Blocks,
    Bound,
    OnArrays,
    Sizes,
    Tensor,
    Tensors,
)
from hloipu_runtime.codelets.costs.moving import NO_WORK, packed_bytes
from hloipu_runtime.codelets.indexed.ranges import (
    Stretch,
    Walk,
    agreed_starts,
    clamped,
    moving_window,
    stretches,
)
from hloipu_runtime.codelets.ops.move import every_dimension
from hloipu_runtime.kernels.core import movement
from hloipu_runtime.kernels.core.movement import copy_into
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork, rearrange_on_tile, shared_vertex_cycles
from hloipu_runtime.machine.model import Machine


def window_of(source: Block, result: Block, at: Sequence[int]) -> Array:
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


def write_window(out: Array, source: Block, window: Block, at: Sequence[int]) -> None:
    """Write, on every tile, what of the window falls into its range of the data."""
    rank = len(source.grid)
    axes, stretches_by_dimension = [], []
    for d, place in enumerate(at):
        if window.whole[d] == source.whole[d]:
            axes.append(-1)
            stretches_by_dimension.append([Stretch(slice(None), slice(None), 0, 0)])
            continue
        axis, starts = line_of_starts(source, d)
        axes.append(axis)
        stretches_by_dimension.append(stretches(starts, source.part[d], place, window.part[d]))
    for chosen in product(*stretches_by_dimension):
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


def by_place(
    run: Callable[[Blocks, Blocks], list[Array]], operands: Blocks, results: Blocks, window: Sizes
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
        (computed,) = run([*data, *agreed], [result._replace(array=None)])
        mine = (told == place).all(axis=-1)
        out[mine] = computed[mine]
    return delivered(out, result)


SUPERVISOR_CYCLES = 25
"""Of a vertex that slices where the data says."""


@codelet
class DynamicSlice(Codelet):
    """Takes the window of the result's size. Operands: data, one start for each dimension."""

    name: ClassVar[str] = "dynamic-slice"
    is_compiled: ClassVar[bool] = True
    dropped: Sizes = ()
    """Dimensions of the data in which the window is one element, that the result lacks."""

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Split the result in any way; the operand only in dimensions that are taken whole."""
        whole, shape = operands[0].shape, results[0].shape
        return Indexing(
            shape,
            (window_dimensions(whole, shape, self.dropped), *((),) * (len(operands) - 1)),
            (every_dimension(len(shape)),),
        )

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Return a view, moving on from tile to tile where tiles hold parts of the window."""
        source, scalars, result = operands[0], operands[1:], results[0]
        window = widened(result, self.dropped)
        if is_whole(result):
            at = [scalar.data for scalar in scalars]
            taken = movement.dynamic_slice(source.data, at, window.part)
            return [delivered(taken.reshape(result.part), result)]
        told = agreed_starts(scalars, source.whole, window.whole)
        if told is None:
            return [by_place(self.run, operands, results, window.whole)]
        taken = window_of(source, window, told)
        return [delivered(taken.reshape(*result.grid, *result.part), result)]

    def on_arrays(self, operands: Blocks, results: Blocks) -> OnArrays | None:
        """Return one copy, on tiles that hold of the data what they hold of the window."""
        source, result = operands[0], results[0]
        window = widened(result, self.dropped)
        taken, target = whole_of_parts(source, shared=True), whole_of_parts(result)
        together = all(follows(source, d, window, d) for d in range(len(source.whole)))
        if taken is None or target is None or not together:
            return None
        arrays = [taken(source.data), target(result.data)]
        at = _window_on_arrays(operands[1:], source.whole, window.whole, arrays[0], self.dropped)
        if at is None:
            return None

        def run() -> None:
            arrays[1][...] = at(arrays[0])

        return OnArrays(run, arrays, (0, len(operands)))

    def ignores(self, unused: Sequence[Sequence[bool]]) -> bool:
        """Say yes for ends of the window where the data ends as well."""
        kept = [end for d, end in enumerate(unused[0]) if d not in self.dropped]
        ends = zip(kept, unused[-1], strict=True)
        return all(of_data or not of_window for of_data, of_window in ends)

    def straight(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return the window as a view."""
        window = with_ones(results[0].part, self.dropped)
        cut = _WindowView(operands[0].part, window, self.dropped)
        return one_call(cut, len(operands), results[0].part)

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Charge moving the result's elements."""
        (result,) = results
        moved = Tensor(result.element_type, with_ones(result.shape, self.dropped))
        return window_work(machine, moved, operands[0].shape)


@codelet
class DynamicUpdateSlice(Codelet):
    """Replaces a window. Operands: data, window, one start for each dimension.

    Each tile replaces what falls into its range of the data. The work is that of doing it in
    place; who still needs the data as it was copies it first.
    """

    name: ClassVar[str] = "dynamic-update-slice"
    is_compiled: ClassVar[bool] = True
    overwrites_a_part: ClassVar[bool] = True
    dropped: Sizes = ()
    """Dimensions of the data in which the window is one element, that it lacks."""

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Split every dimension; the window only where it is as long as the data."""
        shape, window = results[0].shape, with_ones(operands[1].shape, self.dropped)
        every = every_dimension(len(shape))
        along = [
            index
            for d, index in enumerate(whole_dimensions(window, shape))
            if d not in self.dropped
        ]
        scalars = ((),) * (len(operands) - 2)
        return Indexing(shape, (every, tuple(along), *scalars), (every,))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Write each tile's share of the window."""
        source, scalars, result = operands[0], operands[2:], results[0]
        window = widened(operands[1], self.dropped)
        if is_whole(source):
            at = [scalar.data for scalar in scalars]
            place = result.array
            if place is not None and same_memory(place, source.data):
                place = source.data
            return [movement.dynamic_update_slice(source.data, window.data, at, place)]
        told = agreed_starts(scalars, source.whole, window.whole)
        if told is None:
            return [by_place(self.run, operands, results, window.whole)]
        out = owned_copy(source, result)
        write_window(out, source, window, told)
        return [out]

    def bound(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run`, of whole data in its own place as one assignment."""
        general = super().bound(operands, results)
        if not is_whole(operands[0]):
            return general
        shape = with_ones(operands[1].part, self.dropped)
        window = window_at(operands[0].part, shape, self.dropped)

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> Sequence[Array]:
            data = arrays[0]
            if outs[0] is not data:
                return general(arrays, outs)
            data[window(arrays[2:])] = arrays[1]
            return [data]

        return run

    def on_arrays(self, operands: Blocks, results: Blocks) -> OnArrays | None:
        """Return one copy, on tiles that make up all data and have what they replace of it."""
        data, window, result = operands[0], operands[1], results[0]
        wide = widened(window, self.dropped)
        target, taken = whole_of_parts(result), whole_of_parts(window, shared=True)
        together = all(follows(wide, d, data, d) for d in range(len(data.whole)))
        if target is None or taken is None or not together:
            return None
        arrays = [taken(window.data), target(result.data), data.data, result.data]
        at = _window_on_arrays(operands[2:], data.whole, wide.whole, arrays[1], self.dropped)
        if at is None:
            return None
        in_place = same_memory(data.data, result.data)
        if not in_place and np.may_share_memory(window.data, result.data):
            return None

        def run() -> None:
            if not in_place:
                copy_into(arrays[3], arrays[2])
            at(arrays[1])[...] = arrays[0]

        return OnArrays(run, arrays, (1, len(operands), 0, len(operands)))

    def ignores(self, unused: Sequence[Sequence[bool]]) -> bool:
        """Say yes for ends of the data, which the window reaches where it is as long."""
        kept = [end for d, end in enumerate(unused[0]) if d not in self.dropped]
        ends = zip(kept, unused[1], strict=True)
        return all(of_data or not of_window for of_data, of_window in ends)

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Charge moving the window's elements, as many as a tile can hold."""
        shape = results[0].shape
        most = tuple(map(min, with_ones(operands[1].shape, self.dropped), shape))
        return window_work(machine, Tensor(results[0].element_type, most), shape)

    def may_overwrite(self, operand: int) -> bool:
        """In place, what is not replaced costs nothing."""
        return operand == 0


MOST_WINDOWS = 1 << 10
"""Kept as views, so many at most: some 100 bytes each (assumed to be enough for loops)."""


def _window_on_arrays(
    scalars: Blocks, whole: Sizes, window: Sizes, usual: Array, dropped: Sizes
) -> Callable[[Array], Array] | None:
    """Return what takes the window of an array, a view, at starts that all tiles have stored once.

    None if they do not. Views of the `usual` array are kept.
    """
    if not are_stored_once(scalars):
        return None
    everywhere: list[Any] = [
        *(0 if d in dropped else slice(0, size) for d, size in enumerate(window)),
        ...,  # a view without dimensions
    ]
    moves = [
        (d, partial(scalar.data.item, 0), whole[d] - size, size)
        for d, (scalar, size) in enumerate(zip(scalars, window, strict=True))
        if whole[d] > size
    ]
    if len(moves) != 1:

        def window_of(x: Array) -> Array:
            for d, start, limit, size in moves:
                low = min(max(start(), 0), limit)
                everywhere[d] = low if d in dropped else slice(low, low + size)
            view: Array = x[tuple(everywhere)]
            return view

        return window_of
    ((d, start, limit, size),) = moves
    views: dict[int, Array] = {}

    def kept_window_of(x: Array) -> Array:
        low = start()
        low = 0 if low < 0 else low if low < limit else limit
        view = views.get(low) if x is usual else None
        if view is None:
            everywhere[d] = low if d in dropped else slice(low, low + size)
            view = x[tuple(everywhere)]
            if x is usual and len(views) < MOST_WINDOWS:
                views[low] = view
        return view

    return kept_window_of


def window_at(
    whole: Sizes, window: Sizes, dropped: Sizes = ()
) -> Callable[[Sequence[Array | int]], tuple[Any, ...]]:
    """Return the index of a view from its starts, clamped so that it lies inside."""
    limits = tuple(map(sub, whole, window))

    def index(at: Sequence[Array | int]) -> tuple[Any, ...]:
        places: list[Any] = []
        for d, (start, limit, size) in enumerate(zip(at, limits, window, strict=True)):
            low = min(max(int(start), 0), limit) if limit else 0
            places.append(low if d in dropped else slice(low, low + size))
        return (*places, ...)

    return index


class _WindowView:
    """Cuts a window out of an array, at given start indices."""

    def __init__(self, whole: Sizes, window: Sizes, dropped: Sizes) -> None:
        self._at, self._whole, self._window = window_at(whole, window, dropped), whole, window
        self._dropped = dropped

    def __call__(self, x: Array, *starts: Array) -> Array:
        """Return the window as a view."""
        taken: Array = x[self._at(starts)]
        return taken

    def on_arrays(
        self, arguments: Sequence[Array], out: Array, take: Take
    ) -> list[Callable[[], object]] | None:
        """Return a copy as a call, where one start alone matters."""
        moving = [d for d, n in enumerate(self._whole) if n > self._window[d]]
        if len(moving) != 1 or not {*self._dropped} <= {*moving}:
            return None
        (d,) = moving
        is_dropped = d in self._dropped
        x, size, start = arguments[0], self._window[d], arguments[1 + d].item
        before, limit = (slice(None),) * d, self._whole[d] - size

        def copy() -> None:
            low = start()
            low = 0 if low < 0 else min(low, limit)
            out[...] = x[(*before, low if is_dropped else slice(low, low + size))]

        return [copy]


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


def with_ones(sizes: Sizes, dropped: Sizes) -> Sizes:
    """Return the sizes of a window in all dimensions of the data."""
    full = list(sizes)
    for d in dropped:
        full.insert(d, 1)
    return tuple(full)


def widened(window: Block, dropped: Sizes) -> Block:
    """Return the block of a window in all dimensions of the data."""
    if not dropped:
        return window
    array, part = window.array, with_ones(window.part, dropped)
    if array is not None:
        array = array.reshape(*array.shape[: len(window.grid)], *part)
    starts = list(window.starts)
    for d in dropped:
        starts.insert(d, 0)
    return Block(array, window.grid, part, tuple(starts), with_ones(window.whole, dropped))


def window_dimensions(data: Sizes, window: Sizes, dropped: Sizes) -> tuple[Index, ...]:
    """Return, for each dimension of the data, the label of the window's that is as long."""
    kept = [d for d in range(len(data)) if d not in dropped]
    along = whole_dimensions(tuple(data[d] for d in kept), window)
    return tuple(along[kept.index(d)] if d in kept else ALL for d in range(len(data)))


def whole_dimensions(some: Sizes, others: Sizes) -> tuple[Index, ...]:
    """Return an index for each dimension that is as long in both, and `ALL` for the others."""
    return tuple(
        Index(d) if size == other else ALL
        for d, (size, other) in enumerate(zip(some, others, strict=True))
    )
