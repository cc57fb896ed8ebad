from typing import Any

import pytest

from hloipu_compiler.inference import faults
from hloipu_compiler.ir.attributes import Alias
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.element_types import F32
from tests.support.shape_rules import infer, refuse

CALLEE = {"f": "(f32[2], s32[]) -> (f32[2], pred[])"}


@pytest.mark.parametrize(("opcode", "attribute"), [("call", "to_apply"), ("fusion", "calls")])
def test_call_and_fusion(opcode: str, attribute: str) -> None:
    case: dict[str, Any] = {"programs": CALLEE, "to": "(f32[2], pred[])", attribute: "f"}
    assert infer(opcode, "f32[2]", "s32[]", **case) == "(f32[2], pred[])"
    refuse(faults.CALLEE, opcode, "f32[2]", at=attribute, **case)
    refuse(faults.CALLEE, opcode, "f32[3]", "s32[]", at=0, **case)
    refuse(faults.CALLEE, opcode, "f32[2]", "s64[]", at=1, **case)


LOOP: dict[str, Any] = {
    "programs": {"c": "(s32[]) -> pred[]", "b": "(s32[]) -> s32[]"},
    "condition": "c",
    "body": "b",
}


def test_while() -> None:
    assert infer("while", "s32[]", to="s32[]", **LOOP) == "s32[]"
    assert infer("while", "s32[]", **LOOP) == "s32[]"
    refuse(faults.CALLEE, "while", "f32[]", at=0, **LOOP)


@pytest.mark.parametrize(
    ("condition", "body", "at"),
    [
        ("(s32[]) -> s32[]", "(s32[]) -> s32[]", "condition"),
        ("(s32[]) -> pred[1]", "(s32[]) -> s32[]", "condition"),
        ("(s32[], s32[]) -> pred[]", "(s32[]) -> s32[]", "condition"),
        ("(s32[]) -> pred[]", "() -> s32[]", "body"),
        ("(s32[]) -> pred[]", "(s32[]) -> s64[]", "body"),
    ],
)
def test_while_refused(condition: str, body: str, at: str) -> None:
    case = {**LOOP, "programs": {"c": condition, "b": body}}
    refuse(faults.CALLEE, "while", "s32[]", at=at, to="s32[]", **case)


BRANCHES = {"a": "(f32[2]) -> f32[4]", "b": "(s32[]) -> f32[<=4]"}
BY_PRED = {"programs": BRANCHES, "true_computation": "a", "false_computation": "b"}
BY_NUMBER: dict[str, Any] = {"programs": BRANCHES, "branch_computations": ("a", "b", "a")}


def test_conditional() -> None:
    assert infer("conditional", "pred[]", "f32[2]", "s32[]", **BY_PRED) == "f32[<=4]"
    operands = ["s32[]", "f32[2]", "s32[]", "f32[2]"]
    assert infer("conditional", *operands, **BY_NUMBER) == "f32[<=4]"


def test_conditional_refused() -> None:
    refuse(faults.CALLEE, "conditional", "pred[]", "f32[3]", "s32[]", at=1, **BY_PRED)
    refuse(faults.OPERAND_KIND, "conditional", "s64[]", "f32[2]", "s32[]", at=0, **BY_NUMBER)
    refuse(faults.OPERAND_KIND, "conditional", "pred[1]", "f32[2]", "s32[]", at=0, **BY_PRED)
    refuse(faults.OPERAND_NUMBER, "conditional", "s32[]", "f32[2]", "s32[]", **BY_NUMBER)
    refuse(faults.OPERAND_NUMBER, "conditional", "pred[]", "f32[2]", "s32[]", **BY_NUMBER)
    other = {**BY_PRED, "programs": {**BRANCHES, "b": "(s32[]) -> f32[5]"}}
    refuse(
        faults.CALLEE, "conditional", "pred[]", "f32[2]", "s32[]", at="false_computation", **other
    )


def test_custom_call() -> None:
    assert infer("custom-call", "f32[2]", to="(s32[], f32[3])") == "(s32[], f32[3])"
    refuse(faults.NOT_INFERABLE, "custom-call", "f32[2]")


def test_layout_constraints_fit_the_operands() -> None:
    two = (ArrayShape(F32, (2,)),)
    case: dict[str, Any] = {"to": "f32[]", "operand_layout_constraints": two}
    assert infer("custom-call", "f32[2]", **case) == "f32[]"
    refuse(faults.SIZE_MISMATCH, "custom-call", "f32[3]", at=0, **case)
    refuse(faults.OPERAND_NUMBER, "custom-call", at="operand_layout_constraints", **case)


def test_rng_seed_is_one_u64() -> None:
    case = {"custom_call_target": "GetRngSeed"}
    assert infer("custom-call", to="u64[]", **case) == "u64[]"
    refuse(faults.DECLARED_STRUCTURE, "custom-call", to="u32[]", **case)
    refuse(faults.DECLARED_STRUCTURE, "custom-call", "f32[]", to="u64[]", **case)


@pytest.mark.parametrize(
    ("alias", "fits"),
    [
        (Alias((0,), 1, ()), True),
        (Alias((1,), 0, (1,)), True),
        (Alias((), 0, ()), True),
        (Alias((2,), 1, ()), False),
        (Alias((0,), 2, ()), False),
        (Alias((0,), 1, (0,)), False),
        (Alias((0,), 0, (1,)), False),
    ],
)
def test_aliases(alias: Alias, fits: bool) -> None:
    operands = ["(f32[2], s32[])", "f32[2]"]
    case: dict[str, Any] = {"to": "(f32[2], s32[])", "output_to_operand_aliasing": (alias,)}
    if fits:
        assert infer("custom-call", *operands, **case) == "(f32[2], s32[])"
    else:
        refuse(faults.ALIASING, "custom-call", *operands, **case)
