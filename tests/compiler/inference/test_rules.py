import pytest

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.rules import MIXED_PRECISION_ALLOWED
from hloipu_compiler.inference.site import RULES
from hloipu_compiler.ir.ops import LEGACY, OPS
from tests.support.shape_rules import infer, refuse


def test_every_current_opcode_has_a_rule_and_no_other() -> None:
    assert set(RULES) == set(OPS) - LEGACY


def test_exempt_opcodes_exist() -> None:
    assert set(RULES) >= MIXED_PRECISION_ALLOWED


def test_codes_are_distinct_and_of_this_family() -> None:
    codes = [code for name, code in vars(faults).items() if name.isupper()]
    assert len(set(codes)) == len(codes)
    assert all(code.startswith("E02") for code in codes)


@pytest.mark.parametrize(
    ("opcode", "operands"),
    [("add", 1), ("add", 3), ("reduce", 1), ("tanh", 0), ("iota", 1), ("ragged-all-to-all", 5)],
)
def test_wrong_number_of_operands(opcode: str, operands: int) -> None:
    refuse(faults.OPERAND_NUMBER, opcode, *["f32[2]"] * operands, to="f32[2]")


def test_unknown_and_legacy_opcodes_have_no_rule() -> None:
    refuse(faults.NOT_INFERABLE, "frobnicate", "f32[]")
    refuse(faults.NOT_INFERABLE, "equal-to", "f32[]", "f32[]")


@pytest.mark.parametrize("opcode", ["add", "clamp", "after-all"])
def test_mixed_precision_is_refused_once_the_shape_is_known(opcode: str) -> None:
    operands = ["f32[]", "bf16[]", "f32[]"][: 3 if opcode == "clamp" else 2]
    refuse(faults.MIXED_PRECISION, opcode, *operands, at=1, to="f32[]")


def test_mixed_precision_inside_a_tuple() -> None:
    refuse(faults.MIXED_PRECISION, "copy", "(f32[], s32[], (f16[]))", at=0, to="(f32[])")


def test_the_parser_infers_the_wider_type_of_a_mixture() -> None:
    assert infer("add", "bf16[2]", "f32[2]") == "f32[2]"
    assert infer("maximum", "f16[2]", "bf16[2]") == "bf16[2]"


def test_dot_and_tuple_mix_precision() -> None:
    assert infer("dot", "f32[2]", "bf16[3]", to="f64[2,3]") == "f64[2,3]"
    assert infer("tuple", "f32[2]", "bf16[3]", to="(f32[2], bf16[3])") == "(f32[2], bf16[3])"
