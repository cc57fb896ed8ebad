"""Storage form: every code of every small type comes back as the same bits."""

import ml_dtypes
import numpy as np
import pytest

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.core.storage import (
    bits_dtype,
    from_bits,
    from_storage,
    storage_dtype,
    to_bits,
    to_storage,
    user_dtype,
)
from tests.support.arrays import Array, f32, s8
from tests.support.cases import each

SMALL = [t.name for t in ELEMENT_TYPES.values() if t.is_array and t.bits <= 16 and t.name != "pred"]
ARRAYS = [t.name for t in ELEMENT_TYPES.values() if t.is_array]


def _codes(element_type: str) -> Array:
    return np.arange(1 << ELEMENT_TYPES[element_type].bits, dtype=bits_dtype(element_type))


@pytest.mark.parametrize("element_type", SMALL)
def test_every_code_survives(element_type: str) -> None:
    codes = _codes(element_type)
    stored = from_bits(codes, element_type)
    assert stored.dtype == storage_dtype(element_type)
    np.testing.assert_array_equal(to_bits(stored, element_type), codes)


@pytest.mark.parametrize("element_type", SMALL)
def test_values_are_those_of_ml_dtypes(element_type: str) -> None:
    element = ELEMENT_TYPES[element_type]
    codes = _codes(element_type)
    if element.bits >= 8 or element.is_float:
        users = codes.view(user_dtype(element_type))
    else:
        users = codes.astype(user_dtype(element_type))
    stored = to_storage(users, element_type)
    wide = np.float64 if element.is_float else np.int64
    back = from_storage(stored, element_type)
    assert back.dtype == user_dtype(element_type)
    with np.errstate(invalid="ignore"):  # signalling NaNs are among the codes
        wanted = users.astype(wide)
        np.testing.assert_array_equal(stored.astype(wide), wanted)
        np.testing.assert_array_equal(back.astype(wide), wanted)


@each("element_type", ARRAYS)
@each("shape", [(), (0, 3), (1,), (2, 3, 5)])
def test_shapes_survive(element_type: str, shape: tuple[int, ...]) -> None:
    users = np.ones(shape, np.int8).astype(user_dtype(element_type))
    stored = to_storage(users, element_type)
    assert stored.shape == shape
    assert from_storage(stored, element_type).shape == shape


def test_same_dtype_is_not_copied() -> None:
    for element_type, dtype in (("f32", np.float32), ("s32", np.int32), ("pred", np.bool_)):
        x = np.ones(3, dtype)
        assert to_storage(x, element_type) is x
        assert from_storage(x, element_type) is x


def test_storage_dtype_values_are_brought_to_the_type() -> None:
    assert to_storage(f32([1.001]), "bf16")[0] == 1.0
    assert to_storage(s8([9]), "s4")[0] == -7


def test_wrong_dtypes_are_refused() -> None:
    with pytest.raises(UsageError, match="dtype float64 was given where f32 is expected"):
        to_storage(np.zeros(2), "f32")
    with pytest.raises(UsageError, match="token holds no numbers"):
        storage_dtype("token")
    with pytest.raises(UsageError, match="fit no unsigned integer"):
        to_bits(np.zeros(1, np.complex128), "c128")


def test_complex_bits() -> None:
    x = np.array([1 + 2j], np.complex64)
    bits = to_bits(x, "c64")
    assert bits[0] == 0x40000000_3F800000
    np.testing.assert_array_equal(from_bits(bits, "c64"), x)


def test_noncontiguous_input() -> None:
    users = np.arange(12).reshape(3, 4).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(to_storage(users.T, "f8e4m3fn"), np.arange(12.0).reshape(3, 4).T)


def test_unpickled_arrays_have_the_kernels_own_dtype() -> None:
    array = np.arange(6, dtype=np.dtype(np.float32, copy=True))  # as unpickling makes it
    assert array.dtype is not storage_dtype("f32")
    stored = to_storage(array, "f32")
    assert stored.dtype is storage_dtype("f32")
    assert np.shares_memory(stored, array)
