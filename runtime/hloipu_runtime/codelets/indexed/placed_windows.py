"""Windows at places known to all tiles, read and written on all tiles at once."""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from hloipu_runtime.codelets.core.codelet import Array, Block, Blocks, Sizes
from hloipu_runtime.codelets.core.placing import delivered, first_start, line_of_starts
from hloipu_runtime.codelets.indexed.ranges import Stretch, Walk, clamped, moving_window, stretches
from hloipu_runtime.kernels.core import movement


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
