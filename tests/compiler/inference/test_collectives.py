from typing import Any

import pytest

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.site import Participants
from hloipu_compiler.ir.attributes import ReplicaGroups
from tests.support.shape_rules import infer, refuse

PAIRS: dict[str, Any] = {"replica_groups": ReplicaGroups(((0, 1), (2, 3)))}


def test_all_reduce() -> None:
    assert infer("all-reduce", "f32[2]", to="f32[2]") == "f32[2]"
    assert infer("all-reduce", "f32[2]", "s32[]", to="(f32[2], s32[])") == "(f32[2], s32[])"
    refuse(faults.OPERAND_KIND, "all-reduce", "(f32[2])", at=0, to="f32[2]")


@pytest.mark.parametrize(
    ("operands", "to", "result"),
    [
        (["f32[2,3]"], "f32[4,3]", "f32[4,3]"),
        (["f32[2]", "s8[5]"], "(f32[4], s8[10])", "(f32[4], s8[10])"),
        (["f32[0]"], "f32[0]", "f32[0]"),
        (["f32[?]"], "f32[?]", "f32[?]"),
    ],
)
def test_all_gather(operands: list[str], to: str, result: str) -> None:
    assert infer("all-gather", *operands, to=to, dimensions=(0,), **PAIRS) == result


def test_group_size_may_be_unknown() -> None:
    assert infer("all-gather", "f32[2]", to="f32[6]", dimensions=(0,)) == "f32[6]"
    assert infer("all-gather", "f32[4]", to="f32[6]", dimensions=(0,)) == "f32[8]"
    four = Participants(replicas=4)
    refuse(faults.GROUP_SIZE, "all-gather", "f32[2]", to="f32[6]", dimensions=(0,), devices=four)


@pytest.mark.parametrize(
    ("attributes", "result"),
    [
        ({}, 4),
        ({"channel_id": 1}, 12),
        ({"channel_id": 1, "use_global_device_ids": True}, 4),
    ],
)
def test_what_a_group_holds(attributes: dict[str, Any], result: int) -> None:
    case = {**PAIRS, **attributes, "dimensions": (0,), "devices": Participants(4, 3)}
    assert infer("all-gather", "f32[2]", to=f"f32[{result}]", **case) == f"f32[{result}]"
    refuse(faults.GROUP_SIZE, "all-gather", "f32[2]", to="f32[10]", at="replica_groups", **case)


@pytest.mark.parametrize(
    ("code", "operands", "to", "change"),
    [
        (faults.GROUP_SIZE, ["f32[2]"], "f32[6]", {}),
        (faults.GROUP_SIZE, ["f32[2]"], "f32[0]", {}),
        (faults.DIMENSION_RANGE, ["f32[2]"], "f32[4]", {"dimensions": (1,)}),
        (faults.DIMENSION_COUNT, ["f32[2]"], "f32[4]", {"dimensions": (0, 0)}),
        (faults.DECLARED_STRUCTURE, ["f32[2]"], "f32[]", {}),
        (faults.DECLARED_STRUCTURE, ["f32[2]", "f32[2]"], "f32[4]", {}),
        (faults.DIMENSION_RANGE, ["f32[2]", "f32[]"], "(f32[4], f32[])", {}),
        (faults.GROUP_SIZE, ["f32[2]"], "f32[4]",
         {"channel_id": 1, "use_global_device_ids": True, "replica_groups": ReplicaGroups()}),
    ],
)  # fmt: skip
def test_all_gather_refused(
    code: str, operands: list[str], to: str, change: dict[str, Any]
) -> None:
    refuse(code, "all-gather", *operands, to=to, **{**PAIRS, "dimensions": (0,), **change})


def test_reduce_scatter() -> None:
    case = {**PAIRS, "dimensions": (1,)}
    assert infer("reduce-scatter", "f32[3,4]", to="f32[3,2]", **case) == "f32[3,2]"
    refuse(faults.GROUP_SIZE, "reduce-scatter", "f32[3,4]", to="f32[3,1]", **case)
    refuse(faults.GROUP_SIZE, "reduce-scatter", "f32[3,3]", to="f32[3,2]", at=0, **case)


def test_all_to_all() -> None:
    assert infer("all-to-all", "f32[4]", to="f32[4]", dimensions=(0,), **PAIRS) == "f32[4]"
    result = "(f32[4], f32[4])"
    assert infer("all-to-all", "f32[4]", "f32[4]", to=result, **PAIRS) == result
    refuse(faults.GROUP_SIZE, "all-to-all", "f32[3]", to="f32[3]", dimensions=(0,), **PAIRS)
    refuse(faults.GROUP_SIZE, "all-to-all", *["f32[4]"] * 3, to=result, **PAIRS)
    refuse(faults.SIZE_MISMATCH, "all-to-all", "f32[4]", "f32[5]", at=1, to=result, **PAIRS)
    one = {**PAIRS, "dimensions": (0,)}
    refuse(faults.OPERAND_NUMBER, "all-to-all", *["f32[4]"] * 2, to=result, **one)
    refuse(faults.DYNAMIC_SIZE, "all-to-all", "f32[<=4]", to="f32[4]", dimensions=(0,), **PAIRS)


def test_ragged_all_to_all() -> None:
    numbers = ["s32[2]"] * 4
    assert infer("ragged-all-to-all", "f32[8]", "f32[6]", *numbers, to="f32[6]") == "f32[6]"
    wrong = ["s32[2]", "s32[2]", "s32[3]", "s32[2]"]
    refuse(faults.SIZE_MISMATCH, "ragged-all-to-all", "f32[8]", "f32[6]", *wrong, at=4, to="f32[6]")
    flat = ["s32[]"] * 4
    refuse(faults.SIZE_MISMATCH, "ragged-all-to-all", "f32[8]", "f32[6]", *flat, at=2, to="f32[6]")


def test_collective_broadcast() -> None:
    assert infer("collective-broadcast", "f32[8]", to="f32[8]") == "f32[8]"
    case = {"to": "f32[8]", "has_dynamic_root": True}
    assert infer("collective-broadcast", "f32[8]", "s32[1]", **case) == "f32[8]"
    refuse(faults.INDEX_OPERAND, "collective-broadcast", "f32[8]", "s32[2]", at=1, **case)


def test_collective_permute() -> None:
    assert infer("collective-permute", "f32[8]", to="f32[8]") == "f32[8]"
    assert infer("collective-permute", "f32[8]", "s32[]", to="()") == "(f32[8], s32[])"
    case: dict[str, Any] = {"to": "f32[9]", "slice_sizes": ((1,),)}
    offsets = ["(s32[])", "(s32[])"]
    assert infer("collective-permute", "f32[8]", "f32[9]", *offsets, **case) == "f32[9]"
    refuse(faults.INDEX_OPERAND, "collective-permute", "f32[8]", "f32[9,1]", *offsets, at=3, **case)
    refuse(faults.OPERAND_NUMBER, "collective-permute", "f32[8]", **case)


def test_device_numbers() -> None:
    assert infer("partition-id") == "u32[]"
    assert infer("replica-id", to="u32[]") == "u32[]"
