import operator
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hloipu_runtime.kernels.accumulation import accumulate
from hloipu_runtime.kernels.select_scatter import select_and_scatter
from hloipu_runtime.kernels.windows import reduce_window
from hloipu_runtime.kernels.windows_geometry import WindowDimension, output_shape
from tests.support.cases import each

Array = NDArray[Any]
Dim = WindowDimension


def windows_of(
    shape: Sequence[int], window: Sequence[WindowDimension]
) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """List the real elements of every window in row-major order, by the definition."""
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for out in product(*map(range, output_shape(shape, window))):
        found[out] = []
        for inside in product(*(range(w.size) for w in window)):
            place = []
            for o, k, w, n in zip(out, inside, window, shape, strict=True):
                at = o * w.stride + k * w.window_dilation - w.pad_low
                if at < 0 or at % w.base_dilation or at // w.base_dilation >= n:
                    break
                place.append(at // w.base_dilation)
            else:
                found[out].append(tuple(place))
    return found


def fold(x: Array, init: Any, window: Sequence[Dim], step: Callable[[Any, Any], Any]) -> Array:
    """Fold each window one element at a time."""
    out = np.empty(output_shape(x.shape, window), x.dtype)
    for place, elements in windows_of(x.shape, window).items():
        total = init
        for element in elements:
            total = step(total, x[element])
        out[place] = total
    return out


WINDOWS = {
    "3/2 padded": [Dim(3, 2, 1, 1), Dim(3, 2, 1, 1)],
    "2/2": [Dim(2, 2), Dim(2, 2)],
    "one dimension": [Dim(1), Dim(3)],
    "dilated": [Dim(2, 1, 1, 2, 2, 3), Dim(3, 2, 0, 1, 3, 2)],
    "base dilation 3, stride 2": [Dim(2, 2, 3, 1, 3, 1), Dim(1, 2, 0, 0, 2, 1)],
    "negative padding": [Dim(2, 1, -1, -2), Dim(2, 3, 2, -1)],
    "beyond the operand": [Dim(2, 1, 4, 4), Dim(1)],
    "long": [Dim(13, 1, 6, 6), Dim(11, 2, 3, 9, 1, 2)],
    "cumulative": [Dim(6, 1, 5, 0), Dim(1)],
    "cumulative, last": [Dim(1), Dim(7, 1, 6, 0)],
    "cumulative, longer": [Dim(9, 1, 8, 0), Dim(7, 1, 0, 6)],
    "cumulative, reversed": [Dim(6, 1, 0, 5), Dim(1)],
    "no window fits": [Dim(9), Dim(1)],
}


@each("name", WINDOWS)
@each(
    ("monoid", "init", "step"),
    [
        ("add", 0, lambda a, b: a + b),
        ("add", 5, lambda a, b: a + b),
        ("maximum", -(2**31), max),
        ("minimum", 3, min),
        ("multiply", 1, lambda a, b: a * b),
        ("xor", 0, lambda a, b: a ^ b),
    ],
)
def test_monoids_by_definition(
    name: str, monoid: Any, init: int, step: Callable[[Any, Any], Any]
) -> None:
    x = np.random.default_rng(7).integers(-2, 3, (6, 7)).astype(np.int64)
    got = reduce_window([x], [np.asarray(init)], WINDOWS[name], monoid, ["s64"])[0]
    np.testing.assert_array_equal(got, fold(x, init, WINDOWS[name], step))


@pytest.mark.parametrize("name", ["2/2", "one dimension", "no window fits"])
def test_a_region_runs_in_row_major_order(name: str) -> None:
    x = np.random.default_rng(8).integers(0, 9, (6, 7))
    window = WINDOWS[name]
    got = reduce_window(
        [x], [np.asarray(1)], window, lambda a, v: [(3 * a + v) % 1009], ["s64"], associative=False
    )[0]
    np.testing.assert_array_equal(got, fold(x, 1, window, lambda a, v: (3 * a + v) % 1009))


# What XLA:CPU (jaxlib 0.10.2) makes of 1..12 in 3 rows, by the region 16 * acc + value.
XLA_VISITS = [
    (
        [Dim(2, 1, 1, 0), Dim(2, 1, 1, 0)],
        [
            [0x1, 0x12, 0x23, 0x34],
            [0x15, 0x1526, 0x2637, 0x3748],
            [0x59, 0x596A, 0x6A7B, 0x7B8C],
        ],
    ),
    (
        [Dim(2, 1, 1, 0), Dim(2)],
        [[0x12, 0x23, 0x34], [0x1256, 0x2367, 0x3478], [0x569A, 0x67AB, 0x78BC]],
    ),
    (
        [Dim(2), Dim(2, 1, 0, 1)],
        [[0x1526, 0x2637, 0x3748, 0x48], [0x596A, 0x6A7B, 0x7B8C, 0x8C]],
    ),
    (
        [Dim(3, 1, 0, 1), Dim(2, 1, 0, 1)],
        [[0x15926A, 0x26A37B, 0x37B48C, 0x48C], [0x596A, 0x6A7B, 0x7B8C, 0x8C]],
    ),
]


@pytest.mark.parametrize(("window", "want"), XLA_VISITS)
def test_overhanging_windows_are_visited_as_xla_does(
    window: list[Dim], want: list[list[int]]
) -> None:
    x = np.arange(1, 13).reshape(3, 4)
    got = reduce_window([x], [np.asarray(0)], window, lambda a, v: [16 * a + v], ["s64"])[0]
    assert got.tolist() == want


@pytest.mark.parametrize("window", [[Dim(5, 1, 2, 2)], [Dim(9, 1, 8, 0)], [Dim(7, 2, 3, 9, 2, 3)]])
def test_doubling_keeps_the_order_within_a_dimension(window: list[Dim]) -> None:
    # Composition of maps does not commute; padding has to be left out, not replaced.
    def compose(a: Array, b: Array, c: Array, d: Array) -> list[Array]:
        return [a * c % 97, (b * c + d) % 97]

    rng = np.random.default_rng(9)
    a, b = rng.integers(1, 97, 9), rng.integers(0, 97, 9)
    got = reduce_window(
        [a, b], [np.asarray(1), np.asarray(0)], window, compose, ["s64"] * 2, associative=True
    )
    for (out,), elements in windows_of((9,), window).items():
        scale, offset = 1, 0
        for (k,) in elements:
            scale, offset = scale * int(a[k]) % 97, (offset * int(a[k]) + int(b[k])) % 97
        assert (got[0][out], got[1][out]) == (scale, offset)


def test_extrema_of_zeros_nan_and_empty_windows() -> None:
    x = np.array([-0.0, 0.0, np.nan, -0.0, -0.0], np.float32)
    window = [Dim(2, 1, 2, 2)]
    low = np.asarray(np.float32(-np.inf))
    got = reduce_window([x], [low], window, "maximum", ["f32"])[0]
    want = [-np.inf, -0.0, 0.0, np.nan, np.nan, -0.0, -0.0, -np.inf]
    np.testing.assert_array_equal(got, np.array(want, np.float32))
    assert np.signbit(got[[1, 2, 5, 6]]).tolist() == [True, False, True, True]


def test_bf16_windows_are_rounded_once() -> None:
    ones = np.ones(3000, np.float32)
    got = reduce_window([ones], [np.zeros((), np.float32)], [Dim(3000, 1, 2999)], "add", ["bf16"])
    assert got[0][-1] == 3008
    assert got[0][999] == 1000


@pytest.mark.parametrize("shape", [(3, 70_000), (70_000, 2), (5000, 1500)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_running_sums_keep_a_small_error(shape: tuple[int, ...], dtype: str) -> None:
    if dtype == "float64" and shape == (5000, 1500):
        shape = (2500, 1200)
    axis = shape.index(max(shape))
    x = np.random.default_rng(10).uniform(0.5, 1, shape).astype(dtype)
    got = accumulate(x, axis, np.add)
    exact = np.cumsum(x, axis=axis, dtype=np.longdouble)
    assert got.dtype == x.dtype
    assert (
        float(np.max(np.abs(got - exact) / exact)) <= 2 * np.log2(max(shape)) * np.finfo(dtype).eps
    )


def test_windows_of_empty_operands_hold_the_init() -> None:
    x = np.zeros((0, 2), np.float32)
    got = reduce_window([x], [np.asarray(np.float32(3))], [Dim(2, 1, 2, 1), Dim(1)], "add", ["f32"])
    assert got[0].tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize("select", ["ge", "gt", "le", "lt"])
@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize(
    "window",
    [
        [Dim(2, 2), Dim(2, 2)],
        [Dim(3, 2, 1, 1), Dim(3, 2, 1, 1)],
        [Dim(3, 1, 2, 0), Dim(1)],
        [Dim(2, 3, 3, 3), Dim(2, 1)],
    ],
)
def test_select_and_scatter_by_definition(select: Any, dtype: str, window: list[Dim]) -> None:
    # No two values alike where windows overhang: their order of visits then does not show.
    rng = np.random.default_rng(11)
    ties = all(w.pad_low == w.pad_high == 0 for w in window)
    values = rng.integers(0, 3, 30) if ties else rng.permutation(30)
    x = values.reshape(6, 5).astype(dtype)
    if dtype == "float32" and ties:
        x[2, 3] = np.nan
    source = rng.integers(1, 9, output_shape(x.shape, window)).astype(dtype)
    stays: Callable[[Any, Any], Any] = getattr(operator, select)
    want = np.full(x.shape, 7, dtype)
    for out, elements in windows_of(x.shape, window).items():
        if not elements:
            continue
        chosen = elements[0]
        for element in elements[1:]:
            if not stays(x[chosen], x[element]):
                chosen = element
        want[chosen] += source[out]
    element_type = "s32" if dtype == "int32" else "f32"
    init = np.asarray(7, dtype)
    got = select_and_scatter(x, source, init, window, select, "add", element_type)
    np.testing.assert_array_equal(got, want)


def test_ties_in_overhanging_windows_go_where_xla_sends_them() -> None:
    x = np.array([[0, 1], [1, 0]], np.int32)
    source = np.array([[1, 2], [3, 4]], np.int32)
    window = [Dim(2, 1, 1), Dim(2, 1, 1)]
    got = select_and_scatter(x, source, np.asarray(np.int32(0)), window, "ge", "add", "s32")
    assert got.tolist() == [[1, 2], [7, 0]]


@pytest.mark.parametrize("monoid", ["add", "maximum", "multiply"])
@each("window", [[Dim(16), Dim(1)], [Dim(15), Dim(1)], [Dim(9, 20), Dim(1)], [Dim(9, 8), Dim(2)]])
def test_long_windows_with_few_places(window: list[Dim], monoid: Any) -> None:
    x = np.random.default_rng(9).integers(1, 3, (16, 7)).astype(np.int64)
    steps: dict[str, Callable[[Any, Any], Any]] = {
        "add": operator.add, "maximum": max, "multiply": operator.mul,
    }  # fmt: skip
    got = reduce_window([x], [np.asarray(1)], window, monoid, ["s64"])[0]
    np.testing.assert_array_equal(got, fold(x, 1, window, steps[monoid]))
