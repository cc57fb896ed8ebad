"""Elementwise operations on two arrays of floats or predicates."""

import numpy as np
import pytest

from hloipu_runtime.element_types import GRIDS
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.core.storage import from_bits, storage_dtype, to_storage
from hloipu_runtime.kernels.elementwise.binary import binary
from tests.support.arrays import Array, f32

INF, NAN = np.inf, np.nan


def _table(element_type: str) -> tuple[Array, Array]:
    values = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, INF, -INF, NAN, 5.5]
    grid = np.array(values, storage_dtype(element_type))
    return np.repeat(grid, grid.size), np.tile(grid, grid.size)


@pytest.mark.parametrize("element_type", ["f32", "f64", "bf16", "f16"])
def test_extrema_order_zeros_and_keep_nan(element_type: str) -> None:
    x, y = _table(element_type)
    for opcode, better in (("maximum", np.greater), ("minimum", np.less)):
        found = binary(opcode, x, y, element_type)
        wanted = np.where(better(x, y), x, y)
        both_zero = (x == 0) & (y == 0)
        negative = (
            np.signbit(x) & np.signbit(y) if opcode == "maximum" else np.signbit(x) | np.signbit(y)
        )
        wanted = np.where(both_zero, np.where(negative, -0.0, 0.0), wanted)
        wanted = np.where(np.isnan(x) | np.isnan(y), NAN, wanted)
        np.testing.assert_array_equal(found, wanted)
        numbers = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(wanted[numbers]))


def test_extrema_of_signalling_nans_stay_nan() -> None:
    x = np.array([0x7F800001, 0x7FA00000, 0xFF800002], np.uint32).view(np.float32)
    for opcode in ("maximum", "minimum"):
        found = binary(opcode, np.repeat(x, 3), np.tile(x, 3), "f32")
        with np.errstate(invalid="ignore"):
            assert np.isnan(found).all()


def test_extrema_with_a_broadcast_number() -> None:
    x = f32([-1.0, -0.0, 0.0, NAN])
    for bound in (0.0, -0.0, 0.5, NAN):
        spread = np.broadcast_to(f32(bound), (4,))
        found = binary("maximum", x, spread, "f32")
        wanted = binary("maximum", x, np.array(spread), "f32")
        np.testing.assert_array_equal(found, wanted)
        numbers = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(wanted[numbers]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("opcode", "x", "y", "wanted"),
    [
        ("divide", 1.0, -0.0, -INF),
        ("divide", 0.0, 0.0, NAN),
        ("remainder", -5.5, 2.0, -1.5),
        ("remainder", 5.5, -INF, 5.5),
        ("remainder", 1.0, 0.0, NAN),
        ("remainder", -2.0, 1.0, -0.0),
        ("power", 0.0, 0.0, 1.0),
        ("power", NAN, 0.0, 1.0),
        ("power", 1.0, NAN, 1.0),
        ("power", -8.0, 1 / 3, NAN),
        ("power", -2.0, 3.0, -8.0),
        ("power", -0.0, -1.0, -INF),
        ("atan2", 0.0, -0.0, np.pi),
        ("atan2", -0.0, -1.0, -np.pi),
        ("atan2", 1.0, INF, 0.0),
        ("subtract", INF, INF, NAN),
        ("multiply", 0.0, -INF, NAN),
    ],
)
def test_edges(opcode: str, x: float, y: float, wanted: float, dtype: type) -> None:
    element_type = "f32" if dtype is np.float32 else "f64"
    found = binary(opcode, np.array([x], dtype), np.array([y], dtype), element_type)
    np.testing.assert_array_equal(found, np.array([wanted], dtype))
    if not np.isnan(wanted):
        assert np.signbit(found[0]) == np.signbit(wanted)


@pytest.mark.parametrize("element_type", [t for t in GRIDS if t[:2] in ("f8", "f6", "f4")])
@pytest.mark.parametrize("opcode", ["add", "subtract", "multiply", "divide"])
def test_every_pair_of_8_bit_floats_is_rounded_once(opcode: str, element_type: str) -> None:
    # f64 holds every exact sum, difference and product, and no quotient near a tie.
    width = {"f8": 8, "f6": 6, "f4": 4}[element_type[:2]]
    values = from_bits(np.arange(1 << width, dtype=np.uint8), element_type)
    x, y = np.repeat(values, values.size), np.tile(values, values.size)
    operation = {
        "add": np.add,
        "subtract": np.subtract,
        "multiply": np.multiply,
        "divide": np.divide,
    }[opcode]
    with np.errstate(all="ignore"):
        exact = operation(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
        wanted = to_storage(exact, element_type)
    np.testing.assert_array_equal(binary(opcode, x, y, element_type), wanted)


def test_f16_overflows_and_underflows_gradually() -> None:
    x, y = f32([65504.0, 2.0**-24, 2.0**-14]), f32([16.0, 0.5, 0.5])
    np.testing.assert_array_equal(binary("add", x[:1], y[:1], "f16"), [np.inf])
    np.testing.assert_array_equal(binary("multiply", x[1:], y[1:], "f16"), [0.0, 2.0**-15])


def test_predicates() -> None:
    x, y = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for opcode, wanted in (
        ("add", [0, 1, 1, 1]),
        ("multiply", [0, 0, 0, 1]),
        ("maximum", [0, 1, 1, 1]),
        ("minimum", [0, 0, 0, 1]),
        ("and", [0, 0, 0, 1]),
        ("or", [0, 1, 1, 1]),
        ("xor", [0, 1, 1, 0]),
    ):
        found = binary(opcode, x, y, "pred")
        assert found.dtype == np.bool_
        np.testing.assert_array_equal(found, np.array(wanted, bool))


def test_meaningless_combinations_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="xor of f32 has no meaning"):
        binary("xor", np.zeros(1, np.float32), np.zeros(1, np.float32), "f32")
    with pytest.raises(UnsupportedError, match="divide of pred has no meaning"):
        binary("divide", np.zeros(1, bool), np.zeros(1, bool), "pred")


@pytest.mark.parametrize("element_type", ["f32", "f16", "bf16"])
def test_layouts_and_out_agree(element_type: str) -> None:
    rng = np.random.default_rng(0)
    x, y = (to_storage(rng.standard_normal((300, 400)).astype("f"), element_type) for _ in "xy")
    for opcode in ("multiply", "maximum", "divide"):
        wanted = binary(opcode, x, y, element_type)
        np.testing.assert_array_equal(binary(opcode, np.asfortranarray(x), y, element_type), wanted)
        np.testing.assert_array_equal(binary(opcode, x.T, y.T, element_type), wanted.T)
        column = np.broadcast_to(y[:, :1], y.shape)
        np.testing.assert_array_equal(
            binary(opcode, x, column, element_type),
            binary(opcode, x, np.array(column), element_type),
        )
        both = binary(
            opcode, np.broadcast_to(x[:1], x.shape), np.broadcast_to(y[:1], x.shape), element_type
        )
        np.testing.assert_array_equal(both[9], wanted[0])
        for place in (0, 1):
            operands = [x.copy(), y.copy()]
            binary(opcode, operands[0], operands[1], element_type, out=operands[place])
            np.testing.assert_array_equal(operands[place], wanted)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,)])
def test_small_shapes(shape: tuple[int, ...]) -> None:
    for element_type in ("f32", "f8e4m3fn", "s4", "u64", "pred", "c64"):
        x = np.ones(shape, storage_dtype(element_type))
        found = binary("multiply", x, x, element_type)
        assert isinstance(found, np.ndarray)
        assert found.shape == shape
        assert found.all()


@pytest.mark.parametrize("element_type", ["f32", "bf16", "f64"])
def test_the_rectifier_returns_positive_zeros(element_type: str) -> None:
    dtype = np.float64 if element_type == "f64" else np.float32
    x = np.tile(np.array([-0.0, 0.0, -3, 2, np.nan, -np.inf], dtype), 20)
    zero = np.broadcast_to(dtype(0), x.shape)
    for result in (
        binary("maximum", x, zero, element_type),
        binary("maximum", zero, x, element_type),
    ):
        assert str(result[:6].tolist()) == "[0.0, 0.0, 0.0, 2.0, nan, 0.0]"
        assert not np.signbit(result[~np.isnan(result)]).any()
