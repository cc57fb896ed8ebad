from typing import Any

import pytest

from hloipu_compiler.inference import faults
from tests.support.shape_rules import infer, refuse

MATMUL: dict[str, Any] = {"lhs_contracting_dims": (1,), "rhs_contracting_dims": (0,)}
BATCHED: dict[str, Any] = {
    "lhs_batch_dims": (0,), "rhs_batch_dims": (0,),
    "lhs_contracting_dims": (2,), "rhs_contracting_dims": (1,),
}  # fmt: skip


def test_dot() -> None:
    assert infer("dot", "f32[2,3]", "f32[3,4]", **MATMUL) == "f32[2,4]"
    assert infer("dot", "f32[5,2,3]", "f32[5,3,4]", **BATCHED) == "f32[5,2,4]"
    assert infer("dot", "f32[2]", "f32[3]") == "f32[2,3]"
    assert infer("dot", "f32[<=2,3]", "f32[3,4]", **MATMUL) == "f32[<=2,4]"
    assert infer("dot", "f32[2,?]", "f32[3,?]", **MATMUL) == "f32[2,?]"


def test_dot_types() -> None:
    assert infer("dot", "s8[2,3]", "s8[3,4]", to="s32[2,4]", **MATMUL) == "s32[2,4]"
    assert infer("dot", "bf16[2,3]", "f32[3,4]", **MATMUL) == "f32[2,4]"
    refuse(faults.ELEMENT_TYPES_DIFFER, "dot", "f8e5m2[2,3]", "f8e5m2fnuz[3,4]", **MATMUL)


@pytest.mark.parametrize(
    ("code", "change"),
    [
        (faults.SIZE_MISMATCH, {"rhs_contracting_dims": (2,)}),
        (faults.SIZE_MISMATCH, {"lhs_batch_dims": (1,)}),
        (faults.DIMENSION_RANGE, {"lhs_contracting_dims": (3,)}),
        (faults.DIMENSION_RANGE, {"rhs_batch_dims": (-1,)}),
        (faults.DIMENSION_ORDER, {"lhs_contracting_dims": (0,)}),
        (faults.DIMENSION_ORDER, {"rhs_contracting_dims": (1, 1)}),
        (faults.DIMENSION_COUNT, {"lhs_contracting_dims": ()}),
        (faults.DIMENSION_COUNT, {"rhs_batch_dims": ()}),
    ],
)
def test_dot_refused(code: str, change: dict[str, Any]) -> None:
    refuse(code, "dot", "f32[5,2,3]", "f32[5,3,4]", **{**BATCHED, **change})


def test_dot_of_a_tuple() -> None:
    refuse(faults.OPERAND_KIND, "dot", "(f32[2])", "f32[2]", at=0)


def test_scaled_dot() -> None:
    case = {**MATMUL, "to": "f32[2,4]"}
    operands = ["f8e4m3fn[2,32]", "f8e4m3fn[32,4]"]
    assert infer("scaled-dot", *operands, "f8e8m0fnu[2,1]", "f8e8m0fnu[1,4]", **case) == "f32[2,4]"
    refuse(faults.SIZE_MISMATCH, "scaled-dot", *operands, "f8e8m0fnu[2,3]", "f32[1,4]", at=2,
           **case)  # fmt: skip
    refuse(faults.SIZE_MISMATCH, "scaled-dot", *operands, "f8e8m0fnu[2,1]", "f32[4]", at=3, **case)


def test_scaled_dot_of_bf16_needs_one_scale() -> None:
    case = {**MATMUL, "to": "bf16[2,4]"}
    operands = ["bf16[2,32]", "bf16[32,4]"]
    scaled = [*operands, "bf16[]", "bf16[1,4]"]
    assert infer("scaled-dot", *scaled, **case) == "bf16[2,4]"
    refuse(faults.SIZE_MISMATCH, "scaled-dot", *operands, "bf16[]", "bf16[]", at=2, **case)


RAGGED_ROWS: dict[str, Any] = {**MATMUL, "rhs_contracting_dims": (1,), "lhs_ragged_dims": (0,),
                               "rhs_group_dims": (0,)}  # fmt: skip


def test_ragged_dot() -> None:
    assert infer("ragged-dot", "f32[6,3]", "f32[2,3,4]", "s32[2]", **RAGGED_ROWS) == "f32[6,4]"
    sums = {**MATMUL, "lhs_ragged_dims": (1,)}
    assert infer("ragged-dot", "f32[6,3]", "f32[3,4]", "s32[2]", **sums) == "f32[2,6,4]"
    batch = {**BATCHED, "lhs_ragged_dims": (0,)}
    assert infer("ragged-dot", "f32[5,2,3]", "f32[5,3,4]", "s32[2]", **batch) == "f32[5,2,4]"


@pytest.mark.parametrize(
    ("code", "groups", "change"),
    [
        (faults.DIMENSION_COUNT, "s32[2]", {"lhs_ragged_dims": ()}),
        (faults.DIMENSION_COUNT, "s32[2]", {"lhs_ragged_dims": (0, 1)}),
        (faults.DIMENSION_RANGE, "s32[2]", {"lhs_ragged_dims": (2,)}),
        (faults.DIMENSION_COUNT, "s32[2]", {"rhs_group_dims": ()}),
        (faults.DIMENSION_COUNT, "s32[2]", {"rhs_group_dims": (1,)}),
        (faults.DIMENSION_COUNT, "s32[2]", {"lhs_ragged_dims": (1,)}),
        (faults.SIZE_MISMATCH, "s32[3]", {}),
        (faults.SIZE_MISMATCH, "s32[6,2]", {}),
        (faults.SIZE_MISMATCH, "s32[]", {}),
    ],
)
def test_ragged_dot_refused(code: str, groups: str, change: dict[str, Any]) -> None:
    refuse(code, "ragged-dot", "f32[6,3]", "f32[2,3,4]", groups, **{**RAGGED_ROWS, **change})
