"""Complex operations, against numpy at twice the precision and tables of XLA:CPU's edges."""

from collections.abc import Callable

import numpy as np
import pytest

from hloipu_runtime.kernels.elementwise.binary import binary
from hloipu_runtime.kernels.elementwise.unary import unary
from tests.support.arrays import Array, f32

INF, NAN = np.inf, np.nan

TRUTH: dict[str, Callable[..., Array]] = {
    "abs": np.absolute,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atanh": np.arctanh,
    "cosine": np.cos,
    "cosh": np.cosh,
    "exponential": np.exp,
    "exponential-minus-one": np.expm1,
    "log": np.log,
    "log-plus-one": np.log1p,
    "logistic": lambda z: 1 / (1 + np.exp(-z)),
    "rsqrt": lambda z: 1 / np.sqrt(z),
    "sign": lambda z: z / np.absolute(z),
    "sine": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}


def _samples(dtype: type) -> Array:
    rng = np.random.default_rng(0)
    return (rng.standard_normal(5000) * 2 + 1j * rng.standard_normal(5000) * 2).astype(dtype)


def _complex(dtype: type, *pairs: tuple[float, float]) -> Array:
    """Build numbers part by part: `inf * 1j` in Python has a NaN real part."""
    return np.array(pairs, np.dtype(dtype).type(0).real.dtype).view(dtype).reshape(-1)


@pytest.mark.parametrize(("dtype", "budget"), [(np.complex64, 8), (np.complex128, 16)])
@pytest.mark.parametrize("opcode", sorted(TRUTH))
def test_relative_error(opcode: str, dtype: type, budget: int) -> None:
    x = _samples(dtype)
    element_type = "c64" if dtype is np.complex64 else "c128"
    wanted = TRUTH[opcode](x.astype(np.clongdouble if element_type == "c128" else np.complex128))
    found = unary(opcode, x, element_type)
    assert found.dtype == (x.real.dtype if opcode == "abs" else x.dtype)
    error = np.absolute(found - wanted) / np.absolute(wanted) / np.finfo(dtype).eps
    assert error.max() <= budget


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize(
    ("opcode", "given", "wanted"),
    [
        ("sqrt", (-4.0, -0.0), (0.0, 2.0)),
        ("sqrt", (NAN, INF), (NAN, NAN)),
        ("rsqrt", (0.0, 0.0), (INF, NAN)),
        ("rsqrt", (1.0, INF), (0.0, -0.0)),
        ("exponential", (INF, 0.0), (INF, 0.0)),
        ("exponential", (INF, INF), (NAN, NAN)),
        ("exponential-minus-one", (1e10, 0.0), (INF, 0.0)),
        ("log", (NAN, INF), (NAN, NAN)),
        ("log", (0.0, 0.0), (-INF, 0.0)),
        ("logistic", (-INF, 1.0), (0.0, 0.0)),
        ("sign", (0.0, -0.0), (0.0, -0.0)),
        ("sine", (INF, 0.0), (NAN, NAN)),
        ("cosine", (0.0, INF), (INF, NAN)),
        ("tan", (INF, 0.0), (NAN, NAN)),
        ("tanh", (INF, 1.0), (1.0, 0.0)),
        ("tanh", (0.0, INF), (NAN, NAN)),
    ],
)
def test_edges(
    opcode: str, given: tuple[float, float], wanted: tuple[float, float], dtype: type
) -> None:
    found = unary(opcode, _complex(dtype, given), "c64" if dtype is np.complex64 else "c128")[0]
    np.testing.assert_array_equal([found.real, found.imag], wanted)


def test_magnitude_is_nan_with_any_nan_and_does_not_overflow() -> None:
    x = _complex(np.complex64, (NAN, INF), (INF, 1.0), (INF, INF), (0.0, 0.0), (3e38, 0.0))
    found = unary("abs", x, "c64")
    np.testing.assert_array_equal(found, f32([NAN, INF, INF, 0.0, 3e38]))


def test_log_plus_one_keeps_small_numbers() -> None:
    for dtype, element_type in ((np.complex64, "c64"), (np.complex128, "c128")):
        x = _complex(dtype, (-1e-10, 1e-10), (1e-20, 0.0))
        np.testing.assert_allclose(unary("log-plus-one", x, element_type), x, rtol=2e-7)


def test_exponential_overflows_only_with_its_result() -> None:
    found = unary("exponential", _complex(np.complex64, (89.0, 0.75)), "c64")[0]
    wanted = np.exp(np.complex128(89 + 0.75j))
    assert abs(found - wanted) < 1e-5 * abs(wanted)


@pytest.mark.parametrize(
    ("x", "y", "wanted"),
    [
        ((1.0, 2.0), (0.0, 0.0), (INF, INF)),
        ((0.5, -1.0), (-0.0, 0.0), (-INF, INF)),
        ((0.0, 0.0), (0.0, 0.0), (NAN, NAN)),
        ((1.0, 1.0), (INF, NAN), (0.0, 0.0)),
        ((INF, NAN), (0.5, -2.5), (INF, INF)),
        ((5.0, -1.0), (INF, INF), (0.0, -0.0)),
        ((4.0, 2.0), (2.0, 0.0), (2.0, 1.0)),
    ],
)
def test_division(
    x: tuple[float, float], y: tuple[float, float], wanted: tuple[float, float]
) -> None:
    found = binary("divide", _complex(np.complex64, x), _complex(np.complex64, y), "c64")[0]
    np.testing.assert_array_equal([found.real, found.imag], wanted)


def test_power() -> None:
    x, y = _samples(np.complex64), _samples(np.complex64)[::-1].copy()
    wanted = np.power(x.astype(np.complex128), y.astype(np.complex128))
    np.testing.assert_allclose(binary("power", x, y, "c64"), wanted, rtol=1e-6)
    zero = np.zeros(3, np.complex64)
    found = binary("power", zero, np.array([0, 2, 1j], np.complex64), "c64")
    np.testing.assert_array_equal(found[:2], [1, 0])
    assert np.isnan(found[2])
    x = _complex(np.complex64, (1.0, 0.0), (1.0, -0.0), (INF, 0.0), (INF, 0.0))
    y = _complex(np.complex64, (NAN, INF), (2.0, NAN), (2.5, 0.0), (-2.5, 0.0))
    np.testing.assert_array_equal(binary("power", x, y, "c64"), [1, 1, INF, 0])


def test_joining_and_splitting() -> None:
    re, im = f32([1, -0.0]), f32([np.nan, 2])
    joined = binary("complex", re, im, "f32")
    assert joined.dtype == np.complex64
    np.testing.assert_array_equal(unary("real", joined, "c64"), re)
    np.testing.assert_array_equal(unary("imag", joined, "c64"), im)
    assert binary("complex", np.array(1.0), np.array(2.0), "f64").dtype == np.complex128
