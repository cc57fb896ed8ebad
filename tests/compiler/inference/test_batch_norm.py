import pytest

from hloipu_compiler.inference import faults
from tests.support.shape_rules import infer, refuse


def test_batch_norm() -> None:
    x, c = "f32[2,5,3]", "f32[3]"
    assert infer("batch-norm-training", x, c, c, feature_index=2) == f"({x}, {c}, {c})"
    assert infer("batch-norm-inference", x, c, c, c, c, feature_index=2) == x
    assert infer("batch-norm-grad", x, c, c, c, x, feature_index=2) == f"({x}, {c}, {c})"
    assert infer("batch-norm-training", "f32[<=2]", "f32[2]", "f32[2]", feature_index=0) == (
        "(f32[<=2], f32[<=2], f32[<=2])"
    )


@pytest.mark.parametrize(
    ("code", "operand", "scale", "index"),
    [
        (faults.DIMENSION_RANGE, "f32[2,3]", "f32[3]", 2),
        (faults.DIMENSION_RANGE, "f32[2,3]", "f32[3]", -1),
        (faults.SIZE_MISMATCH, "f32[2,3]", "f32[2]", 1),
        (faults.SIZE_MISMATCH, "f32[2,3]", "f32[3,1]", 1),
        (faults.SIZE_MISMATCH, "f32[2,3]", "f32[]", 1),
        (faults.ELEMENT_TYPE, "f32[2,3]", "s32[3]", 1),
        (faults.ELEMENT_TYPE, "s32[2,3]", "s32[3]", 1),
    ],
)
def test_batch_norm_refused(code: str, operand: str, scale: str, index: int) -> None:
    refuse(code, "batch-norm-training", operand, scale, "f32[3]", feature_index=index)


def test_batch_norm_gradient_has_the_operand_s_sizes() -> None:
    operands = ["f32[2,3]", "f32[3]", "f32[3]", "f32[3]", "f32[2,4]"]
    refuse(faults.SIZE_MISMATCH, "batch-norm-grad", *operands, at=4, feature_index=1)
