from typing import Any

import pytest

from hloipu_compiler.inference import faults
from hloipu_compiler.ir.attributes import ConvolutionLabels, Raw, Window
from hloipu_runtime.kernels.windows_geometry import WindowDimension
from tests.support.shape_rules import infer, refuse


def _case(size: int = 3, **more: Any) -> dict[str, Any]:
    dimension = {name: more.pop(name) for name in ("stride", "pad_low") if name in more}
    return {
        "dim_labels": ConvolutionLabels("b0f", "0io", "b0f"),
        "window": Window((WindowDimension(size, **dimension),)),
        **more,
    }


def test_convolution() -> None:
    assert infer("convolution", "f32[2,8,4]", "f32[3,4,6]", **_case()) == "f32[2,6,6]"
    assert infer("convolution", "f32[2,8,4]", "f32[3,4,6]", **_case(stride=2)) == "f32[2,3,6]"
    assert infer("convolution", "s8[2,8,4]", "s8[3,4,6]", to="s32[2,6,6]", **_case()) == (
        "s32[2,6,6]"
    )


def test_labels_place_the_dimensions() -> None:
    window = Window((WindowDimension(2), WindowDimension(3)))
    case: dict[str, Any] = {
        "dim_labels": ConvolutionLabels("1bf0", "o01i", "f01b"),
        "window": window,
    }
    assert infer("convolution", "f32[8,2,4,5]", "f32[6,2,3,4]", **case) == "f32[6,4,6,2]"
    none: dict[str, Any] = {"dim_labels": ConvolutionLabels("bf", "io", "bf")}
    assert infer("convolution", "f32[2,4]", "f32[4,6]", **none) == "f32[2,6]"


def test_groups() -> None:
    features = _case(feature_group_count=2)
    assert infer("convolution", "f32[2,8,8]", "f32[3,4,6]", **features) == "f32[2,6,6]"
    batches = _case(batch_group_count=2)
    assert infer("convolution", "f32[4,8,4]", "f32[3,4,6]", **batches) == "f32[2,6,6]"


def test_sparse_kernels_count_whole_blocks() -> None:
    case = _case(sparsity_config=Raw("{rhs={sparsity=1x2 dimension=1}}"))
    kernel = "(f32[3,2,6], u8[3,2,6])"
    assert infer("convolution", "f32[2,8,4]", kernel, **case) == "f32[2,6,6]"


def test_dynamic_sizes() -> None:
    assert infer("convolution", "f32[<=2,8,4]", "f32[3,4,6]", **_case()) == "f32[<=2,6,6]"
    assert infer("convolution", "f32[2,?,4]", "f32[3,4,6]", **_case()) == "f32[2,?,6]"
    refuse(faults.DYNAMIC_SIZE, "convolution", "f32[2,8,4]", "f32[3,4,<=6]", at=1, **_case())


@pytest.mark.parametrize(
    ("code", "left", "right", "case"),
    [
        (faults.SIZE_MISMATCH, "f32[2,8,5]", "f32[3,4,6]", _case()),
        (faults.SIZE_MISMATCH, "f32[2,8]", "f32[3,4,6]", _case()),
        (faults.SIZE_MISMATCH, "f32[2,8,4]", "f32[3,4]", _case()),
        (faults.WINDOW, "f32[2,8,4]", "f32[3,4,6]", _case(size=2)),
        (faults.WINDOW, "f32[2,8,4]", "f32[3,4,6]", _case(stride=0)),
        (faults.WINDOW, "f32[2,8,4]", "f32[3,4,6]", _case(window=Window())),
        (faults.ATTRIBUTE_VALUE, "f32[2,8,4]", "f32[3,4,6]", _case(feature_group_count=0)),
        (faults.ATTRIBUTE_VALUE, "f32[2,8,4]", "f32[3,4,6]", _case(batch_group_count=-1)),
        (faults.ATTRIBUTE_VALUE, "f32[3,8,4]", "f32[3,4,6]", _case(batch_group_count=2)),
        (faults.ATTRIBUTE_VALUE, "f32[2,8,8]", "f32[3,4,5]", _case(feature_group_count=2)),
        (faults.ATTRIBUTE_VALUE, "f32[2,8,4]", "f32[3,2,6]",
         _case(feature_group_count=2, batch_group_count=2)),
        (faults.DIMENSION_ORDER, "f32[2,8,4]", "f32[3,4,6]",
         _case(dim_labels=ConvolutionLabels("b1f", "0io", "b0f"))),
        (faults.DIMENSION_ORDER, "f32[2,8,4]", "f32[3,4,6]",
         _case(dim_labels=ConvolutionLabels("b0f", "0io", "bf0f"))),
    ],
)  # fmt: skip
def test_convolution_refused(code: str, left: str, right: str, case: dict[str, Any]) -> None:
    refuse(code, "convolution", left, right, **case)
