import ml_dtypes
import pytest

from hloipu_compiler.hlo.attributes.shape_text import parse_shape
from hloipu_compiler.inference import faults
from hloipu_compiler.inference.faults import ShapeFault
from hloipu_compiler.inference.relations import (
    OVERFLOW_EXPONENTS,
    compatible_up_to_precision,
    make_array,
    wider_type,
)
from hloipu_compiler.ir.shapes import compatible
from hloipu_runtime.element_types import ELEMENT_TYPES as T

LONG_NAMES = {
    "f8e5m2": "float8_e5m2", "f8e4m3": "float8_e4m3", "f8e4m3fn": "float8_e4m3fn",
    "f8e4m3b11fnuz": "float8_e4m3b11fnuz", "f8e3m4": "float8_e3m4", "f4e2m1fn": "float4_e2m1fn",
    "f8e5m2fnuz": "float8_e5m2fnuz", "f8e4m3fnuz": "float8_e4m3fnuz", "bf16": "bfloat16",
    "f6e2m3fn": "float6_e2m3fn", "f6e3m2fn": "float6_e3m2fn", "f8e8m0fnu": "float8_e8m0fnu",
    "f16": "float16", "f32": "float32", "f64": "float64",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(LONG_NAMES))
def test_overflow_exponent_is_that_of_the_largest_value(name: str) -> None:
    dtype = getattr(ml_dtypes, LONG_NAMES[name], LONG_NAMES[name])
    largest = int(float(ml_dtypes.finfo(dtype).max))  # type: ignore[no-untyped-call]
    assert largest.bit_length() == OVERFLOW_EXPONENTS[name]


def test_every_float_type_has_an_overflow_exponent() -> None:
    assert {name for name, t in T.items() if t.is_float} == set(OVERFLOW_EXPONENTS)


@pytest.mark.parametrize(
    ("a", "b", "wider"),
    [
        ("f32", "bf16", "f32"),
        ("f16", "bf16", "bf16"),
        ("f8e4m3fn", "f8e5m2", "f8e5m2"),
        ("s32", "f16", "f16"),
        ("s32", "u32", "s32"),
        ("u64", "s32", "u64"),
        ("c64", "f64", "c64"),
        ("f32", "f8e8m0fnu", "f32"),
    ],
)
def test_wider_type(a: str, b: str, wider: str) -> None:
    assert wider_type(T[a], T[b]).name == wider
    assert wider_type(T[b], T[a]).name == wider


def test_formats_of_equal_range_have_no_wider_one() -> None:
    with pytest.raises(ShapeFault) as caught:
        wider_type(T["f8e5m2"], T["f8e5m2fnuz"])
    assert caught.value.code == faults.ELEMENT_TYPES_DIFFER


def test_bytes_must_fit_63_bits() -> None:
    assert make_array(T["s8"], [2**63 - 1]).dimensions == (2**63 - 1,)
    assert make_array(T["f32"], [0, 2**62, 2**62]).element_count == 0
    for sizes in ([2**61], [2**40, 2**40], [2**62, 2**62, 0]):
        with pytest.raises(ShapeFault) as caught:
            make_array(T["f32"], sizes)
        assert caught.value.code == faults.SHAPE_OVERFLOW


@pytest.mark.parametrize(
    ("a", "b", "fits", "fits_up_to_precision"),
    [
        ("f32[2]{0}", "f32[2]", True, True),
        ("f32[2]", "f32[<=2]", True, True),
        ("f32[?]", "f32[2]", True, True),
        ("f32[?]", "f32[2,1]", False, False),
        ("f32[2]", "bf16[2]", False, True),
        ("f32[2]", "s32[2]", False, False),
        ("(f32[2], s32[])", "(f16[2], s32[])", False, True),
        ("(f32[2])", "f32[2]", False, False),
        ("b(f32[2])", "b(f32[2])", True, True),
        ("b(f32[2])", "f32[2]", False, False),
        ("token[]", "token[]", True, True),
        ("token[]", "opaque[]", False, False),
    ],
)
def test_compatible(a: str, b: str, fits: bool, fits_up_to_precision: bool) -> None:
    left, right = parse_shape(a), parse_shape(b)
    assert compatible(left, right) is compatible(right, left) is fits
    assert compatible_up_to_precision(left, right) is fits_up_to_precision


def test_a_zero_does_not_hide_an_impossible_size() -> None:
    with pytest.raises(ShapeFault) as caught:
        make_array(T["f32"], [0, 2**70])
    assert caught.value.code == faults.SHAPE_OVERFLOW
