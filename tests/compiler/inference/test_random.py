import pytest

from hloipu_compiler.inference import faults
from tests.support.shape_rules import infer, refuse


def test_rng() -> None:
    uniform = {"distribution": "rng_uniform"}
    assert infer("rng", "f32[]", "f32[]", to="f32[2]", **uniform) == "f32[2]"
    assert infer("rng", "s32[]", "s32[]", to="s32[2]", **uniform) == "s32[2]"


@pytest.mark.parametrize(
    ("code", "operands", "to", "distribution"),
    [
        (faults.OPERAND_NUMBER, ["f32[]"], "f32[2]", "rng_uniform"),
        (faults.SIZE_MISMATCH, ["f32[]", "f32[2]"], "f32[2]", "rng_uniform"),
        (faults.ELEMENT_TYPES_DIFFER, ["f32[]", "f64[]"], "f32[2]", "rng_uniform"),
        (faults.ELEMENT_TYPES_DIFFER, ["f32[]", "f32[]"], "bf16[2]", "rng_uniform"),
        (faults.ELEMENT_TYPE, ["s32[]", "s32[]"], "s32[2]", "rng_normal"),
        (faults.ELEMENT_TYPE, ["c64[]", "c64[]"], "c64[2]", "rng_uniform"),
        (faults.ATTRIBUTE_VALUE, ["f32[]", "f32[]"], "f32[2]", "rng_cauchy"),
    ],
)
def test_rng_refused(code: str, operands: list[str], to: str, distribution: str) -> None:
    refuse(code, "rng", *operands, to=to, distribution=distribution)


def test_rng_bit_generator() -> None:
    result = "(u64[2], u32[5])"
    assert infer("rng-bit-generator", "u64[2]", to=result) == result
    assert infer("rng-bit-generator", "u64[2]", to="u32[5]") == "u32[5]"
    for wrong in ("(u64[3], u32[5])", "(u64[2])"):
        refuse(faults.DECLARED_STRUCTURE, "rng-bit-generator", "u64[2]", to=wrong)


def test_rng_state() -> None:
    assert infer("rng-get-and-update-state", to="u64[2]", delta=1) == "u64[2]"
