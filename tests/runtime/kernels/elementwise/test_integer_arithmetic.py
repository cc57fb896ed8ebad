"""Integer arithmetic, all pairs of edge values, against Python's unbounded integers."""

from collections.abc import Callable

import numpy as np
import pytest

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.elementwise.binary import binary
from tests.support.cases import each

INTEGERS = [f"{sign}{bits}" for bits in (1, 2, 4, 8, 16, 32, 64) for sign in "su"]


def _range(element_type: str) -> tuple[int, int]:
    bits = ELEMENT_TYPES[element_type].bits
    return (
        (-(1 << bits - 1), (1 << bits - 1) - 1) if element_type[0] == "s" else (0, (1 << bits) - 1)
    )


def _edges(element_type: str) -> list[int]:
    low, high = _range(element_type)
    bits = ELEMENT_TYPES[element_type].bits
    if bits <= 4:
        return list(range(low, high + 1))
    near = [0, 1, 2, 3, 7, 8, bits - 1, bits, bits + 1, high, high - 1, high // 3, 1 << bits // 2]
    return near + ([-1, -2, -3, -7, low, low + 1, low // 3] if low else [high // 2 + 1])


def _wrap(value: int, element_type: str) -> int:
    bits = ELEMENT_TYPES[element_type].bits
    value &= (1 << bits) - 1
    return value - (1 << bits) if element_type[0] == "s" and value >> (bits - 1) else value


def _quotient(x: int, y: int, bits: int) -> int:
    if y == 0:
        return -1
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _power(x: int, y: int, bits: int) -> int:
    if y >= 0:
        return pow(x, y, 1 << bits)
    return {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)


def _signed(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def _unsigned(x: int, bits: int) -> int:
    return x & ((1 << bits) - 1)


TRUTH: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda x, y, bits: x + y,
    "subtract": lambda x, y, bits: x - y,
    "multiply": lambda x, y, bits: x * y,
    "mulhi": lambda x, y, bits: x * y >> bits,
    "divide": _quotient,
    "remainder": lambda x, y, bits: x - _quotient(x, y, bits) * y,
    "power": _power,
    "maximum": lambda x, y, bits: max(x, y),
    "minimum": lambda x, y, bits: min(x, y),
    "and": lambda x, y, bits: x & y,
    "or": lambda x, y, bits: x | y,
    "xor": lambda x, y, bits: x ^ y,
    "shift-left": lambda x, y, bits: x << min(_unsigned(y, bits), bits),
    "shift-right-arithmetic": lambda x, y, bits: _signed(x, bits) >> _unsigned(y, bits),
    "shift-right-logical": lambda x, y, bits: _unsigned(x, bits) >> _unsigned(y, bits),
}


@each("element_type", INTEGERS)
@each("opcode", sorted(TRUTH))
def test_all_pairs_of_edges(opcode: str, element_type: str) -> None:
    edges = _edges(element_type)
    pairs = [(x, y) for x in edges for y in edges]
    bits = ELEMENT_TYPES[element_type].bits
    dtype = storage_dtype(element_type)
    x, y = (np.array([pair[i] for pair in pairs], object).astype(dtype) for i in (0, 1))
    wanted = [_wrap(TRUTH[opcode](a, b, bits), element_type) for a, b in pairs]
    found = binary(opcode, x, y, element_type)
    assert found.dtype == dtype
    assert found.tolist() == wanted
    in_place = x.copy()
    binary(opcode, in_place, y, element_type, out=in_place)
    assert in_place.tolist() == wanted


@pytest.mark.parametrize("element_type", ["s32", "u32", "s16"])
def test_division_by_way_of_floats_is_exact(element_type: str) -> None:
    rng = np.random.default_rng(0)
    low, high = _range(element_type)
    dtype = storage_dtype(element_type)
    y = rng.integers(1, 1 << 14, 200000).astype(dtype)
    # Next to multiples of the divisor a quotient is most easily rounded to the wrong integer.
    exact = (rng.integers(low, high, y.size, dtype=np.int64) // y.astype(np.int64)) * y
    for offset in (-1, 0, 1):
        x = np.clip(exact + offset, low, high).astype(dtype)
        wide = x.astype(np.int64)
        wanted = np.sign(wide) * (np.abs(wide) // y.astype(np.int64))
        np.testing.assert_array_equal(binary("divide", x, y, element_type), wanted)


def test_rows_against_columns() -> None:
    x = np.broadcast_to(np.arange(-3, 4, dtype=np.int32), (5, 7))
    y = np.broadcast_to(np.arange(-2, 3, dtype=np.int32)[:, None], (5, 7))
    for opcode in TRUTH:
        wanted = binary(opcode, np.array(x), np.array(y), "s32")
        np.testing.assert_array_equal(binary(opcode, x, y, "s32"), wanted)


@pytest.mark.parametrize("opcode", ["divide", "remainder"])
@pytest.mark.parametrize("element_type", INTEGERS)
def test_division_of_all_by_one_number(opcode: str, element_type: str) -> None:
    bits, edges = ELEMENT_TYPES[element_type].bits, _edges(element_type)
    x = np.array(edges, storage_dtype(element_type))
    for y in edges:
        divisor = np.broadcast_to(np.array(y, x.dtype), x.shape)
        wanted = [_wrap(TRUTH[opcode](value, y, bits), element_type) for value in edges]
        np.testing.assert_array_equal(binary(opcode, x, divisor, element_type), wanted)
