"""Comparisons, choices and clamps."""

import operator

import numpy as np
import pytest

from hloipu_runtime.kernels.elementwise.compare import (
    choose_by_mask,
    clamp,
    compare,
    mask,
    masked,
    select,
    select_on_arrays,
)
from tests.support.arrays import Array, f32, s8, s32

DIRECTIONS = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "GE": operator.ge,
    "GT": operator.gt,
    "LE": operator.le,
    "LT": operator.lt,
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("direction", sorted(DIRECTIONS))
def test_total_order(direction: str, dtype: type) -> None:
    ordered: Array = np.array([np.nan, -np.inf, -1, -0.0, 0.0, 1e-40, 1, np.inf, np.nan], dtype)
    ordered[0] = -ordered[0]
    ordered[-1] = abs(ordered[-1])
    rank = np.arange(ordered.size)
    x, y = np.repeat(ordered, ordered.size), np.tile(ordered, ordered.size)
    found = compare(x, y, direction, "TOTALORDER", "f32" if dtype is np.float32 else "f64")
    wanted = DIRECTIONS[direction](rank[:, None], rank[None, :]).reshape(-1)
    np.testing.assert_array_equal(found, wanted)


def test_own_order() -> None:
    x, y = f32([np.nan, 0.0, 1.0]), f32([np.nan, -0.0, 2.0])
    np.testing.assert_array_equal(compare(x, y, "EQ", None, "f32"), [False, True, False])
    np.testing.assert_array_equal(compare(x, y, "NE", "FLOAT", "f32"), [True, False, True])
    np.testing.assert_array_equal(compare(x, y, "GE", None, "bf16"), [False, True, False])
    p, q = np.array([True, False]), np.array([False, True])
    np.testing.assert_array_equal(compare(p, q, "GT", None, "pred"), [True, False])
    z = np.array([1 + 2j, 1 - 2j], np.complex64)
    np.testing.assert_array_equal(compare(z, z.conj(), "EQ", None, "c64"), [False, False])


def test_integers_read_as_the_other_kind() -> None:
    x, y = s8([-1, 1]), s8([1, -1])
    np.testing.assert_array_equal(compare(x, y, "GT", "UNSIGNED", "s8"), [True, False])
    np.testing.assert_array_equal(compare(x, y, "GT", "SIGNED", "s8"), [False, True])


def test_select() -> None:
    t, f = s32([1, 2, 3]), s32([4, 5, 6])
    p = np.array([True, False, True])
    np.testing.assert_array_equal(select(p, t, f), [1, 5, 3])
    assert select(np.array(True), t, f) is t
    assert select(np.array(False), t, f) is f
    for choice in (True, False):  # a number is chosen for every element
        found = select(np.array(choice), t, s32(7))
        np.testing.assert_array_equal(found, t if choice else [7, 7, 7])
        assert found.shape == t.shape
    for place in (0, 1):
        operands = [np.resize(t, 1 << 17), np.resize(f, 1 << 17)]
        yes, no = operands
        found = select(np.resize(p, 1 << 17), yes, no, operands[place])
        assert found is operands[place]
        np.testing.assert_array_equal(found, np.resize([1, 5, 3], 1 << 17))
    same = np.resize(t, 1 << 17)
    np.testing.assert_array_equal(
        select(np.resize(p, 1 << 17), same, same, same), np.resize(t, 1 << 17)
    )


def test_clamp() -> None:
    x = f32([-2.0, 0.5, 9.0, np.nan])
    low, high = np.array(-1, np.float32), np.array(1, np.float32)
    np.testing.assert_array_equal(clamp(low, x, high, "f32"), [-1.0, 0.5, 1.0, np.nan])
    # The upper bound is applied last.
    np.testing.assert_array_equal(clamp(high, x, low, "f32"), [-1.0, -1.0, -1.0, np.nan])
    np.testing.assert_array_equal(x, f32([-2.0, 0.5, 9.0, np.nan]))
    bounds = s32([0, 5]), s32([3, 4])
    np.testing.assert_array_equal(clamp(bounds[0], s32([7, 7]), bounds[1], "s32"), [3, 4])
    scalar = clamp(low, np.array(4, np.float32), high, "f32")
    assert scalar.shape == ()
    assert scalar == 1


@pytest.mark.parametrize(
    "dtype", [np.int8, np.bool_, np.uint16, np.float32, np.int64, np.complex64]
)
def test_select_of_many_keeps_every_bit(dtype: type) -> None:
    source = np.random.default_rng(5)
    count = 40_001
    chosen = source.integers(0, 2, count).astype(bool)
    words = source.integers(0, 2**32, (2, count), np.uint32)
    yes, no = words.view(dtype) if dtype is np.float32 else (words & 1).astype(dtype)
    result = select(chosen, yes, no)
    assert result.dtype == dtype
    assert (result[chosen].tobytes(), result[~chosen].tobytes()) == (
        yes[chosen].tobytes(), no[~chosen].tobytes()
    )  # fmt: skip


def test_select_of_many_with_a_broadcast_and_a_transposed_operand() -> None:
    chosen = np.random.default_rng(5).integers(0, 2, (90, 80)).astype(bool)
    yes = np.arange(7200, dtype=np.float32).reshape(80, 90).T
    result = select(chosen, yes, np.broadcast_to(np.float32(-1), (90, 80)))
    np.testing.assert_array_equal(result, np.where(chosen, yes, -1))


@pytest.mark.parametrize("size", [5, 300])
@pytest.mark.parametrize("over", [0, 1, 2, None])
def test_calls_on_arrays_choose_over_an_operand_as_well(size: int, over: int | None) -> None:
    random = np.random.default_rng(7)
    holds, yes, no = (random.random(size) < 0.5 for _ in range(3))
    want = np.where(holds, yes, no)
    out = np.zeros(size, np.bool_) if over is None else (holds, yes, no)[over]
    calls = select_on_arrays(holds, yes, no, out, np.empty)
    assert (calls is None) == (over is not None)
    if calls is not None:
        for call in calls:
            call()
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("shape", [(), (300,)])
@pytest.mark.parametrize("over", [1, 2, None])
def test_masks_choose_over_an_operand_as_well(shape: tuple[int, ...], over: int | None) -> None:
    random = np.random.default_rng(8)
    for choice in (True, False):
        holds = random.random(shape) < 0.5 if shape else np.array(choice)
        yes, no = (np.asarray(random.normal(size=shape), np.float32) for _ in range(2))
        want, kept = np.where(holds, yes, no), np.where(holds, 0, no)
        out = None if over is None else (holds, yes, no)[over]
        bits, inverted = (mask(holds, np.dtype(np.int32), None, inverted=x) for x in (False, True))
        np.testing.assert_array_equal(masked(inverted, no, None), kept)
        np.testing.assert_array_equal(choose_by_mask(bits, yes, no, out), want)
