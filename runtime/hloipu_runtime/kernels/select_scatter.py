"""Select-and-scatter: each window picks one element, and a source value is combined in there."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.monoids import Combiner
from hloipu_runtime.kernels.core.movement import contiguous
from hloipu_runtime.kernels.native.targets import Targets
from hloipu_runtime.kernels.scatter_rows import combine_rows
from hloipu_runtime.kernels.windows_geometry import WindowDimension, output_shape
from hloipu_runtime.kernels.windows_regions import Peeled, element_places, peeled_element

Select = Literal["ge", "gt", "le", "lt"] | Callable[[Array, Array], Array]
"""How to tell that the element selected so far stays against a candidate."""

_STAYS: dict[str, np.ufunc] = {
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
}


def select_and_scatter(
    operand: Array,
    source: Array,
    init: Array,
    window: Sequence[WindowDimension],
    select: Select,
    combiner: Combiner | str,
    element_type: str,
    *,
    whole: tuple[Sequence[int], Sequence[WindowDimension]] | None = None,
) -> Array:
    """Fill the operand's shape with `init`, then combine each source value in at its choice.

    A window's choice starts at its first element (`element_places`) and moves on to every later
    one for which `select(chosen, candidate)` is false; padding is never chosen. Values that share
    a place are combined in row-major order of the windows. `whole` is the shape and the window of
    which these are a part: it decides which of equal elements is chosen.
    """
    peeled = peeled_element(*(whole or (operand.shape, window)))
    targets = _choices(operand, window, select, peeled)
    out = np.full(operand.shape, init, operand.dtype)
    rows = contiguous(source).reshape(-1, 1)
    at = Targets(targets.reshape(-1), out.size, targets.size)
    apart = all(w.size <= w.stride for w in window)
    combine_rows([out.reshape(-1, 1)], at, [rows], combiner, [element_type], apart)
    return out


def _choices(
    operand: Array, window: Sequence[WindowDimension], select: Select, peeled: Peeled | None
) -> Array:
    """Return, for every window, the flat place of its element in the operand; -1 for none."""
    stays = select if callable(select) else _STAYS[select]
    shape = output_shape(operand.shape, window)
    chosen = np.zeros(shape, operand.dtype)
    which = np.full(shape, -1, np.int32)
    places = element_places(operand.shape, window, peeled)
    for number, (_, windows, elements) in enumerate(places):
        candidate = operand[elements]
        so_far, kind = chosen[windows], which[windows]
        with np.errstate(invalid="ignore"):
            moves = ~stays(so_far, candidate)
        moves |= kind < 0
        np.copyto(so_far, candidate, where=moves)
        np.copyto(kind, np.int32(number), where=moves)
    # Place of a window's element: where the window starts, plus the element's own offset.
    pitches = np.cumprod([1, *operand.shape[:0:-1]])[::-1][: operand.ndim].tolist()
    starts = np.zeros(shape, np.int64)
    for axis, (w, pitch) in enumerate(zip(window, pitches, strict=True)):
        along = [1] * operand.ndim
        along[axis] = shape[axis]
        starts += ((np.arange(shape[axis]) * w.stride - w.pad_low) * pitch).reshape(along)
    offsets = [
        sum(
            k * w.window_dilation * pitch
            for k, w, pitch in zip(position, window, pitches, strict=True)
        )
        for position, _, _ in places
    ]
    if not offsets:
        return np.full(shape, -1)
    starts += np.take(np.asarray(offsets), which, mode="clip")
    starts[which < 0] = -1
    return starts
