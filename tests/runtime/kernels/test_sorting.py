from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hloipu_runtime.kernels import sort_networks
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.sorting import Order, SortKey, sort
from hloipu_runtime.kernels.topk import topk
from tests.support.cases import each

Array = NDArray[Any]


def signed_magnitude(value: float) -> int:
    """Return the place of a float32 in IEEE total order, from its bits."""
    bits = int(np.float32(value).view(np.uint32))
    return bits if bits < 1 << 31 else (1 << 31) - 1 - bits


@each("dtype", ["bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
@each("descending", [False, True])
@each("count", [1, 2, 300, 70_000])
def test_pairs_sort_stably_by_integer_keys(dtype: str, descending: bool, count: int) -> None:
    rng = np.random.default_rng(count)
    low, high = (0, 2) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    keys = np.array([low, high, 1, 0, high - 1], dtype)[rng.integers(0, 5, count)]
    places = np.arange(count, dtype=np.int32)
    got = sort([keys, places], 0, [SortKey(0, descending)])
    listed = keys.tolist()
    want = sorted(range(count), key=listed.__getitem__, reverse=descending)
    if descending:  # Python's reverse keeps equals in their order, as a stable sort must
        assert listed[want[0]] == max(listed)
    assert got[1].tolist() == want
    assert got[0].tolist() == [listed[k] for k in want]
    assert sort([keys], 0, [SortKey(0, descending)])[0].tolist() == got[0].tolist()


EDGES = [1.0, -0.0, 0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45, -0.0, np.nan, 0.0]


def test_total_order_tells_zeros_and_nans_apart() -> None:
    x = np.array(EDGES, np.float32)
    got = sort([x], 0, [SortKey(0)])[0]
    want = sorted(map(signed_magnitude, x), reverse=False)
    assert [signed_magnitude(v) for v in got] == want


@pytest.mark.parametrize("order", ["equal_zeros", "ieee"])
@pytest.mark.parametrize("descending", [False, True])
def test_equal_zeros_keep_their_places(order: Order, descending: bool) -> None:
    x = np.array(EDGES, np.float32)
    places = np.arange(len(EDGES))
    got = sort([x, places], 0, [SortKey(0, descending, order)])[1].tolist()

    def rank(k: int) -> tuple[bool, float]:
        missing = bool(np.isnan(x[k]))
        return missing, 0.0 if missing else float(x[k])

    assert got == sorted(range(len(EDGES)), key=rank, reverse=descending)
    rows = np.random.default_rng(3).choice(x, (5, 40))
    rows[::2, ::3] = np.arange(14) - 7
    places = np.broadcast_to(np.arange(40), rows.shape)
    for setting in (nullcontext(), computing()):  # the second one takes subnormals for zeros
        with setting:
            alone = sort([rows], 1, [SortKey(0, descending, order)])[0]
            together = sort([rows, places], 1, [SortKey(0, descending, order)])[0]
        assert alone.tobytes() == together.tobytes()


def test_several_keys_are_lexicographic() -> None:
    rng = np.random.default_rng(12)
    a, b = rng.integers(0, 4, 500), rng.integers(0, 4, 500).astype(np.float32)
    places = np.arange(500)
    got = sort([a, b, places], 0, [SortKey(1, True), SortKey(0)])[2].tolist()
    assert got == sorted(range(500), key=lambda k: (-float(b[k]), int(a[k])))


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_any_dimension(dimension: int) -> None:
    x = np.random.default_rng(13).integers(0, 99, (5, 6, 7)).astype(np.float64)
    got = sort([x], dimension, [SortKey(0)])[0]
    np.testing.assert_array_equal(got, np.sort(x, axis=dimension))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 16, 33, 257])
@pytest.mark.parametrize("strict", [True, False])
def test_an_arbitrary_comparator_sorts_stably(count: int, strict: bool) -> None:
    rng = np.random.default_rng(14)
    x = rng.integers(-5, 6, (2, count))
    tags = np.broadcast_to(np.arange(count), (2, count))
    before = x.copy()

    def nearer(a: Array, b: Array, s: Array, t: Array) -> Array:
        left, right = np.abs(a), np.abs(b)
        return np.asarray(left < right if strict else left <= right)

    got = sort([x, tags], 1, nearer)
    for row in range(2):
        listed = np.abs(x[row]).tolist()
        assert got[1][row].tolist() == sorted(range(count), key=listed.__getitem__)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("k", [0, 1, 4, 12])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_is_in_total_order_with_ties_by_place(k: int, largest: bool) -> None:
    x = np.array([EDGES, EDGES[::-1]], np.float32)
    values, places = topk(x, k, largest=largest)
    for row in range(2):
        ranks = [signed_magnitude(v) for v in x[row]]
        want = sorted(range(12), key=ranks.__getitem__, reverse=largest)[:k]
        assert places[row].tolist() == want
        assert [signed_magnitude(v) for v in values[row]] == [ranks[p] for p in want]
    assert places.dtype == np.int32


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64", "float64"])
def test_topk_of_other_types(dtype: str) -> None:
    x = np.random.default_rng(15).integers(0, 9, 1000).astype(dtype)
    listed = x.tolist()
    want = sorted(range(1000), key=listed.__getitem__, reverse=True)[:20]
    assert topk(x, 20)[1].tolist() == want


@pytest.mark.parametrize("shape", [(3, 2, 5), (2, 4, 16), (1, 8, 64), (7, 8, 3), (5, 2, 1)])
def test_rows_that_rise_and_fall_once_are_merged(shape: tuple[int, ...]) -> None:
    """Also where they begin on their way down: against numpy's sort."""
    rng = np.random.default_rng(shape[1])
    x = np.sort(rng.integers(-9, 9, shape), axis=1)
    falls = rng.integers(0, shape[1], shape[::2])
    for row, inner in np.ndindex(falls.shape):
        top = falls[row, inner]
        x[row, top:, inner] = x[row, top:, inner][::-1]
        x[row, :, inner] = np.roll(x[row, :, inner], rng.integers(shape[1]))
    expected = np.sort(x, axis=1)
    sort_networks.merge(x, 1)
    assert np.array_equal(x, expected)
