"""The reduction to the greatest or least element and its place, as argmax and argmin print it."""

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.movement import contiguous


def arg_extremum(x: Array, dimension: int, *, largest: bool, place_dtype: str) -> list[Array]:
    """Return the extreme values along one dimension and the first places where they stand.

    The first NaN wins over every number. This is the variadic reduction of (x, iota) by a region
    that keeps the better value, or the lower place of equal ones, from (-inf or inf, 0) on.
    """
    rows = contiguous(np.moveaxis(x, dimension, -1))
    places = np.asarray((np.argmax if largest else np.argmin)(rows, axis=-1))
    values = np.take_along_axis(rows, places[..., np.newaxis], axis=-1)[..., 0]
    return [np.asarray(values), places.astype(place_dtype)]
