"""Reduce-window: monoids one dimension at a time, other regions in `windows_regions`.

Windows that end where they began (a window of n padded by n - 1, as jax prints a cumulative sum)
run in linear time; long windows take log2(size) passes, short ones a pass for each element.
"""

from collections.abc import Sequence

import numpy as np

from hloipu_runtime.kernels.accumulation import accumulate
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.extrema import (
    extremum_keys,
    from_total_order_keys,
    has_negative_zero,
)
from hloipu_runtime.kernels.core.monoids import UFUNCS, Combiner, identity
from hloipu_runtime.kernels.core.movement import Index, index_of, pad
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.native.settings import settings
from hloipu_runtime.kernels.reduction import reduce_monoid, take_in
from hloipu_runtime.kernels.windows_geometry import (
    WindowDimension,
    element_slices,
    output_shape,
    real_positions,
)
from hloipu_runtime.kernels.windows_regions import reduce_window_region, sliding

SHORT_WINDOW = 8
"""Windows this long are folded element by element; longer ones by doubling."""


def reduce_window(
    operands: Sequence[Array],
    inits: Sequence[Array],
    window: Sequence[WindowDimension],
    combiner: Combiner,
    element_types: Sequence[str],
    *,
    associative: bool | None = None,
) -> list[Array]:
    """Reduce each window of the operands; padding and dilation holes are skipped.

    `combiner` is a monoid's name (one operand) or a region on (accumulators.., values..). Each
    init is taken in once for every window. Narrow floats are rounded once, at the end. Float sums
    keep the bound c * log2(n) * eps * sum of magnitudes, n the elements of a window.
    """
    if callable(combiner):
        return reduce_window_region(operands, inits, window, combiner, associative=associative)
    x = operands[0]
    shape = output_shape(x.shape, window)
    if x.size == 0 or 0 in shape:
        return [np.broadcast_to(inits[0], shape)]
    neutral = np.asarray(identity(combiner, x.dtype))
    keyed = combiner in ("minimum", "maximum") and has_negative_zero([x])
    with quietly():
        if keyed:
            neutral = extremum_keys(neutral, combiner)
            keys = _all_dimensions(extremum_keys(x, combiner), window, combiner, neutral)
            result = from_total_order_keys(keys, x.dtype)
        else:
            result = _all_dimensions(x, window, combiner, neutral)
    own = result if result.flags.c_contiguous and not np.may_share_memory(result, x) else None
    return [take_in(inits[0], result, combiner, element_types[0], own)]


def _all_dimensions(
    x: Array, window: Sequence[WindowDimension], monoid: str, neutral: Array
) -> Array:
    """Reduce along each dimension in turn, those that shrink the array most first."""
    none = WindowDimension(1)
    axes = [d for d, w in enumerate(window) if w.size > 1 or w != none]
    if len(axes) > 1:
        shrink = {d: window[d].output_size(x.shape[d]) / x.shape[d] for d in axes}
        axes.sort(key=shrink.__getitem__)
    for axis in axes:
        x = _along(x, axis, window[axis], monoid, neutral)
    return x


def _along(x: Array, axis: int, window: WindowDimension, monoid: str, neutral: Array) -> Array:
    """Reduce the windows of one dimension."""
    ufunc = UFUNCS[monoid]
    size = x.shape[axis]
    plain = window.stride == window.base_dilation == window.window_dilation == 1
    if plain and window.size >= size:
        if (window.pad_low, window.pad_high) == (window.size - 1, 0):
            return accumulate(x, axis, ufunc)
        if (window.pad_low, window.pad_high) == (0, window.size - 1):
            backwards = index_of(slice(None, None, -1 if d == axis else 1) for d in range(x.ndim))
            return accumulate(x[backwards], axis, ufunc)[backwards]
    count = window.output_size(size)
    if (
        window.size > SHORT_WINDOW
        and window.base_dilation == window.window_dilation == 1
        and window.pad_low == window.pad_high == 0
        and (count == 1 or window.size <= window.stride)
    ):
        return _blocks_apart(x, axis, window, monoid)
    if window.size <= SHORT_WINDOW or window.size <= window.stride:
        return _fold_elements(x, axis, window, monoid, neutral)
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = (window.pad_low, window.pad_high, window.base_dilation - 1)
    padded = pad(x, neutral, edges)

    def combine(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
        return [ufunc(left[0], right[0])]

    slid = sliding([padded], axis, window.size, window.window_dilation, combine)[0]
    return slid[_at(x.ndim, axis, slice(None, None, window.stride))]


def _blocks_apart(x: Array, axis: int, window: WindowDimension, monoid: str) -> Array:
    """Reduce long windows that share no element, or a single one."""
    count = window.output_size(x.shape[axis])
    fitting = x.shape[axis] // window.stride
    if fitting < count or window.size > window.stride:
        starts = [window.stride * k for k in range(count)]
        pieces = [x[_at(x.ndim, axis, slice(s, s + window.size))] for s in starts]
        return np.stack([reduce_monoid(p, monoid, (axis,)) for p in pieces], axis=axis)
    whole = x[_at(x.ndim, axis, slice(0, count * window.stride))]
    split = whole.reshape(*x.shape[:axis], count, window.stride, *x.shape[axis + 1 :])
    return reduce_monoid(
        split[_at(split.ndim, axis + 1, slice(0, window.size))], monoid, (axis + 1,)
    )


def _fold_elements(
    x: Array, axis: int, window: WindowDimension, monoid: str, neutral: Array
) -> Array:
    """Combine the windows' elements number 0, 1, .. in turn, without copying padding."""
    ufunc = UFUNCS[monoid]
    count = window.output_size(x.shape[axis])
    out: Array | None = None
    found = (
        element_slices(x.shape[axis], window, n) for n in real_positions(x.shape[axis], window)
    )
    folds = tuple(slices for slices in found if slices is not None)
    if monoid == "add" and settings().compiles:
        from hloipu_runtime.kernels.native.folding import fold_natively

        made = fold_natively(x, axis, count, folds)
        if made is not None:
            return made
    for windows, elements in folds:
        taken = x[_at(x.ndim, axis, elements)]
        if out is None:
            shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
            if taken.shape == shape:
                out = taken.copy()
                continue
            out = np.full(shape, neutral)
        target = out[_at(x.ndim, axis, windows)]
        ufunc(target, taken, out=target)
    if out is None:
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        out = np.full(shape, neutral)
    return out


def _at(rank: int, axis: int, place: slice) -> Index:
    """Return an index that slices one axis and takes all of the others."""
    return index_of(place if d == axis else slice(None) for d in range(rank))
