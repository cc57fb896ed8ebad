"""Windows reduced by an arbitrary region on whole arrays."""

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.monoids import Region
from hloipu_runtime.kernels.core.movement import Index, index_of, pad
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.windows_geometry import (
    WindowDimension,
    element_slices,
    output_shape,
    real_positions,
)

SEQUENTIAL_ELEMENTS = 64
"""Largest window that a region not known to be associative is folded over one by one."""

Combine = Callable[[Sequence[Array], Sequence[Array]], list[Array]]


def reduce_window_region(
    operands: Sequence[Array],
    inits: Sequence[Array],
    window: Sequence[WindowDimension],
    region: Region,
    *,
    associative: bool | None = None,
) -> list[Array]:
    """Reduce the windows of n operands together by `region(acc.., value..)`.

    XLA:CPU folds a window's elements in the order of `element_places` from the init on, skipping
    padding and holes. `associative=False` does the same with one call for each element of a
    window; `True` reduces one dimension after another in log2(size) calls each, and takes the
    region to be commutative where several dimensions have windows. `None` chooses by the window's
    size.
    """
    shape = output_shape(operands[0].shape, window)
    accumulators: list[Array] = [
        np.broadcast_to(np.asarray(i), shape).astype(x.dtype)
        for i, x in zip(inits, operands, strict=True)
    ]
    if 0 in shape or operands[0].size == 0:
        return accumulators
    if associative is None:
        associative = prod(w.size for w in window) > SEQUENTIAL_ELEMENTS
    with quietly():
        if associative:
            return _by_dimension(operands, accumulators, window, region)
        return _element_by_element(operands, accumulators, window, region)


Peeled = tuple[int, int]
"""Axis of a window, and the number along it of the element that is visited last."""


def peeled_element(shape: Sequence[int], window: Sequence[WindowDimension]) -> Peeled | None:
    """Find what is visited last in windows that overhang; None: nothing out of turn.

    XLA:CPU peels the last element of one dimension if the others then need no bounds check
    (openxla/xla: xla/codegen/emitters, its loop peeling), and visits that slice of the window last.
    """
    peeled: Peeled | None = None
    for axis, (n, w) in enumerate(zip(shape, window, strict=True)):
        positions = real_positions(n, w)
        everywhere = (0, w.output_size(n), 1)
        along = [element_slices(n, w, k) for k in positions]
        whole = [slices is not None and _extent(slices[0]) == everywhere for slices in along]
        if len(whole) > 1 and not all(whole) and (len(whole) == 2 or all(whole[:-1])):
            peeled = axis, positions[-1]
    return peeled


def element_places(
    shape: Sequence[int], window: Sequence[WindowDimension], peeled: Peeled | None
) -> list[tuple[tuple[int, ...], Index, Index]]:
    """List a window's elements in visiting order: position, index of windows, of the operand.

    Elements that are padding in every window are left out. The order is row-major, but for the
    peeled element's. HLO leaves the order open; it decides ties of select-and-scatter.
    """
    present = [
        [
            (k, slices)
            for k in real_positions(n, w)
            if (slices := element_slices(n, w, k)) is not None
        ]
        for n, w in zip(shape, window, strict=True)
    ]
    visited = list(product(*present))
    if peeled is not None:
        axis, last = peeled
        visited.sort(key=lambda places: places[axis][0] == last)
    return [
        (
            tuple(k for k, _ in places),
            index_of(slices[0] for _, slices in places),
            index_of(slices[1] for _, slices in places),
        )
        for places in visited
    ]


def _extent(places: slice) -> tuple[int, int, int]:
    """Return a slice's start, count and step, the step of a single place taken as 1."""
    covered = range(places.start, places.stop, places.step)
    return covered.start, len(covered), covered.step if len(covered) > 1 else 1


def _element_by_element(
    operands: Sequence[Array],
    accumulators: list[Array],
    window: Sequence[WindowDimension],
    region: Region,
) -> list[Array]:
    shape = operands[0].shape
    for _, windows, elements in element_places(shape, window, peeled_element(shape, window)):
        updated = region(*(a[windows] for a in accumulators), *(x[elements] for x in operands))
        for accumulator, new in zip(accumulators, updated, strict=True):
            accumulator[windows] = new
    return accumulators


def _by_dimension(
    operands: Sequence[Array],
    accumulators: list[Array],
    window: Sequence[WindowDimension],
    region: Region,
) -> list[Array]:
    """Slide along each dimension by doubling; a mask says which places hold any element."""
    rank = operands[0].ndim
    values = list(operands)
    # Whether a window holds elements is decided dimension by dimension: masks stay small.
    masks: list[Array] = []
    for axis, w in enumerate(window):
        edges = [(0, 0, 0)] * rank
        edges[axis] = (w.pad_low, w.pad_high, w.base_dilation - 1)
        along = [1] * rank
        along[axis] = values[0].shape[axis]
        real = pad(np.ones(along, bool), np.asarray(False), edges)
        padded = [pad(v, np.zeros((), v.dtype), edges) for v in values]
        slid = sliding([real, *padded], axis, w.size, w.window_dilation, _skipping_holes(region))
        strided = index_of(slice(None, None, w.stride if d == axis else 1) for d in range(rank))
        mask, *values = (s[strided] for s in slid)
        masks.append(mask)
    is_held: Array = np.asarray(True)
    for mask in masks:
        is_held = is_held & mask
    combined = region(*accumulators, *values)
    return [np.where(is_held, c, a) for c, a in zip(combined, accumulators, strict=True)]


def _skipping_holes(region: Region) -> Combine:
    """Wrap a region so that its first operand says where the others hold anything."""

    def combine(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
        left_real, *left_values = left
        right_real, *right_values = right
        joined = region(*left_values, *right_values)
        if not (left_real.all() and right_real.all()):
            joined = [
                np.where(right_real, np.where(left_real, j, r), v)
                for j, r, v in zip(joined, right_values, left_values, strict=True)
            ]
        return [left_real | right_real, *joined]

    return combine


def sliding(
    arrays: Sequence[Array], axis: int, size: int, dilation: int, combine: Combine
) -> list[Array]:
    """Combine each run of `size` places `dilation` apart along an axis, in 2 * log2(size) calls.

    Runs of 1, 2, 4, .. places are built by doubling and joined in order, so `combine` need not
    commute.
    """
    count = arrays[0].shape[axis] - (size - 1) * dilation
    result: list[Array] | None = None
    power, covered = list(arrays), 0
    run = 1
    while True:
        if size & run:
            piece = [_window(p, axis, covered * dilation, count) for p in power]
            result = piece if result is None else combine(result, piece)
            covered += run
        if covered == size:
            break
        room = power[0].shape[axis] - run * dilation
        power = combine(
            [_window(p, axis, 0, room) for p in power],
            [_window(p, axis, run * dilation, room) for p in power],
        )
        run *= 2
    return result if result is not None else []


def _window(x: Array, axis: int, start: int, count: int) -> Array:
    """Return a run of places along one axis."""
    return x[
        index_of(slice(start, start + count) if d == axis else slice(None) for d in range(x.ndim))
    ]
