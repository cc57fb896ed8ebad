"""reduce-precision, against formats that numpy and ml_dtypes have and against hand-made tables."""

import ml_dtypes
import numpy as np
import pytest

from hloipu_runtime.kernels.core.rounding import round_to
from hloipu_runtime.kernels.elementwise.reduce_precision import reduce_precision
from tests.support.arrays import f32

RANDOM_BITS = np.random.default_rng(0).integers(0, 2**32, 50000, dtype=np.uint32).view(np.float32)


@pytest.mark.parametrize(
    ("exponent_bits", "mantissa_bits", "dtype", "smallest"),
    [
        (5, 10, np.float16, 2.0**-14),
        (8, 7, ml_dtypes.bfloat16, 2.0**-126),
        (5, 2, ml_dtypes.float8_e5m2, 2.0**-14),
        (4, 3, ml_dtypes.float8_e4m3, 2.0**-6),
    ],
)
def test_f32_to_known_formats(
    exponent_bits: int, mantissa_bits: int, dtype: type, smallest: float
) -> None:
    scaled = np.random.default_rng(1).standard_normal(50000).astype(np.float32) * 300
    for x in (RANDOM_BITS, scaled, scaled * np.float32(2.0**-20)):
        x = x[np.abs(x) >= smallest]  # below, the formats differ: subnormals become zero here
        with np.errstate(all="ignore"):
            wanted = x.astype(dtype).astype(np.float32)
        found = reduce_precision(x, exponent_bits, mantissa_bits, "f32")
        np.testing.assert_array_equal(found, wanted)


def test_small_numbers_become_zero_of_their_sign() -> None:
    x = f32([2.0**-14, -(2.0**-15), 2.0**-15, 65536.0, -1e10, np.nan, -np.inf])
    found = reduce_precision(x, 5, 10, "f32")
    np.testing.assert_array_equal(found, [2.0**-14, -0.0, 0.0, np.inf, -np.inf, np.nan, -np.inf])
    assert np.signbit(found[1])
    assert not np.signbit(found[2])


def test_no_mantissa_bits_tie_to_the_even_exponent() -> None:
    # Biased exponents: 1.5 lies between 2^0 (127, odd) and 2^1 (128, even).
    x = f32([1.5, 3.0, 1.49, 3.01])
    np.testing.assert_array_equal(reduce_precision(x, 8, 0, "f32"), [2.0, 2.0, 1.0, 4.0])


def test_enough_bits_change_nothing() -> None:
    found = reduce_precision(RANDOM_BITS, 8, 23, "f32")
    np.testing.assert_array_equal(found.view(np.uint32), RANDOM_BITS.view(np.uint32))
    subnormal = f32([2.0**-24, 3 * 2.0**-24])
    np.testing.assert_array_equal(reduce_precision(subnormal, 5, 10, "f16"), subnormal)


def test_f16_subnormals_are_rounded_at_their_own_bits() -> None:
    # 0x0003 with one mantissa bit dropped is a tie between 2 and 4 units: 4 has the even last bit.
    x = f32([3 * 2.0**-24])
    np.testing.assert_array_equal(reduce_precision(x, 5, 9, "f16"), [4 * 2.0**-24])


def test_f64_and_narrow_types() -> None:
    x = np.array([1 + 2.0**-24, 1e300, 1e-300])
    np.testing.assert_array_equal(reduce_precision(x, 8, 23, "f64"), [1.0, np.inf, 0.0])
    values = round_to(f32([352.0, 1.75]), "f8e4m3fn")
    np.testing.assert_array_equal(reduce_precision(values, 3, 3, "f8e4m3fn"), [np.nan, 1.75])
