from typing import Any

import pytest

from hloipu_compiler.inference import faults
from tests.support.shape_rules import infer, refuse

ADD = {"f": "(f32[], f32[]) -> f32[]"}
PAIR = {"f": "(f32[], s32[], f32[], s32[]) -> (f32[], s32[])"}


def _reduce(*operands: str, programs: dict[str, str] = ADD, **more: Any) -> str:
    return infer("reduce", *operands, programs=programs, to_apply="f", **more)


def test_reduce() -> None:
    assert _reduce("f32[2,3,4]", "f32[]", to="f32[3]", dimensions=(2, 0)) == "f32[3]"
    assert _reduce("f32[2,<=3]", "f32[]", dimensions=(0,)) == "f32[<=3]"
    assert _reduce("f32[]", "f32[]", dimensions=()) == "f32[]"
    operands = ["f32[2,3]", "s32[2,3]", "f32[]", "s32[]"]
    assert _reduce(*operands, programs=PAIR, dimensions=(0,)) == "(f32[3], s32[3])"


def test_the_parser_infers_the_type_of_the_accumulator() -> None:
    wide = {"f": "(f32[], bf16[]) -> f32[]"}
    assert _reduce("bf16[4]", "f32[]", programs=wide, dimensions=(0,)) == "f32[]"


@pytest.mark.parametrize(
    ("code", "operands", "dimensions"),
    [
        (faults.DIMENSION_RANGE, ["f32[2]", "f32[]"], (1,)),
        (faults.DIMENSION_RANGE, ["f32[2]", "f32[]"], (-1,)),
        (faults.DIMENSION_ORDER, ["f32[2]", "f32[]"], (0, 0)),
        (faults.OPERAND_NUMBER, ["f32[2]", "f32[]", "f32[]"], (0,)),
        (faults.SIZE_MISMATCH, ["f32[2]", "f32[3]", "f32[]", "f32[]"], (0,)),
        (faults.OPERAND_KIND, ["(f32[2])", "f32[]"], (0,)),
        (faults.REDUCER, ["s32[2]", "f32[]"], (0,)),
        (faults.REDUCER, ["f32[2]", "s32[]"], (0,)),
        (faults.REDUCER, ["f32[2]", "f32[1]"], (0,)),
    ],
)
def test_reduce_refused(code: str, operands: list[str], dimensions: tuple[int, ...]) -> None:
    case = {"programs": ADD, "to_apply": "f", "dimensions": dimensions}
    refuse(code, "reduce", *operands, to="f32[]", **case)


@pytest.mark.parametrize(
    "program",
    [
        "(f32[]) -> f32[]",
        "(f32[], f32[], f32[]) -> f32[]",
        "(f32[], f32[]) -> (f32[], f32[])",
        "(f32[], f32[]) -> f32[2]",
        "(f32[], f32[]) -> pred[]",
        "(f32[2], f32[]) -> f32[]",
        "(f32[], s32[]) -> f32[]",
        "(bf16[], f32[]) -> bf16[]",
    ],
)
def test_reducers_refused(program: str) -> None:
    case = {"programs": {"f": program}, "to_apply": "f", "dimensions": (0,)}
    refuse(faults.REDUCER, "reduce", "f32[2]", "f32[]", at="to_apply", to="f32[]", **case)


def test_map() -> None:
    compare = {"f": "(f32[], s32[]) -> pred[]"}
    case: dict[str, Any] = {"programs": compare, "to_apply": "f"}
    assert infer("map", "f32[2,3]", "s32[2,3]", to="pred[2,3]", **case) == "pred[2,3]"
    refuse(faults.SIZE_MISMATCH, "map", "f32[2]", "s32[3]", at=1, to="pred[2]", **case)
    refuse(faults.REDUCER, "map", "f32[2]", "f32[2]", at="to_apply", to="pred[2]", **case)
    refuse(faults.REDUCER, "map", "f32[2]", at="to_apply", to="pred[2]", **case)
    wide = {"programs": {"f": "(f32[]) -> f32[2]"}, "to_apply": "f"}
    refuse(faults.REDUCER, "map", "f32[2]", at="to_apply", to="f32[2]", **wide)


def test_map_types_must_be_exact_once_the_shape_is_known() -> None:
    case: dict[str, Any] = {"programs": {"f": "(f32[]) -> f32[]"}, "to_apply": "f"}
    assert infer("map", "bf16[2]", dimensions=(0,), **case) == "f32[2]"
    refuse(faults.REDUCER, "map", "bf16[2]", to="f32[2]", **case)
    refuse(faults.DIMENSION_COUNT, "map", "f32[2,3]", dimensions=(0,), **case)


SUM: dict[str, Any] = {
    "programs": {"f": "(f32[3], s32[]) -> (f32[3], s32[])"},
    "to_apply": "f",
    "num_carries": 1,
    "dimensions": (0,),
}


CHANGED_CARRY = {"programs": {"f": "(f32[3], s32[]) -> (f32[3], u8[])"}}


def test_scan() -> None:
    result = "(f32[5,3], s32[])"
    assert infer("scan", "f32[5,3]", "s32[]", **SUM) == result
    assert infer("scan", "f32[5,3]", "s32[]", to=result, **SUM) == result
    only = {**SUM, "programs": {"f": "(f32[3]) -> f32[3]"}, "num_carries": 0}
    assert infer("scan", "f32[5,3]", **only) == "f32[5,3]"
    inner = {**SUM, "dimensions": (1,), "programs": {"f": "(f32[5], s32[]) -> (f32[5], s32[])"}}
    assert infer("scan", "f32[5,3]", "s32[]", **inner) == "(f32[5,3], s32[])"


@pytest.mark.parametrize(
    ("code", "operands", "change"),
    [
        (faults.REDUCER, ["f32[5,4]", "s32[]"], {}),
        (faults.REDUCER, ["f32[5,3]", "f32[]"], {}),
        (faults.REDUCER, ["f32[5,3]"], {"num_carries": 0}),
        (faults.REDUCER, ["f32[5,3]", "s32[]"], CHANGED_CARRY),
        (faults.ATTRIBUTE_VALUE, ["f32[5,3]", "s32[]"], {"num_carries": 3}),
        (faults.DIMENSION_RANGE, ["f32[5,3]", "s32[]"], {"dimensions": (2,)}),
        (faults.DIMENSION_COUNT, ["f32[5,3]", "s32[]"], {"dimensions": (0, 1)}),
    ],
)  # fmt: skip
def test_scan_refused(code: str, operands: list[str], change: dict[str, Any]) -> None:
    refuse(code, "scan", *operands, to="(f32[5,3], s32[])", **{**SUM, **change})


def test_scan_without_inputs_takes_its_length_from_the_declared_shape() -> None:
    case = {**SUM, "num_carries": 0, "programs": {"f": "() -> f32[3]"}}
    assert infer("scan", to="f32[5,3]", **case) == "f32[5,3]"
    refuse(faults.NOT_INFERABLE, "scan", **case)


def test_scan_inputs_of_different_length() -> None:
    case = {**SUM, "num_carries": 0, "programs": {"f": "(f32[], f32[]) -> f32[]"}}
    refuse(faults.SIZE_MISMATCH, "scan", "f32[5]", "f32[4]", at=1, to="f32[5]", **case)
