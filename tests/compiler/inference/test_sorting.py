from typing import Any

import pytest

from hloipu_compiler.inference import faults
from tests.support.shape_rules import infer, refuse

LESS: dict[str, Any] = {"programs": {"f": "(f32[], f32[]) -> pred[]"}, "to_apply": "f"}
PAIRS: dict[str, Any] = {
    "programs": {"f": "(f32[], f32[], s32[], s32[]) -> pred[]"},
    "to_apply": "f",
}


def test_sort() -> None:
    assert infer("sort", "f32[2,3]", to="f32[2,3]", dimensions=(1,), **LESS) == "f32[2,3]"
    result = "(f32[3], s32[3])"
    assert infer("sort", "f32[3]", "s32[3]", to=result, dimensions=(0,), **PAIRS) == result
    assert infer("sort", "f32[3]", to="f32[3]") == "f32[3]"


@pytest.mark.parametrize(
    ("code", "operands", "dimension"),
    [
        (faults.DIMENSION_RANGE, ["f32[3]", "s32[3]"], 1),
        (faults.DIMENSION_RANGE, ["f32[]", "s32[]"], 0),
        (faults.SIZE_MISMATCH, ["f32[3]", "s32[4]"], 0),
        (faults.REDUCER, ["f32[3]"], 0),
        (faults.REDUCER, ["s32[3]", "f32[3]"], 0),
    ],
)
def test_sort_refused(code: str, operands: list[str], dimension: int) -> None:
    refuse(code, "sort", *operands, to="f32[3]", dimensions=(dimension,), **PAIRS)


def test_comparator_must_return_pred() -> None:
    case: dict[str, Any] = {"programs": {"f": "(f32[], f32[]) -> s32[]"}, "to_apply": "f"}
    refuse(faults.REDUCER, "sort", "f32[3]", at="to_apply", to="f32[3]", dimensions=(0,), **case)
    assert infer("sort", "f32[3]", dimensions=(0,), **case) == "f32[3]"


def test_topk() -> None:
    assert infer("topk", "f32[2,8]", k=3) == "(f32[2,3], s32[2,3])"
    assert infer("topk", "f32[<=2,<=8]", k=8) == "(f32[<=2,8], s32[<=2,8])"
    for operand, k in (("f32[8]", 9), ("f32[8]", -1), ("f32[]", 0)):
        refuse(faults.OUT_OF_BOUNDS, "topk", operand, at="k", k=k)
