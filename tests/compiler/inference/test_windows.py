from typing import Any

import pytest

from hloipu_compiler.inference import faults
from hloipu_compiler.ir.attributes import Window
from hloipu_runtime.kernels.windows_geometry import WindowDimension
from tests.support.shape_rules import infer, refuse

ADD = {"f": "(f32[], f32[]) -> f32[]", "s": "(f32[], f32[]) -> pred[]"}


def _window(**dimension: Any) -> Window:
    return Window((WindowDimension(**dimension),))


@pytest.mark.parametrize(
    ("size", "dimension", "count"),
    [
        (8, {"size": 2, "stride": 2}, "4"),
        (8, {"size": 3, "stride": 2}, "3"),
        (8, {"size": 3, "pad_low": 1, "pad_high": 1}, "8"),
        (8, {"size": 3, "pad_low": -1, "pad_high": -2}, "3"),
        (8, {"size": 3, "base_dilation": 2}, "13"),
        (8, {"size": 3, "window_dilation": 3}, "2"),
        (2, {"size": 3}, "0"),
        (0, {"size": 1}, "0"),
        (0, {"size": 1, "pad_low": 3}, "3"),
        (2, {"size": 1, "pad_low": -2}, "0"),
    ],
)
def test_reduce_window(size: int, dimension: dict[str, Any], count: str) -> None:
    case: dict[str, Any] = {"programs": ADD, "to_apply": "f", "window": _window(**dimension)}
    assert infer("reduce-window", f"f32[{size}]", "f32[]", **case) == f"f32[{count}]"


def test_reduce_window_of_several_and_of_dynamic_sizes() -> None:
    both = {"f": "(f32[], s32[], f32[], s32[]) -> (f32[], s32[])"}
    case: dict[str, Any] = {"programs": both, "to_apply": "f", "window": _window(size=2)}
    operands = ["f32[4]", "s32[4]", "f32[]", "s32[]"]
    result = "(f32[3], s32[3])"
    assert infer("reduce-window", *operands, to=result, **case) == result
    refuse(faults.NOT_INFERABLE, "reduce-window", *operands, **case)
    one: dict[str, Any] = {"programs": ADD, "to_apply": "f", "window": _window(size=2)}
    assert infer("reduce-window", "f32[<=4]", "f32[]", **one) == "f32[<=3]"
    assert infer("reduce-window", "f32[?]", "f32[]", **one) == "f32[?]"
    assert infer("reduce-window", "f32[]", "f32[]", programs=ADD, to_apply="f") == "f32[]"


@pytest.mark.parametrize(
    "dimension",
    [
        {"size": 0},
        {"size": 2, "stride": 0},
        {"size": 2, "base_dilation": 0},
        {"size": 2, "window_dilation": 0},
        {"size": 2, "pad_low": -9},
    ],
)
def test_windows_refused(dimension: dict[str, Any]) -> None:
    case: dict[str, Any] = {"programs": ADD, "to_apply": "f", "window": _window(**dimension)}
    refuse(faults.WINDOW, "reduce-window", "f32[8]", "f32[]", at="window", **case)


def test_reduce_window_refused() -> None:
    case: dict[str, Any] = {"programs": ADD, "to_apply": "f", "window": _window(size=2)}
    refuse(faults.WINDOW, "reduce-window", "f32[8,8]", "f32[]", at="window", **case)
    refuse(faults.REDUCER, "reduce-window", "s32[8]", "f32[]", at="to_apply", **case)
    refuse(faults.OPERAND_NUMBER, "reduce-window", *["f32[8]"] * 3, **case)
    several = ["f32[8]", "f32[7]", "f32[]", "f32[]"]
    refuse(faults.SIZE_MISMATCH, "reduce-window", *several, at=1, to="f32[7]", **case)


SCATTER: dict[str, Any] = {"programs": ADD, "select": "s", "scatter": "f"}


def test_select_and_scatter() -> None:
    window = _window(size=2, stride=2)
    operands = ["f32[8]", "f32[4]", "f32[]"]
    assert infer("select-and-scatter", *operands, window=window, **SCATTER) == "f32[8]"
    wrong = ["f32[8]", "f32[5]", "f32[]"]
    refuse(faults.SIZE_MISMATCH, "select-and-scatter", *wrong, at=1, window=window, **SCATTER)
    integers = ["s32[8]", "s32[4]", "s32[]"]
    refuse(faults.REDUCER, "select-and-scatter", *integers, at="select", window=window, **SCATTER)


def test_select_must_return_pred() -> None:
    case = {**SCATTER, "select": "f", "window": _window(size=2, stride=2)}
    refuse(faults.REDUCER, "select-and-scatter", "f32[8]", "f32[4]", "f32[]", at="select", **case)
