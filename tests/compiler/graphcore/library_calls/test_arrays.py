"""Non-linearities, scaled sums, codes and extremes, against numpy and scipy."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from tests.support.popops_call import called, drawn

Full = NDArray[Any]
X, G = drawn(3, 4), drawn(3, 4, seed=9)
A, B = np.float32(2), np.float32(0.5)


def _gelu(x: Full) -> Full:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _swish(x: Full) -> Full:
    return np.asarray(x * special.expit(x))


def _slope(function: Callable[[Full], Full]) -> Callable[[Full], Full]:
    return lambda x: (function(x + 1e-6) - function(x - 1e-6)) / 2e-6


FORWARD: dict[str, Callable[[Full], Full]] = {
    "Relu": lambda x: np.maximum(x, 0), "Sigmoid": special.expit, "Gelu": _gelu, "Swish": _swish,
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1), "Erf": special.erf,
    "GeluErf": lambda x: x * special.ndtr(x), "Square": np.square, "Inverse": lambda x: 1 / x,
    "Softmax": lambda x: special.softmax(x, -1), "StableSoftmax": lambda x: special.softmax(x, -1),
}  # fmt: skip
SLOPES: dict[str, Callable[[Full], Full]] = {
    "ReluGrad": lambda y: y > 0, "TanhGrad": lambda y: 1 - y * y,
    "SigmoidGrad": lambda y: y * (1 - y), "HardSigmoidGrad": lambda y: 0.2 * ((y > 0) & (y < 1)),
    "GeluGrad": _slope(_gelu), "SwishGrad": _slope(_swish),
}  # fmt: skip


@pytest.mark.parametrize("target", FORWARD)
def test_nonlinearities(target: str) -> None:
    (made,) = called(target, [3 * X], "f32[3,4]", {})
    np.testing.assert_allclose(made, FORWARD[target](3 * X.astype(np.float64)), 2e-5, 1e-6)


@pytest.mark.parametrize("target", SLOPES)
def test_gradients_of_nonlinearities(target: str) -> None:
    (made,) = called(target, [X, G], "f32[3,4]")
    np.testing.assert_allclose(made, G * SLOPES[target](X.astype(np.float64)), 1e-4, 1e-5)


def test_narrow_types_are_computed_in_wide_ones() -> None:
    half = X.astype(np.float16)
    (made,) = called("Softmax", [half], "f16[3,4]")
    exact = special.softmax(half.astype(np.float64), -1).astype(np.float16)
    np.testing.assert_array_max_ulp(made, exact, 1)


def _changed(part: tuple[slice, slice], value: Full) -> Full:
    whole = X.astype(np.float64)
    whole[part] = value
    return whole


ROW, COLUMNS = (slice(1, 2), slice(None)), (slice(None), slice(2, 4))
SUMS = [
    ("ScaledInplaceXbY", [X, G, B], {"operation": "subtract"}, X - B * G),
    ("ScaledInplaceaXbY", [X, G, A, B], {"operation": "add"}, A * X + B * G),
    ("SliceApply", [X, G[COLUMNS]], {"apply_dimension": 1, "start_index": 2, "operation": "add"},
     _changed(COLUMNS, X[COLUMNS] + G[COLUMNS])),
    ("SliceApplyaXbY", [X, G[ROW], A, B],
     {"apply_dimension": 0, "start_index": 1, "operation": "subtract"},
     _changed(ROW, A * X[ROW] - B * G[ROW])),
    ("SliceApplyabY", [X, G[ROW], B],
     {"apply_dimension": 0, "start_index": 1, "operation": "add"},
     _changed(ROW, X[ROW] + B * G[ROW])),
    ("SliceApplyaXb", [X, G[ROW], A],
     {"apply_dimension": 0, "start_index": 1, "operation": "add"},
     _changed(ROW, A * X[ROW] + G[ROW])),
    ("CopyInto", [X, G], None, G),
]  # fmt: skip


@pytest.mark.parametrize(("target", "given", "said", "wanted"), SUMS)
@pytest.mark.parametrize("as_line", [False, True])
def test_sums_of_scaled_arrays_and_parts(
    target: str, given: list[Full], said: dict[str, object] | None, wanted: Full, as_line: bool
) -> None:
    line = ", ".join(f"{key}={value}" for key, value in (said or {}).items())
    arrays = [np.asarray(x) for x in given]
    (made,) = called(target, arrays, "f32[3,4]", *((None, line) if as_line else (said,)))
    np.testing.assert_allclose(made, wanted, 1e-6, 1e-6)


def test_one_hot_codes_have_nothing_where_an_index_is_beyond() -> None:
    indices = np.array([[0, 1, 2], [3, 0, 9]], np.int32)
    on, off = np.asarray(np.float32(1)), np.asarray(np.float32(-1))
    (made,) = called("OneHot", [indices, on, off], "f32[2,4,3]", {"depth": 4, "axis": 1})
    hot = indices[:, None, :] == np.arange(4)[None, :, None]
    np.testing.assert_array_equal(made, np.where(hot, on, off))


def test_extremes_are_found_at_their_first_place() -> None:
    x = np.array([[1, 3, 3], [2, 0, 2]], np.float32)
    assert called("ArgMax", [x], "s64[2]", {"axis": 1})[0].tolist() == [1, 0]
    assert called("ArgMin", [x], "s32[3]", line="axis=0")[0].tolist() == [0, 1, 1]
    best, place = called("MaxAndArgMax", [x], "(f32[2], s32[2])", {"axis": -1})
    assert (best.tolist(), place.tolist()) == ([3, 2], [1, 0])
    least, place = called("MinAndArgMin", [x], "(f32[2], s32[2])", {"axis": 1})
    assert (least.tolist(), place.tolist()) == ([1, 0], [0, 1])
    values, places = called("TopK", [x], "(f32[2,2], s32[2,2])", {"num_k": 2, "sorted": True})
    assert (values.tolist(), places[1].tolist()) == ([[3, 3], [2, 2]], [0, 2])


def test_numbers_are_picked_from_rows_and_made_less() -> None:
    x, index = drawn(3, 4), np.array([2, 0, 3], np.int32)
    (made,) = called("SelectScalarFromRows", [x, index], "f32[3]")
    np.testing.assert_array_equal(made, x[np.arange(3), index])
    (made,) = called("UpdateScalarInRows", [x, index], "f32[3,4]")
    np.testing.assert_array_equal(made, x - (np.arange(4) == index[:, None]))
