import pytest

from hloipu_compiler.inference import faults
from tests.support.shape_rules import infer, refuse


@pytest.mark.parametrize(
    ("operands", "along", "result"),
    [
        (["f32[2,3]", "f32[2,1]"], 1, "f32[2,4]"),
        (["f32[2]"], 0, "f32[2]"),
        (["f32[0]", "f32[2]", "f32[2]"], 0, "f32[4]"),
        (["f32[2]", "f32[<=3]"], 0, "f32[<=5]"),
        (["f32[2]", "f32[?]"], 0, "f32[?]"),
        (["f32[<=2]", "f32[<=3]"], 0, "f32[<=5]"),
        (["f32[2,?]", "f32[2,3]"], 0, "f32[4,3]"),
        (["f32[2,<=3]", "f32[2,?]"], 0, "f32[4,<=3]"),
    ],
)
def test_concatenate(operands: list[str], along: int, result: str) -> None:
    assert infer("concatenate", *operands, dimensions=(along,)) == result


@pytest.mark.parametrize(
    ("code", "second", "dimensions"),
    [
        (faults.SIZE_MISMATCH, "f32[3,3]", (1,)),
        (faults.SIZE_MISMATCH, "f32[3]", (0,)),
        (faults.ELEMENT_TYPES_DIFFER, "s32[2,3]", (0,)),
        (faults.DIMENSION_RANGE, "f32[2,3]", (2,)),
        (faults.DIMENSION_RANGE, "f32[2,3]", (-1,)),
        (faults.DIMENSION_COUNT, "f32[2,3]", (0, 1)),
        (faults.OPERAND_KIND, "(f32[2,3])", (0,)),
    ],
)
def test_concatenate_refused(code: str, second: str, dimensions: tuple[int, ...]) -> None:
    refuse(code, "concatenate", "f32[2,3]", second, to="f32[4,3]", dimensions=dimensions)


def test_bounds_that_clash() -> None:
    operands = ["f32[2,<=3]", "f32[2,?]", "f32[2,<=4]"]
    refuse(faults.SIZE_MISMATCH, "concatenate", *operands, at=2, dimensions=(0,))
