import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from hloipu_runtime.kernels.core.monoids import identity
from hloipu_runtime.kernels.elementwise.binary import binary
from hloipu_runtime.kernels.reduction import arg_extremum, reduce, rows_reduced
from hloipu_runtime.kernels.reduction_regions import SEQUENTIAL_STEPS
from tests.support.cases import each

Array = NDArray[Any]

SHAPES = [
    ((), ()),
    ((5,), (0,)),
    ((3, 4), ()),
    ((700, 3), (1,)),
    ((700, 3), (0,)),
    ((2, 300, 3), (1,)),
    ((3, 4, 5), (0, 2)),
    ((2, 3, 4, 5, 2), (1, 2, 4)),
    ((2, 0, 3), (1,)),
    ((0, 3), (1,)),
    ((1, 1), (0, 1)),
]


@each(("shape", "dimensions"), SHAPES)
@each("monoid", ["add", "multiply", "minimum", "maximum", "and", "or", "xor"])
@each("layout", ["C", "F"])
def test_integers_wrap_exactly(
    shape: tuple[int, ...], dimensions: tuple[int, ...], monoid: str, layout: Any
) -> None:
    rng = np.random.default_rng(4)
    x = np.asarray(rng.integers(-128, 128, shape), dtype=np.int8, order=layout)
    init = np.asarray(identity(monoid, x.dtype))
    ufunc = {
        "add": np.add,
        "multiply": np.multiply,
        "minimum": np.minimum,
        "maximum": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[monoid]
    # In 64 bits nothing wraps a sum; products keep their low byte.
    wide = ufunc.reduce(x.astype(np.int64), axis=dimensions, initial=int(init))
    got = reduce([x], [init], dimensions, monoid, ["s8"])[0]  # type: ignore[arg-type]
    assert got.dtype == np.int8
    np.testing.assert_array_equal(got, wide.astype(np.int8))


def test_narrow_integers_and_predicates() -> None:
    ones = np.ones(100, np.int8)
    assert reduce([ones], [np.zeros((), np.int8)], (0,), "add", ["s4"])[0] == 100 % 16
    flags = np.array([[True, False], [True, True]])
    no, yes = np.asarray(False), np.asarray(True)
    assert reduce([flags], [no], (1,), "add", ["pred"])[0].tolist() == [True, True]
    assert reduce([flags], [yes], (1,), "multiply", ["pred"])[0].tolist() == [False, True]
    assert reduce([flags], [no], (1,), "xor", ["pred"])[0].tolist() == [True, False]


@pytest.mark.parametrize(
    "shape", [(100_003,), (3, 20_011), (20_011, 3), (2, 10_007, 2), (9, 2_049), (3, 190, 70)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_keep_the_error_of_a_tree(shape: tuple[int, ...], dtype: str) -> None:
    axis = shape.index(max(shape))
    x = np.random.default_rng(5).uniform(0.5, 1.0, shape).astype(dtype)
    got = reduce(
        [x], [np.zeros((), dtype)], (axis,), "add", ["f32" if dtype == "float32" else "f64"]
    )
    rows = np.moveaxis(x, axis, -1).reshape(-1, max(shape))
    bound = 2 * math.log2(max(shape)) * np.finfo(dtype).eps
    for row, value in zip(rows, got[0].reshape(-1), strict=True):
        exact = math.fsum(row.tolist())
        assert abs(float(Fraction(float(value)) - Fraction(exact))) <= bound * exact


def test_long_products_keep_the_error_of_a_tree() -> None:
    x = np.random.default_rng(6).uniform(0.9, 1.111, (4, 5000)).astype(np.float32)
    got = reduce([x], [np.ones((), np.float32)], (1,), "multiply", ["f32"])[0]
    exact = np.multiply.reduce(x.astype(np.longdouble), axis=1)
    np.testing.assert_allclose(got, exact.astype(float), rtol=4 * 13 * 2.0**-24)


def test_half_precision_accumulates_in_float32() -> None:
    # Added one by one in bf16, ones stop at 256; XLA:CPU gives the rounded true count.
    ones = np.ones(3000, np.float32)
    zero = np.zeros((), np.float32)
    bf16 = reduce([ones], [zero], (0,), "add", ["bf16"])[0]
    assert bf16 == np.float32(ml_dtypes.bfloat16(3000))
    assert reduce([ones], [zero], (0,), "add", ["f16"])[0] == np.float32(np.float16(3000))


@pytest.mark.parametrize("axis", [0, 1])
def test_extrema_propagate_nan_and_order_zeros(axis: int) -> None:
    x = np.array([[1, np.nan], [-0.0, 0.0], [0.0, -0.0], [-0.0, -0.0], [-np.inf, 3]], np.float32)
    x = x if axis == 1 else x.T
    low, high = np.float32(-np.inf), np.float32(np.inf)
    greatest = reduce([x], [np.asarray(low)], (axis,), "maximum", ["f32"])[0]
    least = reduce([x], [np.asarray(high)], (axis,), "minimum", ["f32"])[0]
    assert np.isnan(greatest[0])
    assert np.isnan(least[0])
    assert greatest[1:].tolist() == [0, 0, 0, 3]
    assert np.signbit(greatest[1:4]).tolist() == [False, False, True]
    assert np.signbit(least[1:4]).tolist() == [True, True, True]
    assert least[4] == -np.inf


@each("monoid", ["maximum", "minimum"])
@each("init", [0.0, -0.0, 3.0])
def test_nan_of_an_extremum_stays_one_in_what_is_made_of_it(monoid: Any, init: float) -> None:
    x = np.ones((40, 9), np.float32)
    x[:, 2] = np.nan
    (found,) = reduce([x], [np.asarray(np.float32(init))], (1,), monoid, ["bf16"])
    assert np.isnan(binary("multiply", found, found, "bf16")).all()


@each("dtype", [np.float32, np.float64, np.int8, np.uint32, np.bool_])
@each("count", [1, 2, 33, 700, 3000])
def test_rows_have_the_bits_of_reductions_along_them(dtype: Any, count: int) -> None:
    rows = np.random.default_rng(4).integers(0, 2, (7, count, 8), np.uint8)
    rows = (rows * np.uint8(255)).astype(dtype)  # many equal ones
    if np.dtype(dtype).kind == "f":
        rows[1, :, 0], rows[2, 0] = np.nan, -0.0
    for ufunc in (np.maximum, np.minimum, np.add):
        if np.dtype(dtype).kind == "b" and ufunc is np.add:
            continue
        for x in (rows, rows.transpose(0, 2, 1)):
            wanted = ufunc.reduce(x, axis=-1, dtype=x.dtype)
            assert rows_reduced(x, ufunc).tobytes() == wanted.tobytes()


def test_an_init_is_taken_in_once() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert reduce([x], [np.float32(5)], (1,), "add", ["f32"])[0].tolist() == [8, 17]  # type: ignore[list-item]
    assert reduce([x], [np.float32(4)], (1,), "maximum", ["f32"])[0].tolist() == [4, 5]  # type: ignore[list-item]
    assert reduce([x[:, :0]], [np.float32(4)], (1,), "add", ["f32"])[0].tolist() == [4, 4]  # type: ignore[list-item]


def test_complex_sums() -> None:
    x = np.array([[1 + 2j, 3 - 1j], [0.5j, 2]], np.complex64)
    got = reduce([x], [np.zeros((), np.complex64)], (0,), "add", ["c64"])[0]
    assert got.tolist() == [1 + 2.5j, 5 - 1j]


def test_a_region_of_unknown_algebra_runs_in_row_major_order() -> None:
    # acc, value -> 2 acc - value tells every order from every other.
    x = np.arange(2 * 3 * 4, dtype=np.int64).reshape(2, 3, 4)
    got = reduce([x], [np.asarray(5)], (0, 2), lambda a, v: [2 * a - v], ["s64"])[0]
    for middle in range(3):
        want = 5
        for value in x[:, middle].reshape(-1).tolist():
            want = 2 * want - value
        assert got[middle] == want


@pytest.mark.parametrize("count", [1, 2, 7, SEQUENTIAL_STEPS + 1, 1000])
@pytest.mark.parametrize("axis", [0, 1])
def test_pairwise_folding_keeps_the_order(count: int, axis: int) -> None:
    # Composition of maps x -> a x + b (mod 97) is associative and does not commute.
    def compose(a: Array, b: Array, c: Array, d: Array) -> list[Array]:
        return [a * c % 97, (b * c + d) % 97]

    rng = np.random.default_rng(count)
    shape = (count, 3) if axis == 0 else (3, count)
    a, b = rng.integers(1, 97, shape), rng.integers(0, 97, shape)
    inits = [np.asarray(1), np.asarray(0)]
    got = reduce([a, b], inits, (axis,), compose, ["s64", "s64"], associative=True)
    for row in range(3):
        scale, offset = 1, 0
        for k in range(count):
            at = (k, row) if axis == 0 else (row, k)
            scale, offset = scale * int(a[at]) % 97, (offset * int(a[at]) + int(b[at])) % 97
        assert (got[0][row], got[1][row]) == (scale, offset)


def test_arg_extremum_takes_the_first_of_equals_and_the_first_nan() -> None:
    x = np.array([[1, 3, 3], [2, np.nan, np.nan], [-np.inf] * 3, [0.0, -0.0, -1]], np.float32)
    values, places = arg_extremum(x, 1, largest=True, place_dtype="int32")
    assert places.tolist() == [1, 1, 0, 0]
    assert places.dtype == np.int32
    np.testing.assert_array_equal(values, np.array([3, np.nan, -np.inf, 0], np.float32))
    assert arg_extremum(x.T, 0, largest=False, place_dtype="int64")[1].tolist() == [0, 1, 0, 2]
