"""Conversions by value and by bits, and with random rounding."""

import ml_dtypes
import numpy as np
import pytest

from hloipu_runtime.element_types import ELEMENT_TYPES, GRIDS
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.computing import flushing_subnormals
from hloipu_runtime.kernels.core.storage import from_storage, storage_dtype, to_storage, user_dtype
from hloipu_runtime.kernels.elementwise.convert import bitcast_convert, convert, stochastic_convert
from tests.support.arrays import Array, f32, s8, s32, u8, u32
from tests.support.cases import each

ARRAYS = [t.name for t in ELEMENT_TYPES.values() if t.is_array]
INTEGERS = [t.name for t in ELEMENT_TYPES.values() if t.is_integer]


@each("to_type", ARRAYS)
@each("from_type", ARRAYS)
def test_small_numbers_and_shapes_for_every_pair(from_type: str, to_type: str) -> None:
    one = np.ones((2, 3), np.int8)
    x = -one if from_type == "s1" else one
    x = to_storage(x.astype(user_dtype(from_type)), from_type)
    found = convert(x, from_type, to_type)
    assert found.dtype == storage_dtype(to_type)
    assert found.shape == x.shape
    element = ELEMENT_TYPES[to_type]
    if from_type == "s1" and to_type != "pred":
        return
    wanted = -1 if to_type == "s1" and from_type[0] in "sup" else 1
    if to_type == "s1" and wanted == 1:
        wanted = 0  # the largest s1
    np.testing.assert_array_equal(found, np.full((2, 3), wanted).astype(found.dtype))
    assert convert(x[0, 0, ...], from_type, to_type).shape == ()
    assert convert(x[:0], from_type, to_type).shape == (0, 3)
    assert element.is_array


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("to_type", INTEGERS)
def test_floats_are_cut_and_clamped(to_type: str, dtype: type) -> None:
    bits = ELEMENT_TYPES[to_type].bits
    low, high = (
        (-(1 << bits - 1), (1 << bits - 1) - 1) if to_type[0] == "s" else (0, (1 << bits) - 1)
    )
    x: Array = np.array(
        [np.nan, np.inf, -np.inf, 1e30, -1e30, 0.9, -0.9, float(high + 1), float(low)], dtype
    )
    wanted = [0, high, low, high, low, 0, 0, high, low]
    found = convert(x, "f32" if dtype is np.float32 else "f64", to_type)
    assert found.tolist() == wanted
    below = np.nextafter(dtype(high + 1), dtype(0))
    assert convert(np.array([below]), "f32" if dtype is np.float32 else "f64", to_type)[0] == int(
        below
    )


def test_integers_wrap() -> None:
    x = s32([300, -1, 128, -129])
    np.testing.assert_array_equal(convert(x, "s32", "s8"), [44, -1, -128, 127])
    np.testing.assert_array_equal(convert(x, "s32", "u4"), [12, 15, 0, 15])
    np.testing.assert_array_equal(convert(x, "s32", "s2"), [0, -1, 0, -1])
    assert convert(np.array([-1], np.int64), "s64", "u64")[0] == 2**64 - 1
    np.testing.assert_array_equal(convert(x, "s32", "pred"), [True] * 4)


def test_truth_of_numbers() -> None:
    x = f32([0.0, -0.0, np.nan, 1e-40, 0.5])
    np.testing.assert_array_equal(convert(x, "f32", "pred"), [False, False, True, True, True])
    z = np.array([0, 1j], np.complex64)
    np.testing.assert_array_equal(convert(z, "c64", "pred"), [False, True])


@pytest.mark.parametrize("to_type", ["f16", "bf16", "f8e4m3fn", "f8e5m2"])
def test_integers_reach_narrow_floats_by_way_of_f32(to_type: str) -> None:
    x = np.random.default_rng(0).integers(-(2**31), 2**31, 20000) >> np.arange(20000) % 31
    x = np.concatenate([x, [16842753, 65520, 2**31 - 1]]).astype(np.int32)
    with np.errstate(all="ignore"):
        wanted = x.astype(np.float32).astype(user_dtype(to_type)).astype(np.float32)
    np.testing.assert_array_equal(convert(x, "s32", to_type), wanted)


def test_f64_rounds_once_to_narrow_floats() -> None:
    # 1 + 2^-8 is a tie in bf16; a little more must go up, though f32 would drop the little.
    assert convert(np.array([1 + 2.0**-8 + 2.0**-40]), "f64", "bf16")[0] == 1 + 2.0**-7
    assert convert(np.array([1 + 2.0**-8]), "f64", "bf16")[0] == 1.0


def test_complex_numbers() -> None:
    z = np.array([1.5 - 2j], np.complex128)
    assert convert(z, "c128", "f32")[0] == 1.5
    assert convert(z, "c128", "s32")[0] == 1
    assert convert(z, "c128", "c64").dtype == np.complex64
    assert convert(f32([0.5]), "bf16", "c64")[0] == 0.5


@pytest.mark.parametrize("from_type", ARRAYS)
def test_bits_of_equal_width(from_type: str) -> None:
    element = ELEMENT_TYPES[from_type]
    if from_type == "pred" or element.bits > 64 or f"u{element.bits}" not in ELEMENT_TYPES:
        return
    codes = np.random.default_rng(0).integers(0, 1 << min(element.bits, 62), 1000)
    u = codes.astype(storage_dtype(f"u{element.bits}"))
    there = bitcast_convert(u, f"u{element.bits}", from_type)
    assert there.dtype == storage_dtype(from_type)
    back = bitcast_convert(there, from_type, f"u{element.bits}")
    numbers = ~np.isnan(there) if element.is_float or element.is_complex else np.ones(1000, bool)
    np.testing.assert_array_equal(back[numbers], u[numbers])
    if element.bits >= 8 and element.bits < 64:
        users = from_storage(there, from_type)
        np.testing.assert_array_equal(users.view(u.dtype)[numbers], u[numbers])


def test_bits_across_widths() -> None:
    x = u32([[0x04030201, 0x08070605]])
    np.testing.assert_array_equal(bitcast_convert(x, "u32", "u8"), [[[1, 2, 3, 4], [5, 6, 7, 8]]])
    np.testing.assert_array_equal(bitcast_convert(bitcast_convert(x, "u32", "s8"), "s8", "u32"), x)
    np.testing.assert_array_equal(bitcast_convert(u8([0x2F]), "u8", "s4"), [[-1, 2]])
    np.testing.assert_array_equal(bitcast_convert(s8([[-1, 2]]), "s4", "u8"), [0x2F])
    np.testing.assert_array_equal(bitcast_convert(u8([0b11100100]), "u8", "u2"), [[0, 1, 2, 3]])
    halves = bitcast_convert(f32([1.0]), "f32", "bf16")
    np.testing.assert_array_equal(halves, [[0.0, 1.0]])
    assert bitcast_convert(u32(7), "u32", "u16").shape == (2,)
    nibbles = np.arange(8, dtype=np.uint8).reshape(1, 8)
    assert bitcast_convert(nibbles, "u4", "u32")[0] == 0x76543210
    with pytest.raises(UnsupportedError, match="6 bits of f6e2m3fn cannot be read"):
        bitcast_convert(f32([1]), "f6e2m3fn", "u8")


def test_stochastic_rounding_follows_the_random_bits() -> None:
    x = np.full(4, 1 + 2.0**-9, np.float32)  # a quarter of the way from 1 to the next bf16
    quarter = 1 << 30
    random = u32([0, quarter - 1, quarter, 2**32 - 1])
    found = stochastic_convert(x, random, "f32", "bf16")
    np.testing.assert_array_equal(found, [1 + 2.0**-7, 1 + 2.0**-7, 1.0, 1.0])
    np.testing.assert_array_equal(stochastic_convert(-x, random, "f32", "bf16"), -found)


def test_stochastic_rounding_to_integers() -> None:
    x = f32([2.5, -2.5, np.nan, np.inf, -1e10, 3.0])
    up, down = np.zeros(6, np.uint32), np.full(6, 2**32 - 1, np.uint32)
    np.testing.assert_array_equal(stochastic_convert(x, up, "f32", "s8"), [3, -3, 0, 127, -128, 3])
    np.testing.assert_array_equal(
        stochastic_convert(x, down, "f32", "s8"), [2, -2, 0, 127, -128, 3]
    )


@pytest.mark.parametrize("to_type", sorted(GRIDS))
def test_stochastic_rounding_is_unbiased_and_never_leaves_the_neighbours(to_type: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0.5, 5.0, 4000).astype(np.float32)
    mean = np.zeros_like(x)
    for _ in range(64):
        random = rng.integers(0, 2**32, x.size, dtype=np.uint32)
        found = stochastic_convert(x, random, "f32", to_type)
        nearest = convert(x, "f32", to_type)
        step = np.maximum(nearest, x) * 2.0 ** -(GRIDS[to_type].mantissa_bits - 1)
        assert (np.abs(found - x) <= step).all()
        mean += found / 64
    assert abs((mean - x).mean()) < 0.01


def test_ml_dtypes_agree_on_8_bit_sources() -> None:
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"):
        users = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name))
        element_type = "f8" + name.removeprefix("float8_")
        found = convert(to_storage(users, element_type), element_type, "f32")
        np.testing.assert_array_equal(found, users.astype(np.float32))


@pytest.mark.parametrize("to_type", ["f32", "c64"])
def test_the_smallest_f8e8m0fnu_survives_where_subnormals_are_flushed(to_type: str) -> None:
    smallest = np.array([2.0**-127, 1.0, 2.0**127], np.float32)
    with flushing_subnormals():
        widened = convert(smallest, "f8e8m0fnu", to_type)
    assert np.real(widened).tobytes() == smallest.tobytes()


@pytest.mark.parametrize(("name", "expected"), [("s4", -7), ("u4", 9), ("s2", 1), ("u2", 1)])
def test_one_number_wraps_as_arrays_do(name: str, expected: int) -> None:
    assert convert(np.array([25], np.uint32)[0], "u32", name) == expected
