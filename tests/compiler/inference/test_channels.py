import pytest

from hloipu_compiler.inference import faults
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.element_types import F32
from tests.support.shape_rules import infer, refuse


@pytest.mark.parametrize(
    ("opcode", "operands", "to", "result"),
    [
        ("after-all", [], None, "token[]"),
        ("after-all", ["token[]", "token[]"], None, "token[]"),
        ("add-dependency", ["(f32[2])", "token[]"], None, "(f32[2])"),
        ("infeed", ["token[]"], "(f32[2], token[])", "(f32[2], token[])"),
        ("outfeed", ["f32[2]", "token[]"], "token[]", "token[]"),
        ("send", ["f32[2]", "token[]"], "f32[]", "(f32[2], u32[], token[])"),
        ("send-done", ["(f32[2], u32[], token[])"], "token[]", "token[]"),
        ("recv", ["token[]"], "(f32[2], u32[], token[])", "(f32[2], u32[], token[])"),
        ("recv-done", ["(f32[2], u32[], token[])"], "f32[]", "(f32[2], token[])"),
    ],
)
def test_channels(opcode: str, operands: list[str], to: str | None, result: str) -> None:
    assert infer(opcode, *operands, to=to) == result


@pytest.mark.parametrize(
    ("opcode", "operands", "to", "result"),
    [
        ("infeed", [], "f32[2]", "f32[2]"),
        ("outfeed", ["f32[2]"], "()", "()"),
        ("send", ["f32[2]"], "(f32[2], u32[])", "(f32[2], u32[])"),
        ("send-done", ["(f32[2], u32[])"], "()", "()"),
        ("recv", [], "(f32[2], u32[])", "(f32[2], u32[])"),
        ("recv-done", ["(f32[2], u32[])"], "f32[2]", "f32[2]"),
    ],
)
def test_before_tokens(opcode: str, operands: list[str], to: str, result: str) -> None:
    assert infer(opcode, *operands, to=to) == result


def test_channels_refused() -> None:
    refuse(faults.TOKEN_EXPECTED, "add-dependency", "f32[]", "f32[]", at=1, to="f32[]")
    refuse(faults.TOKEN_EXPECTED, "infeed", "f32[]", at=0, to="(f32[], token[])")
    refuse(faults.TOKEN_EXPECTED, "outfeed", "f32[]", "f32[]", at=1, to="token[]")
    refuse(faults.DECLARED_STRUCTURE, "infeed", "token[]", to="f32[]")
    refuse(faults.DECLARED_STRUCTURE, "recv", "token[]", to="()")
    refuse(faults.OPERAND_KIND, "recv-done", "f32[]", at=0, to="(f32[], token[])")


def test_outfeed_shape() -> None:
    said = {"to": "token[]", "outfeed_shape": ArrayShape(F32, (2,))}
    assert infer("outfeed", "f32[2]", "token[]", **said) == "token[]"
    refuse(faults.SIZE_MISMATCH, "outfeed", "f32[3]", "token[]", at=0, **said)
