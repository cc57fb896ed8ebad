import pytest

from hloipu_compiler.inference import faults
from tests.support.shape_rules import infer, refuse


def test_convert_keeps_the_sizes() -> None:
    assert infer("convert", "f32[2,<=3]", to="s8[2,3]") == "s8[2,<=3]"
    refuse(faults.NOT_INFERABLE, "convert", "f32[2]")
    refuse(faults.OPERAND_KIND, "convert", "token[]", at=0, to="f32[]")
    refuse(faults.DECLARED_STRUCTURE, "convert", "f32[]", to="(f32[])")


@pytest.mark.parametrize(
    ("operand", "to", "result"),
    [
        ("f32[2]", "s32[2]", "s32[2]"),
        ("f32[2]", "u8[2,4]", "u8[2,4]"),
        ("u16[3,2]", "f32[3]", "f32[3]"),
        ("s4[8]", "u32[]", "u32[]"),
        ("pred[4]", "s32[]", "s32[]"),
        ("c64[3,2]", "c128[3]", "c128[3]"),
        ("f32[<=2]", "u16[2,2]", "u16[<=2,2]"),
    ],
)
def test_bitcast_convert(operand: str, to: str, result: str) -> None:
    assert infer("bitcast-convert", operand, to=to) == result


@pytest.mark.parametrize(
    ("code", "operand", "to"),
    [
        (faults.ELEMENT_TYPE, "c64[2]", "f32[2,2]"),
        (faults.ELEMENT_TYPE, "f6e2m3fn[4]", "f8e5m2[3]"),
        (faults.SIZE_MISMATCH, "u8[3]", "f32[]"),
        (faults.SIZE_MISMATCH, "u8[]", "f32[]"),
    ],
)
def test_bitcast_convert_refused(code: str, operand: str, to: str) -> None:
    refuse(code, "bitcast-convert", operand, at=0, to=to)


def test_bitcast_keeps_the_bytes() -> None:
    assert infer("bitcast", "f32[2,3]", to="f32[6]") == "f32[6]"
    assert infer("bitcast", "f32[2]", to="u8[8]") == "u8[8]"
    assert infer("bitcast", "s4[8]", to="s8[4]") == "s8[4]"
    assert infer("bitcast", "s4[8]", to="s8[8]") == "s8[8]"
    assert infer("bitcast", "f32[3]{0:T(8)}", to="f32[8]") == "f32[8]"
    refuse(faults.ELEMENT_COUNT, "bitcast", "f32[2]", at=0, to="f32[3]")
    refuse(faults.OPERAND_KIND, "bitcast", "token[]", at=0, to="f32[]")


def test_reduce_precision() -> None:
    bits = {"exponent_bits": 1, "mantissa_bits": 0}
    assert infer("reduce-precision", "f32[2]", to="f32[2]", **bits) == "f32[2]"
    refuse(faults.ELEMENT_TYPE, "reduce-precision", "s32[2]", at=0, to="s32[2]", **bits)
    for name, value in (("exponent_bits", 0), ("mantissa_bits", -1)):
        wrong = {**bits, name: value}
        refuse(faults.ATTRIBUTE_VALUE, "reduce-precision", "f32[]", at=name, to="f32[]", **wrong)


def test_stochastic_convert() -> None:
    assert infer("stochastic-convert", "f32[2]", "u32[2]", to="s8[2]") == "s8[2]"
    refuse(faults.ELEMENT_TYPE, "stochastic-convert", "f32[2]", "s32[2]", at=1, to="s8[2]")
    refuse(faults.ELEMENT_TYPE, "stochastic-convert", "f32[2]", "u16[2]", at=1, to="s8[2]")
    refuse(faults.ELEMENT_TYPE, "stochastic-convert", "s32[2]", "u32[2]", at=0, to="s8[2]")
    refuse(faults.SIZE_MISMATCH, "stochastic-convert", "f32[2]", "u32[3]", at=1, to="s8[2]")
    refuse(faults.SIZE_MISMATCH, "stochastic-convert", "f32[<=2]", "u32[2]", at=1, to="s8[2]")
