import pytest

from hloipu_compiler.inference import faults
from tests.support.shape_rules import infer, refuse


@pytest.mark.parametrize(
    ("opcode", "operand", "result"),
    [
        ("tanh", "f32[2,3]", "f32[2,3]"),
        ("exponential", "c64[2]", "c64[2]"),
        ("floor", "bf16[]", "bf16[]"),
        ("is-finite", "f32[2]", "pred[2]"),
        ("abs", "c128[2]", "f64[2]"),
        ("abs", "s4[2]", "s4[2]"),
        ("real", "c64[2]", "f32[2]"),
        ("imag", "f16[2]", "f16[2]"),
        ("not", "pred[2]", "pred[2]"),
        ("not", "u8[2]", "u8[2]"),
        ("popcnt", "s16[0]", "s16[0]"),
        ("negate", "u32[<=4]", "u32[<=4]"),
    ],
)
def test_unary(opcode: str, operand: str, result: str) -> None:
    assert infer(opcode, operand) == result
    assert infer(opcode, operand, to=result) == result


@pytest.mark.parametrize(
    ("opcode", "operand"),
    [
        ("floor", "s32[2]"),
        ("erf", "c64[2]"),
        ("cbrt", "c64[2]"),
        ("tanh", "pred[2]"),
        ("abs", "u32[2]"),
        ("sign", "u8[2]"),
        ("negate", "pred[2]"),
        ("not", "f32[2]"),
        ("popcnt", "pred[2]"),
        ("is-finite", "c64[2]"),
        ("real", "s32[2]"),
    ],
)
def test_unary_of_a_wrong_type(opcode: str, operand: str) -> None:
    refuse(faults.ELEMENT_TYPE, opcode, operand, at=0, to=operand)


@pytest.mark.parametrize("operand", ["(f32[2])", "token[]", "opaque[]", "b(f32[2])"])
def test_only_arrays_are_elementwise(operand: str) -> None:
    refuse(faults.OPERAND_KIND, "tanh", operand, at=0, to="f32[2]")
    refuse(faults.OPERAND_KIND, "add", "f32[2]", operand, at=1, to="f32[2]")


@pytest.mark.parametrize(
    ("opcode", "left", "right", "result"),
    [
        ("add", "pred[2]", "pred[2]", "pred[2]"),
        ("subtract", "s8[2,0]", "s8[2,0]", "s8[2,0]"),
        ("shift-left", "f32[2]", "f32[2]", "f32[2]"),
        ("and", "u1[2]", "u1[2]", "u1[2]"),
        ("atan2", "c64[2]", "c64[2]", "c64[2]"),
        ("complex", "f32[2]", "f32[2]", "c64[2]"),
        ("complex", "f64[2]", "f64[2]", "c128[2]"),
        ("add", "f32[4]", "f32[<=4]", "f32[<=4]"),
        ("add", "f32[?]", "f32[4]", "f32[4]"),
        ("add", "f32[?]", "f32[?]", "f32[?]"),
    ],
)
def test_binary(opcode: str, left: str, right: str, result: str) -> None:
    assert infer(opcode, left, right, to=result) == result


@pytest.mark.parametrize(
    ("opcode", "left", "right", "at"),
    [
        ("subtract", "pred[2]", "pred[2]", 0),
        ("power", "pred[2]", "pred[2]", 0),
        ("and", "f32[2]", "f32[2]", 0),
        ("atan2", "s32[2]", "s32[2]", 0),
        ("complex", "f16[2]", "f16[2]", 0),
        ("complex", "s32[2]", "s32[2]", 0),
    ],
)
def test_binary_of_a_wrong_type(opcode: str, left: str, right: str, at: int) -> None:
    refuse(faults.ELEMENT_TYPE, opcode, left, right, at=at, to="f32[2]")


def test_binary_of_different_types() -> None:
    refuse(faults.ELEMENT_TYPES_DIFFER, "add", "f32[2]", "s32[2]", at=1, to="f32[2]")
    refuse(faults.ELEMENT_TYPES_DIFFER, "add", "s32[2]", "u32[2]", at=1)


@pytest.mark.parametrize("right", ["f32[]", "f32[1]", "f32[2]", "f32[1,4]", "f32[4,1]"])
def test_no_implicit_broadcast(right: str) -> None:
    refuse(faults.IMPLICIT_BROADCAST, "add", "f32[4]", right, at=1, to="f32[4]")


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ("f32[4]", "f32[]", "f32[4]"),
        ("f32[]", "bf16[4]", "f32[4]"),
        ("f32[4,1]", "f32[1,5]", "f32[4,5]"),
        ("f32[1]", "f32[?]", "f32[?]"),
        ("f32[<=5]", "f32[1]", "f32[<=5]"),
    ],
)
def test_the_parser_broadcasts(left: str, right: str, result: str) -> None:
    assert infer("add", left, right) == result


def test_the_parser_does_not_broadcast_ranks() -> None:
    refuse(faults.IMPLICIT_BROADCAST, "add", "f32[4]", "f32[2,4]")
    refuse(faults.IMPLICIT_BROADCAST, "add", "f32[4]", "f32[5]")


@pytest.mark.parametrize(
    ("operand", "kind", "fits"),
    [
        ("f32[2]", "FLOAT", True),
        ("f32[2]", "TOTALORDER", True),
        ("f32[2]", "SIGNED", False),
        ("c64[2]", "FLOAT", True),
        ("c64[2]", "TOTALORDER", False),
        ("s32[2]", "SIGNED", True),
        ("s32[2]", "UNSIGNED", False),
        ("u8[2]", "UNSIGNED", True),
        ("pred[2]", "UNSIGNED", True),
        ("pred[2]", "SIGNED", False),
    ],
)
def test_comparison_type(operand: str, kind: str, fits: bool) -> None:
    case = {"to": "pred[2]", "direction": "LT", "type": kind}
    if fits:
        assert infer("compare", operand, operand, **case) == "pred[2]"
    else:
        refuse(faults.COMPARISON_TYPE, "compare", operand, operand, at="type", **case)
    assert infer("compare", operand, operand, direction="LT", type=kind) == "pred[2]"


def test_select() -> None:
    assert infer("select", "pred[2]", "f32[2]", "f32[2]", to="f32[2]") == "f32[2]"
    assert infer("select", "pred[]", "f32[2]", "f32[2]", to="f32[2]") == "f32[2]"
    assert infer("select", "pred[4]", "f32[<=4]", "f32[4]") == "f32[<=4]"
    assert infer("select", "pred[]", "f32[?]", "f32[4]") == "f32[4]"
    refuse(faults.ELEMENT_TYPE, "select", "u8[2]", "f32[2]", "f32[2]", at=0, to="f32[2]")
    refuse(faults.IMPLICIT_BROADCAST, "select", "pred[3]", "f32[2]", "f32[2]", at=0, to="f32[2]")
    refuse(faults.SIZE_MISMATCH, "select", "pred[2]", "f32[2]", "f32[]", at=2, to="f32[2]")
    refuse(faults.SIZE_MISMATCH, "select", "pred[2]", "f32[2]", "s32[2]", at=2, to="f32[2]")


def test_clamp() -> None:
    assert infer("clamp", "f32[]", "f32[2]", "f32[2]", to="f32[2]") == "f32[2]"
    refuse(faults.ELEMENT_TYPES_DIFFER, "clamp", "s32[]", "f32[2]", "f32[]", at=0, to="f32[2]")
    refuse(faults.IMPLICIT_BROADCAST, "clamp", "f32[]", "f32[2]", "f32[1]", at=2, to="f32[2]")
