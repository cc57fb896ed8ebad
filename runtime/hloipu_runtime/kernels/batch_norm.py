"""Batch normalisation: training, inference and gradient, along one feature dimension.

Formulas: openxla/xla: batchnorm_expander.cc. Statistics are summed in float64 (float32 storage), so
that the variance does not cancel where the mean is large; XLA subtracts in the operand's type.
An HLO module holds epsilon as a 32-bit float, so that is what is added, to f64 too.
"""

import math
from collections.abc import Iterator
from math import prod

import numpy as np

from hloipu_runtime.kernels.contractions.dot import round_result
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.quiet import quietly

_BLOCK_ELEMENTS = 1 << 15
_LONG_ROW = 1 << 10
"""Elements from which the set-up of a row's loop is small beside the row."""


def batch_norm_training(
    x: Array, scale: Array, offset: Array, epsilon: float, feature_index: int, element_type: str
) -> tuple[Array, Array, Array]:
    """Normalise x by its own statistics: (y, mean, biased variance), the latter two [features]."""
    with quietly():
        parts = _as_outer_feature_inner(x, feature_index)
        count = x.size // max(parts.shape[1], 1)
        mean = _sums(parts) / count if count else np.full(parts.shape[1], np.nan)
        centre = mean.astype(parts.dtype)
        variance = np.zeros_like(mean)
        longer, (centres,) = _long_rows(parts, [centre[:, None]])
        for at in _blocks(longer.shape):
            centred = longer[at] - centres[at[1]]
            np.multiply(centred, centred, out=centred)
            _add_sums(centred, at[1], variance)
        # The rounding of the centre is taken out again.
        variance = variance / count - (mean - centre) ** 2 if count else mean
        y = _normalised(x, scale, offset, mean, variance, epsilon, feature_index, element_type)
        return (
            y,
            round_result(mean, element_type, x.dtype),
            round_result(variance, element_type, x.dtype),
        )


def batch_norm_inference(
    x: Array,
    scale: Array,
    offset: Array,
    mean: Array,
    variance: Array,
    epsilon: float,
    feature_index: int,
    element_type: str,
) -> Array:
    """Return (x - mean) / sqrt(variance + epsilon) * scale + offset, all four [features]."""
    with quietly():
        return _normalised(x, scale, offset, mean, variance, epsilon, feature_index, element_type)


def batch_norm_grad(
    x: Array,
    scale: Array,
    mean: Array,
    variance: Array,
    grad_output: Array,
    epsilon: float,
    feature_index: int,
    element_type: str,
) -> tuple[Array, Array, Array]:
    """Return the gradients of training with respect to x, scale and offset.

    With n elements per feature, d = grad_output and c = x - mean: the gradient of offset is sum d,
    of scale sum(d c) / sqrt(variance + epsilon), and of x is
    scale / (n sqrt(variance + epsilon)) * (n d - sum d - c sum(d c) / (variance + epsilon)).
    """
    with quietly():
        parts = _as_outer_feature_inner(x, feature_index)
        grads = _as_outer_feature_inner(grad_output, feature_index)
        count = x.size // max(parts.shape[1], 1)
        centre = mean[:, None]
        offset_grad = _sums(grads)
        products = np.zeros(parts.shape[1])
        parts, (centres,) = _long_rows(parts, [centre])
        grads = grads.reshape(parts.shape)
        for at in _blocks(parts.shape):
            product = parts[at] - centres[at[1]]
            np.multiply(product, grads[at], out=product)
            _add_sums(product, at[1], products)
        spread = variance.astype(np.float64) + float(np.float32(epsilon))
        scale_grad = products / np.sqrt(spread)
        factor = (scale / np.sqrt(spread)).astype(x.dtype)[:, None]
        slope = (products / (spread * max(count, 1))).astype(x.dtype)[:, None]
        level = (offset_grad / max(count, 1)).astype(x.dtype)[:, None]
        if centres.shape != centre.shape:
            repeats = centres.shape[0] // centre.shape[0]
            centre = centres
            slope, level, factor = (np.tile(v, (repeats, 1)) for v in (slope, level, factor))
        out = np.empty(parts.shape, x.dtype)
        for at in _blocks(parts.shape):
            feature, result = at[1], out[at]
            np.subtract(parts[at], centre[feature], out=result)
            result *= slope[feature]
            np.subtract(grads[at], result, out=result)
            result -= level[feature]
            result *= factor[feature]
        return (
            round_result(out.reshape(x.shape), element_type, x.dtype),
            round_result(scale_grad, element_type, x.dtype),
            round_result(offset_grad, element_type, x.dtype),
        )


def _normalised(
    x: Array,
    scale: Array,
    offset: Array,
    mean: Array,
    variance: Array,
    epsilon: float,
    feature_index: int,
    element_type: str,
) -> Array:
    parts = _as_outer_feature_inner(x, feature_index)
    factor = scale / np.sqrt(variance.astype(np.float64) + float(np.float32(epsilon)))
    centre, factor, shift = (v.astype(x.dtype)[:, None] for v in (mean, factor, offset))
    parts, (centre, factor, shift) = _long_rows(parts, [centre, factor, shift])
    out = np.empty(parts.shape, x.dtype)
    for at in _blocks(parts.shape):
        feature, result = at[1], out[at]
        np.subtract(parts[at], centre[feature], out=result)
        result *= factor[feature]
        result += shift[feature]
    return round_result(out.reshape(x.shape), element_type, x.dtype)


def _as_outer_feature_inner(x: Array, feature_index: int) -> Array:
    shape = x.shape
    return x.reshape(
        prod(shape[:feature_index]), shape[feature_index], prod(shape[feature_index + 1 :])
    )


def _sums(parts: Array) -> Array:
    """Return the sums over all but the feature dim, blocks of them added in float64."""
    total = np.zeros(parts.shape[1])
    longer, _ = _long_rows(parts, [])
    for at in _blocks(longer.shape):
        _add_sums(longer[at], at[1], total)
    return total


def _long_rows(parts: Array, of_feature: list[Array]) -> tuple[Array, list[Array]]:
    """Lay several short rows [feature, 1] end to end, and the features' numbers as often.

    numpy sets up its inner loop for every row, which costs as much as a hundred elements.
    """
    outer, features, inner = parts.shape
    if inner != 1 or not 0 < features <= _LONG_ROW // 2 or not parts.flags.c_contiguous:
        return parts, of_feature
    rows = math.gcd(outer, 1 << (_LONG_ROW // features).bit_length() - 1)
    tiled = [np.tile(v, (rows, 1)) for v in of_feature]
    return parts.reshape(outer // rows, rows * features, 1), tiled


def _add_sums(block: Array, columns: slice, total: Array) -> None:
    """Add the sums of a block's columns to the totals of their features."""
    features = total.size
    sums = np.add.reduce(block, axis=0)
    if sums.shape[1] > 1:
        total[columns] += sums.sum(axis=1, dtype=np.float64)
        return
    if columns.start == 0 and sums.shape[0] % features == 0:
        total += sums.reshape(-1, features).sum(axis=0, dtype=np.float64)
        return
    total[columns] += sums[:, 0]


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, slice, slice]]:
    """Cut [outer, feature, inner] into blocks that stay in the cache and keep sums short."""
    outer, features, inner = shape
    inner_step = min(max(inner, 1), _BLOCK_ELEMENTS)
    feature_step = max(1, min(features, _BLOCK_ELEMENTS // inner_step))
    outer_step = max(1, _BLOCK_ELEMENTS // (feature_step * inner_step))
    for o in range(0, outer, outer_step):
        for f in range(0, features, feature_step):
            for i in range(0, inner, inner_step):
                yield (
                    slice(o, o + outer_step),
                    slice(f, f + feature_step),
                    slice(i, i + inner_step),
                )
