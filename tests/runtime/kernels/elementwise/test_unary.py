"""Elementwise operations on one array, against float64, ml_dtypes and tables written by hand."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.special

from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.core.rounding import round_to
from hloipu_runtime.kernels.core.storage import from_bits, to_storage, user_dtype
from hloipu_runtime.kernels.elementwise.unary import UNARY, erf, unary
from tests.support.arrays import Array, f32, s8, s32, u8
from tests.support.cases import each

TRUTH: dict[str, Callable[..., Array]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "cosine": np.cos,
    "cosh": np.cosh,
    "erf": scipy.special.erf,
    "exponential": np.exp,
    "exponential-minus-one": np.expm1,
    "log": np.log,
    "log-plus-one": np.log1p,
    "logistic": scipy.special.expit,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sine": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}


def _samples() -> Array:
    rng = np.random.default_rng(0)
    spread = rng.standard_normal(20000) * 10.0 ** rng.uniform(-6, 2, 20000)
    return np.concatenate([rng.uniform(-2, 2, 20000), spread]).astype(np.float32)


@pytest.mark.parametrize("opcode", sorted(TRUTH))
def test_f32_is_within_4_ulp(opcode: str) -> None:
    x = _samples()
    with np.errstate(all="ignore"):
        wanted = TRUTH[opcode](x.astype(np.float64))
    found = unary(opcode, x, "f32")
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    # Results below the smallest normal number have no relative accuracy to ask for.
    usable = np.isfinite(wanted) & (np.abs(wanted) >= 2.0**-126) & (np.abs(wanted) < 2.0**128)
    ulp = np.spacing(np.abs(wanted[usable]).astype(np.float32)).astype(np.float64)
    assert (np.abs(found[usable] - wanted[usable]) / ulp).max() <= 4


@each("element_type", ["f16", "bf16", "f8e4m3fn", "f8e5m2fnuz", "f6e2m3fn"])
@each("opcode", sorted(TRUTH))
def test_narrow_floats_are_the_truth_rounded_but_for_one_step(
    opcode: str, element_type: str
) -> None:
    width = user_dtype(element_type).itemsize * 8
    codes = np.arange(min(1 << width, 1 << 16), dtype=f"u{width // 8}")
    if element_type.startswith("f6"):
        codes = codes[:64]
    x = from_bits(codes, element_type)
    with np.errstate(all="ignore"):
        wanted = round_to(TRUTH[opcode](x.astype(np.float64)), element_type)
        found = unary(opcode, x, element_type)
        steps = np.abs(found.astype(np.float64) - wanted)
    agree = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    # One step of the grid is at most 2^-mantissa_bits of the value, or the smallest subnormal.
    bits = {"f16": 10, "bf16": 7, "f8e4m3fn": 3, "f8e5m2fnuz": 2, "f6e2m3fn": 3}[element_type]
    with np.errstate(all="ignore"):
        near = steps <= np.maximum(np.abs(wanted) * 2.0**-bits, 2.0**-126)
    assert (agree | near).all()
    assert agree.mean() > 0.999


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("opcode", "given", "wanted"),
    [
        ("abs", [-0.0, -np.inf, -2.0], [0.0, np.inf, 2.0]),
        ("ceil", [-0.5, 1.2, np.inf], [-0.0, 2.0, np.inf]),
        ("floor", [-0.5, -0.0, 1.8], [-1.0, -0.0, 1.0]),
        ("negate", [0.0, -1.0], [-0.0, 1.0]),
        ("round-nearest-afz", [0.5, -0.5, 2.5, -1.5, -0.2], [1.0, -1.0, 3.0, -2.0, -0.0]),
        ("round-nearest-even", [0.5, -0.5, 2.5, -1.5, 3.5], [0.0, -0.0, 2.0, -2.0, 4.0]),
        ("sign", [0.0, -0.0, 5e-324, -3.0, np.inf], [0.0, -0.0, 1.0, -1.0, 1.0]),
        ("sqrt", [-0.0, 4.0, np.inf], [-0.0, 2.0, np.inf]),
        ("rsqrt", [0.0, -0.0, 4.0, np.inf], [np.inf, -np.inf, 0.5, 0.0]),
        ("log", [0.0, -0.0, 1.0], [-np.inf, -np.inf, 0.0]),
        ("exponential", [-np.inf, np.inf, 0.0, -0.0], [0.0, np.inf, 1.0, 1.0]),
        ("logistic", [-np.inf, np.inf, 0.0], [0.0, 1.0, 0.5]),
        ("tanh", [-np.inf, -0.0], [-1.0, -0.0]),
        ("imag", [3.0, np.nan], [0.0, 0.0]),
        ("real", [3.0, -0.0], [3.0, -0.0]),
    ],
)
def test_edges(opcode: str, given: list[float], wanted: list[float], dtype: type) -> None:
    x: Array = np.array(given, dtype)
    if opcode == "sign" and dtype is np.float32:
        x[2] = 2.0**-149
    found = unary(opcode, x, "f32" if dtype is np.float32 else "f64")
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


@pytest.mark.parametrize("opcode", sorted(set(TRUTH) | {"abs", "sign", "floor", "negate"}))
def test_nan_stays_nan(opcode: str) -> None:
    for element_type in ("f32", "bf16", "f16", "f8e4m3fn"):
        assert np.isnan(unary(opcode, f32([np.nan, 0.5]), element_type)[0])


def test_half_away_from_zero_does_not_carry_just_below_a_half() -> None:
    x = f32([0.49999997, -0.49999997, 8388609.0, 4194305.5])
    found = unary("round-nearest-afz", x, "f32")
    np.testing.assert_array_equal(found, [0.0, -0.0, 8388609.0, 4194306.0])


def test_ceil_may_leave_a_small_format() -> None:
    assert unary("ceil", f32([15.5]), "f8e3m4")[0] == np.inf
    assert unary("ceil", f32([7.5]), "f6e2m3fn")[0] == 7.5


def test_negation_knows_formats_without_negative_zero() -> None:
    assert not np.signbit(unary("negate", f32([0.0]), "f8e4m3fnuz")[0])
    assert np.signbit(unary("negate", f32([0.0]), "f8e4m3fn")[0])


@pytest.mark.parametrize(
    ("element_type", "given", "zeros", "ones"),
    [
        ("s8", [0, 1, -1, 64], [8, 7, 0, 1], [0, 1, 8, 1]),
        ("u16", [0, 3, 65535], [16, 14, 0], [0, 2, 16]),
        ("s32", [0, 2**31 - 1, -(2**31)], [32, 1, 0], [0, 31, 1]),
        ("u32", [2**24 - 1, 2**25 - 1], [8, 7], [24, 25]),
        ("s64", [0, 2**62, 2**53 - 1, -1], [64, 1, 11, 0], [0, 1, 53, 64]),
        ("u64", [2**64 - 1, 2**63 - 1, 2**54 - 1], [0, 1, 10], [64, 63, 54]),
        ("u4", [0, 15, 4], [4, 0, 1], [0, 4, 1]),
        ("s2", [0, 1, -1], [-2, 1, 0], [0, 1, -2]),
    ],
)
def test_counting_bits(
    element_type: str, given: list[int], zeros: list[int], ones: list[int]
) -> None:
    x = to_storage(np.array(given, object).astype(user_dtype(element_type)), element_type)
    found = unary("count-leading-zeros", x, element_type)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, zeros)
    np.testing.assert_array_equal(unary("popcnt", x, element_type), ones)


def test_integers_wrap() -> None:
    x = s8([-128, 127, 0])
    np.testing.assert_array_equal(unary("negate", x, "s8"), [-128, -127, 0])
    np.testing.assert_array_equal(unary("abs", x, "s8"), [-128, 127, 0])
    np.testing.assert_array_equal(unary("negate", u8([1, 0, 15]), "u4"), [15, 0, 1])
    np.testing.assert_array_equal(unary("abs", s8([-8, -7]), "s4"), [-8, 7])
    np.testing.assert_array_equal(unary("not", u8([0, 5]), "u4"), [15, 10])
    np.testing.assert_array_equal(unary("not", np.array([True, False]), "pred"), [False, True])
    np.testing.assert_array_equal(unary("sign", s32([-5, 0, 9]), "s32"), [-1, 0, 1])


def test_is_finite() -> None:
    x = f32([1.0, np.inf, np.nan])
    np.testing.assert_array_equal(unary("is-finite", x, "f16"), [True, False, False])


def test_meaningless_combinations_are_refused() -> None:
    for opcode, element_type, dtype in (
        ("tanh", "s32", np.int32),
        ("popcnt", "f32", np.float32),
        ("cbrt", "c64", np.complex64),
    ):
        with pytest.raises(UnsupportedError, match=f"{opcode} of {element_type} has no meaning"):
            unary(opcode, np.zeros(2, dtype), element_type)


@pytest.mark.parametrize("element_type", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("opcode", ["logistic", "sign", "erf", "tanh"])
def test_layouts_blocks_and_out_agree(opcode: str, element_type: str) -> None:
    x = to_storage(
        np.random.default_rng(0).standard_normal((50, 1500)).astype(np.float32), element_type
    )
    wanted = unary(opcode, np.ascontiguousarray(x[:, :1000]), element_type)
    np.testing.assert_array_max_ulp(unary(opcode, x[:, :1000], element_type), wanted, 1)
    transposed = np.asfortranarray(x[:, :1000])
    np.testing.assert_array_max_ulp(unary(opcode, transposed, element_type), wanted, 1)
    inplace = x[:, :1000].copy()
    assert unary(opcode, inplace, element_type, out=inplace) is inplace
    np.testing.assert_array_equal(inplace, wanted)
    rows = np.broadcast_to(x[:1, :1000], (50, 1000))
    spread = unary(opcode, rows, element_type)
    assert spread.shape == rows.shape
    np.testing.assert_array_max_ulp(spread[7], wanted[0], 1)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1)])
def test_small_shapes(shape: tuple[int, ...]) -> None:
    for opcode in UNARY:
        for element_type, dtype in (
            ("f32", np.float32),
            ("f8e5m2", np.float32),
            ("s4", np.int8),
            ("c64", np.complex64),
        ):
            x = np.ones(shape, dtype)
            try:
                found = unary(opcode, x, element_type)
            except UnsupportedError:
                continue
            assert isinstance(found, np.ndarray)
            assert found.shape == shape


def _ulps(found: Array, wanted: np.ndarray) -> Array:
    return np.asarray(np.abs(found - wanted) / np.spacing(np.abs(wanted.astype(found.dtype))))


@pytest.mark.parametrize(("dtype", "budget"), [(np.float32, 4.0), (np.float64, 4.0)])
def test_erf(dtype: type, budget: float) -> None:
    rng = np.random.default_rng(0)
    x: Array = np.concatenate(
        [rng.uniform(-7, 7, 20000), 10.0 ** rng.uniform(-30, 0, 5000)]
    ).astype(dtype)
    found = np.empty_like(x)
    erf(x, found)
    assert _ulps(found, scipy.special.erf(x.astype(np.float64))).max() <= budget
    assert np.abs(found).max() <= 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_erf_edges_in_place(dtype: type) -> None:
    x: Array = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 40.0], dtype)
    erf(x, x)
    np.testing.assert_array_equal(x, [0.0, -0.0, 1.0, -1.0, np.nan, 1.0])
    assert list(np.signbit(x[:2])) == [False, True]
