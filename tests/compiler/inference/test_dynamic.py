import pytest

from hloipu_compiler.inference import faults
from tests.support.shape_rules import infer, refuse


def test_dimension_sizes() -> None:
    assert infer("get-dimension-size", "f32[<=4]", dimensions=(0,)) == "s32[]"
    assert infer("set-dimension-size", "f32[4,2]", "s32[]", dimensions=(0,)) == "f32[<=4,2]"
    assert infer("set-dimension-size", "f32[<=4]", "s32[]", dimensions=(0,)) == "f32[<=4]"


@pytest.mark.parametrize(
    ("code", "operand", "dimensions"),
    [
        (faults.DIMENSION_RANGE, "f32[4]", (1,)),
        (faults.DIMENSION_RANGE, "f32[4]", (-1,)),
        (faults.DIMENSION_COUNT, "f32[4]", ()),
        (faults.SHAPE_OVERFLOW, "s8[2147483648]", (0,)),
        (faults.OPERAND_KIND, "(f32[4])", (0,)),
    ],
)
def test_dimension_sizes_refused(code: str, operand: str, dimensions: tuple[int, ...]) -> None:
    refuse(code, "get-dimension-size", operand, dimensions=dimensions)


def test_a_size_is_one_s32() -> None:
    for size in ("s64[]", "s32[1]"):
        refuse(faults.INDEX_OPERAND, "set-dimension-size", "f32[4]", size, at=1, dimensions=(0,))


def test_dynamic_reshape() -> None:
    to = "f32[<=2,<=3]"
    assert infer("dynamic-reshape", "f32[6]", "s32[]", "s32[]", to=to) == to
    refuse(faults.OPERAND_NUMBER, "dynamic-reshape", "f32[6]", "s32[]", to=to)
    refuse(faults.ELEMENT_COUNT, "dynamic-reshape", "f32[5]", "s32[]", "s32[]", at=0, to=to)
    refuse(faults.INDEX_OPERAND, "dynamic-reshape", "f32[6]", "s32[]", "f32[]", at=2, to=to)
    refuse(faults.ELEMENT_TYPES_DIFFER, "dynamic-reshape", "s8[6]", "s32[]", "s32[]", to=to)
