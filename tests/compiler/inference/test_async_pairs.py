from typing import Any

import pytest

from hloipu_compiler.inference import faults
from hloipu_compiler.ir.attributes import ReplicaGroups
from tests.support.shape_rules import infer, refuse

PAIR: dict[str, Any] = {"replica_groups": ReplicaGroups(((0, 1),)), "dimensions": (0,)}


@pytest.mark.parametrize(
    ("opcode", "operands", "to", "result"),
    [
        ("copy-start", ["f32[2]"], "()", "(f32[2], f32[2], u32[])"),
        ("copy-done", ["(f32[2], f32[2], u32[])"], "f32[2]", "f32[2]"),
        ("all-reduce-start", ["f32[2]", "s32[]"], "()", "(f32[2], s32[])"),
        ("all-reduce-done", ["(f32[2], s32[])"], "()", "(f32[2], s32[])"),
        ("all-gather-done", ["(f32[2], f32[4])"], "f32[4]", "f32[4]"),
        ("collective-permute-start", ["f32[2]"], "()", "(f32[2], f32[2])"),
        (
            "collective-permute-start",
            ["f32[2]"],
            "(f32[2], f32[2], u32[], u32[])",
            "(f32[2], f32[2], u32[], u32[])",
        ),
        ("collective-permute-done", ["(f32[2], f32[2], u32[])"], "f32[2]", "f32[2]"),
    ],
)
def test_native_pairs(opcode: str, operands: list[str], to: str, result: str) -> None:
    assert infer(opcode, *operands, to=to) == result


def test_all_gather_start() -> None:
    assert infer("all-gather-start", "f32[2]", to="(f32[2], f32[4])", **PAIR) == "(f32[2], f32[4])"
    both = "((f32[2], s8[2]), (f32[4], s8[4]))"
    assert infer("all-gather-start", "f32[2]", "s8[2]", to=both, **PAIR) == both
    refuse(faults.GROUP_SIZE, "all-gather-start", "f32[2]", to="(f32[2], f32[6])", **PAIR)
    refuse(faults.DECLARED_STRUCTURE, "all-gather-start", "f32[2]", to="f32[4]", **PAIR)


def test_dones_need_a_start() -> None:
    for opcode in ("copy-done", "all-gather-done", "collective-permute-done", "async-done"):
        refuse(faults.OPERAND_KIND, opcode, "f32[2]", at=0, to="f32[2]")
    refuse(faults.SIZE_MISMATCH, "copy-done", "(f32[2], f32[3], u32[])", at=0, to="f32[2]")


CALLEE: dict[str, Any] = {"programs": {"f": "(f32[2], s32[]) -> f32[3]"}, "calls": "f"}
STARTED = "((f32[2], s32[]), f32[3], u32[])"


def test_async_chain() -> None:
    assert infer("async-start", "f32[2]", "s32[]", to=STARTED, **CALLEE) == STARTED
    assert infer("async-update", STARTED, to=STARTED) == STARTED
    assert infer("async-done", STARTED, to="f32[3]") == "f32[3]"
    assert infer("async-done", STARTED, to="f32[3]", **CALLEE) == "f32[3]"


def test_operands_bound_by_an_update() -> None:
    early = "((f32[2]), (), u32[])"
    assert infer("async-start", "f32[2]", to=early, **CALLEE) == early
    assert infer("async-update", early, "s32[]", to=STARTED, **CALLEE) == STARTED
    refuse(faults.CALLEE, "async-update", early, "f32[]", to=STARTED, **CALLEE)


@pytest.mark.parametrize(
    ("code", "operands", "to"),
    [
        (faults.DECLARED_STRUCTURE, ["f32[2]", "s32[]"], "f32[3]"),
        (faults.DECLARED_STRUCTURE, ["f32[2]", "s32[]"], "(f32[2], f32[3])"),
        (faults.CALLEE, ["f32[2]"], STARTED),
        (faults.CALLEE, ["f32[4]", "s32[]"], "((f32[4], s32[]), f32[3])"),
        (faults.CALLEE, ["f32[2]", "s32[]"], "((f32[2], s32[]), f32[4])"),
    ],
)
def test_async_start_refused(code: str, operands: list[str], to: str) -> None:
    refuse(code, "async-start", *operands, to=to, **CALLEE)


def test_update_keeps_what_was_bound() -> None:
    refuse(faults.CALLEE, "async-update", STARTED, at=0, to="((f32[9], s32[]), f32[3], u32[])")
