import pytest

from hloipu_compiler.inference import faults
from tests.support.shape_rules import infer, refuse


def test_dynamic_slice() -> None:
    case = {"to": "f32[1,2]", "dynamic_slice_sizes": (1, 2)}
    assert infer("dynamic-slice", "f32[4,6]", "s32[]", "s32[]", **case) == "f32[1,2]"
    assert infer("dynamic-slice", "f32[4,6]", "u8[2]", **case) == "f32[1,2]"
    assert infer("dynamic-slice", "f32[<=4]", "s32[]", dynamic_slice_sizes=(4,)) == "f32[<=4]"
    assert infer("dynamic-slice", "f32[<=4]", "s32[]", dynamic_slice_sizes=(3,)) == "f32[3]"
    assert infer("dynamic-slice", "f32[]", dynamic_slice_sizes=()) == "f32[]"


@pytest.mark.parametrize(
    ("code", "starts", "sizes"),
    [
        (faults.INDEX_OPERAND, ["s32[]"], (1, 2)),
        (faults.INDEX_OPERAND, ["s32[]", "s64[]"], (1, 2)),
        (faults.INDEX_OPERAND, ["f32[]", "f32[]"], (1, 2)),
        (faults.INDEX_OPERAND, ["s32[2,1]"], (1, 2)),
        (faults.INDEX_OPERAND, ["s32[3]"], (1, 2)),
        (faults.INDEX_OPERAND, ["f32[2]"], (1, 2)),
        (faults.OUT_OF_BOUNDS, ["s32[]", "s32[]"], (5, 2)),
        (faults.OUT_OF_BOUNDS, ["s32[]", "s32[]"], (-1, 2)),
        (faults.DIMENSION_COUNT, ["s32[]", "s32[]"], (1,)),
    ],
)
def test_dynamic_slice_refused(code: str, starts: list[str], sizes: tuple[int, ...]) -> None:
    refuse(code, "dynamic-slice", "f32[4,6]", *starts, to="f32[1,2]", dynamic_slice_sizes=sizes)


def test_dynamic_update_slice() -> None:
    assert infer("dynamic-update-slice", "f32[4]", "f32[2]", "s32[]", to="f32[4]") == "f32[4]"
    assert infer("dynamic-update-slice", "b(f32[4])", "f32[2]", "s32[]") == "b(f32[4])"
    assert infer("dynamic-update-slice", "f32[4]", "f32[<=4]", "s32[]") == "f32[<=4]"
    assert infer("dynamic-update-slice", "f32[4]", "f32[<=3]", "s32[]") == "f32[4]"


@pytest.mark.parametrize(
    ("code", "update", "start", "at"),
    [
        (faults.OUT_OF_BOUNDS, "f32[5]", "s32[]", 1),
        (faults.SIZE_MISMATCH, "f32[]", "s32[]", 1),
        (faults.ELEMENT_TYPES_DIFFER, "s32[2]", "s32[]", 1),
        (faults.INDEX_OPERAND, "f32[2]", "pred[]", 2),
    ],
)
def test_dynamic_update_slice_refused(code: str, update: str, start: str, at: int) -> None:
    refuse(code, "dynamic-update-slice", "f32[4]", update, start, at=at, to="f32[4]")
