import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from hloipu_runtime.kernels import scatter as scatter_module
from hloipu_runtime.kernels.core.monoids import UFUNCS
from hloipu_runtime.kernels.scatter import How, ScatterDimensions, form_of, scatter, scattering

Array = NDArray[Any]

ROWS = ScatterDimensions((1,), (0,), (0,), 1)
POINTS = ScatterDimensions((), (0,), (0,), 1)


@pytest.fixture(params=["few windows apart", "all by rows"], autouse=True)
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    form_of.cache_clear()  # it decides which way
    if request.param == "all by rows":
        monkeypatch.setattr(scatter_module, "FEW_WINDOWS", 0)
    yield
    form_of.cache_clear()


def one_by_one(
    operand: Array, indices: Array, updates: Array, combine: Callable[[Any, Any], Any]
) -> Array:
    """Update rows of a matrix in order, skipping those out of bounds."""
    out = operand.copy()
    for index, row in zip(indices.reshape(-1).tolist(), updates, strict=True):
        if 0 <= index < len(out):
            out[index] = combine(out[index], row)
    return out


@pytest.mark.parametrize(
    ("monoid", "combine"),
    [
        ("add", np.add),
        ("multiply", np.multiply),
        ("minimum", np.minimum),
        ("maximum", np.maximum),
        ("assign", lambda a, b: b),
    ],
)
@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
@pytest.mark.parametrize(("count", "width"), [(40, 3), (5, 3), (1, 3), (1100, 16)])
def test_rows_with_repeated_indices(
    monoid: str, combine: Callable[[Any, Any], Any], dtype: str, count: int, width: int
) -> None:
    rng = np.random.default_rng(1)
    operand = rng.integers(-4, 5, (6, width)).astype(dtype)
    indices = rng.integers(-2, 8, (count, 1))
    updates = rng.integers(-1 if monoid == "multiply" else -2, 2, (count, width)).astype(dtype)
    element = {"int32": "s32", "float32": "f32", "float64": "f64"}[dtype]
    before = operand.copy()
    got = scatter([operand], indices, [updates], ROWS, monoid, [element])[0]
    np.testing.assert_array_equal(got, one_by_one(operand, indices, updates, combine))
    np.testing.assert_array_equal(operand, before)


@pytest.mark.parametrize(("monoid", "operation"), [("and", "&"), ("or", "|"), ("xor", "^")])
def test_bitwise_monoids(monoid: str, operation: str) -> None:
    rng = np.random.default_rng(2)
    operand, updates = rng.integers(0, 256, 3), rng.integers(0, 256, 20)
    indices = rng.integers(0, 3, 20)
    want = operand.tolist()
    for index, value in zip(indices.tolist(), updates.tolist(), strict=True):
        current = want[index]
        want[index] = {"&": current & value, "|": current | value, "^": current ^ value}[operation]
    got = scatter([operand], indices, [updates], POINTS, monoid, ["s64"])[0]
    assert got.tolist() == want


def test_bfloat16_sums_are_rounded_after_every_update() -> None:
    # 256 + 1 rounds back to 256: the sum of ones stops there.
    got = scatter(
        [np.zeros(2, np.float32)],
        np.zeros((300, 1), np.int32),
        [np.ones(300, np.float32)],
        POINTS,
        "add",
        ["bf16"],
    )[0]
    want = ml_dtypes.bfloat16(0)
    for _ in range(300):
        want = ml_dtypes.bfloat16(want + ml_dtypes.bfloat16(1))
    assert got.tolist() == [float(want), 0]
    assert float(want) == 256


def test_narrow_integers_wrap() -> None:
    updates = np.full(9, 3, np.int8)
    got = scatter([np.zeros(1, np.int8)], np.zeros(9, int), [updates], POINTS, "add", ["s4"])[0]
    assert got.tolist() == [27 - 32]


def test_a_window_partly_out_of_bounds_is_skipped_whole() -> None:
    dims = ScatterDimensions((1,), (), (0,), 1)
    updates = np.array([[1, 2, 3]] * 4)
    for start, want in ((-1, [0] * 6), (0, [1, 2, 3, 0, 0, 0]), (3, [0, 0, 0, 1, 2, 3])):
        got = scatter([np.zeros(6, int)], np.array([[start]]), [updates[:1]], dims, "add", ["s64"])
        assert got[0].tolist() == want
    indices = np.array([[4], [1], [2], [2**63]], np.uint64)
    got = scatter([np.zeros(6, int)], indices, [updates], dims, "add", ["s64"])
    assert got[0].tolist() == [0, 1, 3, 5, 3, 0]


def test_batching_dimensions_and_window_order() -> None:
    # operand [b, i, w]; updates [w, b, n] into operand[b, index[b, n], :].
    dims = ScatterDimensions((0,), (1,), (1,), 2, (0,), (0,))
    rng = np.random.default_rng(3)
    operand = rng.integers(0, 9, (3, 4, 2))
    indices = rng.integers(0, 4, (3, 5, 1))
    updates = rng.integers(0, 9, (2, 3, 5))
    want = operand.copy()
    for b in range(3):
        for n in range(5):
            want[b, indices[b, n, 0]] += updates[:, b, n]
    got = scatter([operand], indices, [updates], dims, "add", ["s64"])[0]
    np.testing.assert_array_equal(got, want)


def test_a_region_on_several_operands_sees_updates_in_order() -> None:
    def region(a: Array, b: Array, u: Array, v: Array) -> list[Array]:
        return [2 * a - u, b * 3 + v]

    indices = np.array([0, 1, 0, 0, 1])
    u, v = np.arange(1, 6), np.arange(6, 11)
    want = [[1, 1], [0, 0]]
    for index, p, q in zip(indices.tolist(), u.tolist(), v.tolist(), strict=True):
        want[0][index] = 2 * want[0][index] - p
        want[1][index] = want[1][index] * 3 + q
    got = scatter(
        [np.ones(2, int), np.zeros(2, int)], indices, [u, v], POINTS, region, ["s64", "s64"]
    )
    assert [g.tolist() for g in got] == want


def test_extrema_tell_zeros_apart_and_keep_nan() -> None:
    operand = np.array([-0.0, 0.0, 1.0], np.float32)
    updates = np.array([0.0, -0.0, np.nan], np.float32)
    greatest = scatter([operand], np.arange(3), [updates], POINTS, "maximum", ["f32"])[0]
    least = scatter([operand], np.arange(3), [updates], POINTS, "minimum", ["f32"])[0]
    assert np.signbit(greatest[:2]).tolist() == [False, False]
    assert np.signbit(least[:2]).tolist() == [True, True]
    assert np.isnan(greatest[2])
    assert np.isnan(least[2])


def test_in_place_changes_the_operand() -> None:
    operand = np.zeros((4, 2))
    indices = np.array([[1], [1]])
    got = scatter([operand], indices, [np.ones((2, 2))], ROWS, "add", ["f64"], in_place=True)[0]
    assert np.shares_memory(got, operand)
    assert operand.tolist() == [[0, 0], [2, 2], [0, 0], [0, 0]]


def test_unique_indices_and_empty_updates() -> None:
    indices = np.array([2, 0])
    got = scatter([np.zeros(3)], indices, [np.ones(2)], POINTS, "add", ["f64"], unique_indices=True)
    assert got[0].tolist() == [1, 0, 1]
    none = scatter([np.zeros(3)], indices[:0], [np.ones(0)], POINTS, "add", ["f64"])
    assert none[0].tolist() == [0, 0, 0]


ELEMENTS = ScatterDimensions((), (0, 1), (0, 1), 1)
TYPES: dict[str, Any] = {"f32": np.float32, "s32": np.int32, "u8": np.uint8}


def looped(x: Any, indices: Any, update: Any, ufunc: np.ufunc) -> Any:
    out = x.copy()
    for (row, column), value in zip(indices.tolist(), update, strict=True):
        if 0 <= row < x.shape[0] and 0 <= column < x.shape[1]:
            out[row, column] = ufunc(out[row, column], value)
    return out


@pytest.mark.parametrize("kind", ["f32", "s32", "u8"])
@pytest.mark.parametrize("monoid", ["add", "multiply", "maximum"])
@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("low", [0, -2])
def test_points_are_combined_in_order_and_the_operand_stays(
    kind: str, monoid: str, count: int, low: int
) -> None:
    drawn = np.random.default_rng(count)
    x = drawn.integers(1, 5, (4, 6)).astype(TYPES[kind])
    indices = np.stack([drawn.integers(low, 4, count), drawn.integers(low, 6, count)], 1)
    update = drawn.integers(0, 3, count).astype(TYPES[kind])
    before = x.copy()
    form = form_of(x.shape, indices.shape, update.shape, ELEMENTS)

    with np.errstate(over="ignore"):
        found = scattering(form, How(monoid, (kind,)))(x, indices, update)
        wanted = looped(x, indices, update, UFUNCS[monoid])

    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(x, before)


def test_an_operand_that_repeats_one_number_becomes_an_array() -> None:
    x = np.broadcast_to(np.float32(0), (3, 20))
    indices = np.stack([np.arange(30) % 3, np.arange(30) % 10], 1).astype(np.int32)
    update = np.broadcast_to(np.float32(0.5), (30,))
    form = form_of(x.shape, indices.shape, update.shape, ELEMENTS)
    found = scattering(form, How("add", ("f32",)))(x, indices, update)
    np.testing.assert_array_equal(found, looped(np.zeros((3, 20)), indices, update, np.add))


def test_a_large_window_is_put_in_place_in_the_memory_that_is_there() -> None:
    table, update = np.zeros((514, 512), np.float32), np.ones((512, 500), np.float32)
    indices = np.array([1, 7], np.int32)
    dims = ScatterDimensions((0, 1), (), (0, 1), 0)
    tracemalloc.start()
    try:
        (out,) = scatter([table], indices, [update], dims, "assign", ["f32"], in_place=True)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert out is table
    assert np.array_equal(out[1:513, 7:507], update)
    assert out.sum() == update.sum()
    assert peak_bytes < update.nbytes / 4
