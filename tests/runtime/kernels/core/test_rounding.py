"""Rounding to narrow grids, against ml_dtypes (f32) and exact rationals (f64)."""

from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest

from hloipu_runtime.element_types import GRIDS
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.core.rounding import (
    Origin,
    is_narrow,
    round_block,
    round_to,
    rounding_calls,
)
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.kernels.elementwise.binary import binary
from hloipu_runtime.kernels.native.settings import Settings, native_kernels
from tests.support.arrays import Array, f32

NARROW = [*GRIDS, "f8e8m0fnu"]


def _f32_near_every_f16() -> Array:
    """Every f16 value, every midpoint of two, and the f32 neighbours of both."""
    with np.errstate(invalid="ignore"):
        values = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
        midpoints = ((values[:-1].astype(np.float64) + values[1:]) / 2).astype(np.float32)
    centres = np.concatenate([values, midpoints]).view(np.uint32)
    near = np.concatenate([centres - np.uint32(1), centres, centres + np.uint32(1)])
    return np.asarray(near.view(np.float32))


def _f32_near_every_bf16() -> Array:
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    near = [upper + np.uint32(low) for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    return np.asarray(np.concatenate(near).view(np.float32))


def _same(found: Array, wanted: Array) -> Array:
    equal = (found == wanted) & (np.signbit(found) == np.signbit(wanted))
    return np.asarray(equal | (np.isnan(found) & np.isnan(wanted)))


@pytest.mark.parametrize("element_type", NARROW)
def test_f32_rounds_as_ml_dtypes_does(element_type: str) -> None:
    x = np.concatenate([_f32_near_every_f16(), _f32_near_every_bf16(), _random_bits(1 << 20)])
    with np.errstate(all="ignore"):
        wanted = x.astype(user_dtype(element_type)).astype(np.float32)
    if element_type in GRIDS and not GRIDS[element_type].nan:
        wanted[np.isnan(x)] = -0.0  # ml_dtypes gives zeros of both signs
    bad = ~_same(round_to(x, element_type), wanted)
    assert not bad.any(), x[bad][:5]


def test_few_bf16_round_as_many_do_payloads_of_nan_included() -> None:
    x = np.concatenate([_f32_near_every_bf16(), _random_bits(1 << 16)])
    many = round_to(x, "bf16")
    few = [round_to(part, "bf16") for part in np.array_split(x, 1000)]
    np.testing.assert_array_equal(np.concatenate(few).view(np.uint32), many.view(np.uint32))


@pytest.mark.parametrize("element_type", ["bf16", "f8e5m2", "f8e4m3fn"])
@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7FF80001, 0xFFF0FFFF])
@pytest.mark.parametrize("count", [1, 3000])
def test_nan_stays_one_in_arithmetic_on_the_grid(element_type: str, bits: int, count: int) -> None:
    short = np.full(count, bits, np.uint32).view(np.float32)
    long = np.full(count, bits << 32 | 0xFFFFFFFF, np.uint64).view(np.float64)
    for x in (short, long):
        rounded = round_to(x, element_type)
        with native_kernels(Settings(is_on=False)):
            assert np.isnan(binary("multiply", rounded, rounded, "bf16")).all()


@pytest.mark.parametrize("element_type", ["f16", "bf16", "f8e4m3fn"])
@pytest.mark.parametrize("count", [1, 40, 300, 1500, 5000])
def test_any_number_of_sums_and_products_rounds_alike(element_type: str, count: int) -> None:
    grid = GRIDS[element_type]
    rng = np.random.default_rng(8)
    sizes = np.exp2(rng.uniform(grid.min_exponent - 3, 3, (2, 9000))).astype(np.float32)
    x, y = round_to(sizes * rng.choice(f32([-1, 1]), sizes.shape), element_type)
    for opcode in _ARITHMETIC:
        with computing():
            whole = binary(opcode, x, y, element_type)
            part = binary(opcode, x[:count], y[:count], element_type)
        np.testing.assert_array_equal(part.view(np.uint32), whole[:count].view(np.uint32))


@pytest.mark.parametrize("element_type", ["f16", "bf16", "f8e5m2"])
@pytest.mark.parametrize("count", [1, 300, 3000, 9000])
def test_calls_that_are_prepared_round_as_ml_dtypes_does(element_type: str, count: int) -> None:
    every = np.concatenate([_f32_near_every_f16(), _f32_near_every_bf16()])
    # Of arithmetic on the grid a NaN has no long payload.
    every[np.isnan(every)] = np.nan
    x = np.random.default_rng(4).choice(every, count)
    origins: list[Origin] = ["any", "arithmetic"]
    for origin in origins:
        out, given = np.empty_like(x), x.copy()
        with np.errstate(all="ignore"):
            wanted = x.astype(user_dtype(element_type)).astype(np.float32)
            for call in rounding_calls(given, element_type, out, origin, np.empty):
                call()
        bad = ~_same(out, wanted)
        assert not bad.any(), x[bad][:5]


@pytest.mark.parametrize("element_type", ["f16", "bf16", "f8e4m3fn"])
@pytest.mark.parametrize("count", [5, 400, 9000])
def test_small_sums_round_as_sums(element_type: str, count: int) -> None:
    rng = np.random.default_rng(9)
    sizes = np.exp2(rng.uniform(-30, 3, (2, count))).astype(np.float32)
    x, y = round_to(sizes * rng.choice(f32([-1, 1]), sizes.shape), element_type)
    found, wanted = x + y, x + y
    with computing():
        round_block(found, element_type, found, "small sum")
        round_block(wanted, element_type, wanted)
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


def _random_bits(count: int) -> Array:
    bits = np.random.default_rng(5).integers(0, 1 << 32, count, np.uint32)
    return np.asarray(bits.view(np.float32))


@pytest.mark.parametrize("element_type", NARROW)
@pytest.mark.parametrize("flushes", [False, True])
def test_results_of_arithmetic_round_as_ml_dtypes_does(element_type: str, flushes: bool) -> None:
    dtype = user_dtype(element_type)
    with np.errstate(all="ignore"):
        codes = np.arange(1 << (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}")
        every = np.resize(codes.view(dtype).astype(np.float32), 1 << 16)
        size = np.absolute(every)
        # Without numbers that may overflow: what is quicker is for blocks of those.
        tame = np.resize(every[size < np.sqrt(np.nanmax(size[np.isfinite(size)]))], 1 << 16)
        small = np.resize(every[np.argsort(size)[: max(4, size.size // 64)]], 1 << 16)
        mixed = np.random.default_rng(6).permutation
        pairs = [(every, mixed(every)), (tame, mixed(tame)), (tame, small), (small, mixed(small))]
        for x, y in pairs:
            for opcode, ufunc in _ARITHMETIC.items():
                with computing() if flushes else nullcontext():
                    exact, found = ufunc(x, y), binary(opcode, x, y, element_type)
                wanted = exact.astype(dtype).astype(np.float32)
                if element_type in GRIDS and not GRIDS[element_type].nan:
                    wanted[np.isnan(exact)] = -0.0
                bad = ~_same(found, wanted)
                assert not bad.any(), (opcode, x[bad][:5], y[bad][:5])


_ARITHMETIC = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}


@pytest.mark.parametrize("element_type", sorted(GRIDS))
def test_f64_rounds_once(element_type: str) -> None:
    grid = GRIDS[element_type]
    step = Fraction(2) ** (grid.min_exponent - grid.mantissa_bits)
    tiny = Fraction(1, 2**45)
    for units in (Fraction(1, 2), Fraction(3, 2), Fraction(5, 2)):
        tie = float(units * step)
        above, below = float(units * step * (1 + tiny)), float(units * step * (1 - tiny))
        to_even = float(round(units) * step)
        found = round_to(np.array([tie, above, below, -above]), element_type)
        wanted = [to_even, float((units + Fraction(1, 2)) * step)]
        assert found[0] == wanted[0]
        assert found[1] == wanted[1] == -found[3]
        assert found[2] == float((units - Fraction(1, 2)) * step)


@pytest.mark.parametrize(
    ("element_type", "beyond", "wanted"),
    [
        ("f16", 65520.0, np.inf),
        ("f16", 65519.99, 65504.0),
        ("f8e4m3fn", 464.0, 448.0),
        ("f8e4m3fn", 465.0, np.nan),
        ("f8e5m2", -np.inf, -np.inf),
        ("f8e5m2fnuz", np.inf, np.nan),
        ("f6e3m2fn", -1e9, -28.0),
        ("f4e2m1fn", np.inf, 6.0),
        ("f8e8m0fnu", 0.0, np.nan),
        ("f8e8m0fnu", 3.0, 4.0),
        ("f8e8m0fnu", -1.0, np.nan),
    ],
)
def test_overflow(element_type: str, beyond: float, wanted: float) -> None:
    for dtype in (np.float32, np.float64):
        np.testing.assert_array_equal(round_to(np.array([beyond], dtype), element_type)[0], wanted)


def test_in_place_and_strided_rounding_agree_with_plain() -> None:
    x = np.random.default_rng(0).standard_normal((300, 400)).astype(np.float32) * 1e-3
    for element_type in ("bf16", "f16", "f8e4m3fn"):
        wanted = round_to(x.copy(), element_type)
        np.testing.assert_array_equal(round_to(x.T, element_type), wanted.T)
        np.testing.assert_array_equal(round_to(x[::2, ::3], element_type), wanted[::2, ::3])
        inplace = x.copy()
        assert round_to(inplace, element_type, inplace) is inplace
        np.testing.assert_array_equal(inplace, wanted)
        assert not np.signbit(wanted[x > 0]).any()
        assert np.signbit(wanted[x < 0]).all()


def test_wide_types_are_left_alone() -> None:
    x = np.array([0.1, 1e300])
    assert not is_narrow("f64")
    assert round_to(x, "f64") is x
    assert round_to(f32([0.1]), "f32").dtype == np.float32


def test_a_scalar_keeps_its_rank() -> None:
    assert round_to(np.array(0.1, np.float32), "bf16").shape == ()
