from typing import Any

import pytest

from hloipu_compiler.inference import faults
from tests.support.shape_rules import infer, refuse

ROWS: dict[str, Any] = {
    "offset_dims": (1,),
    "collapsed_slice_dims": (0,),
    "start_index_map": (0,),
    "index_vector_dim": 1,
    "slice_sizes": (1, 8),
}
"""Rows of f32[10,8] by s32[5]: f32[5,8]."""

BATCHED: dict[str, Any] = {
    "offset_dims": (2,),
    "collapsed_slice_dims": (1,),
    "operand_batching_dims": (0,),
    "start_indices_batching_dims": (0,),
    "start_index_map": (1,),
    "index_vector_dim": 2,
    "slice_sizes": (1, 1, 8),
}
"""Rows of each of f32[3,10,8] by s32[3,5,1]: f32[3,5,8]."""


def test_gather() -> None:
    assert infer("gather", "f32[10,8]", "s32[5]", **ROWS) == "f32[5,8]"
    assert infer("gather", "f32[10,8]", "s32[5,1]", **ROWS) == "f32[5,8]"
    assert infer("gather", "f32[3,10,8]", "s32[3,5,1]", **BATCHED) == "f32[3,5,8]"
    assert infer("gather", "f32[10,<=8]", "s32[<=5]", **ROWS) == "f32[<=5,<=8]"
    transposed = {**ROWS, "offset_dims": (0,)}
    assert infer("gather", "f32[10,8]", "s32[5]", **transposed) == "f32[8,5]"


def test_gather_by_the_names_of_2018() -> None:
    old = {
        "output_window_dims": (1,), "elided_window_dims": (0,), "gather_dims_to_operand_dims": (0,),
        "index_vector_dim": 1, "window_bounds": (1, 8),
    }  # fmt: skip
    assert infer("gather", "f32[10,8]", "s32[5]", **old) == "f32[5,8]"


@pytest.mark.parametrize(
    ("code", "name", "value"),
    [
        (faults.DIMENSION_RANGE, "offset_dims", (2,)),
        (faults.DIMENSION_ORDER, "offset_dims", (1, 1)),
        (faults.DIMENSION_COUNT, "offset_dims", ()),
        (faults.DIMENSION_RANGE, "collapsed_slice_dims", (2,)),
        (faults.DIMENSION_ORDER, "collapsed_slice_dims", (0, 0)),
        (faults.DIMENSION_RANGE, "start_index_map", (2,)),
        (faults.DIMENSION_COUNT, "start_index_map", (0, 1)),
        (faults.DIMENSION_RANGE, "index_vector_dim", 2),
        (faults.DIMENSION_RANGE, "index_vector_dim", -1),
        (faults.OUT_OF_BOUNDS, "slice_sizes", (2, 8)),
        (faults.OUT_OF_BOUNDS, "slice_sizes", (1, 9)),
        (faults.OUT_OF_BOUNDS, "slice_sizes", (-1, 8)),
        (faults.DIMENSION_COUNT, "slice_sizes", (1,)),
    ],
)
def test_gather_numbers_refused(code: str, name: str, value: object) -> None:
    refuse(code, "gather", "f32[10,8]", "s32[5]", **{**ROWS, name: value})


def test_gather_offsets_must_ascend() -> None:
    case = {
        "offset_dims": (2, 1), "collapsed_slice_dims": (), "start_index_map": (0,),
        "index_vector_dim": 1, "slice_sizes": (1, 8),
    }  # fmt: skip
    refuse(faults.DIMENSION_ORDER, "gather", "f32[10,8]", "s32[5]", at="offset_dims", **case)


@pytest.mark.parametrize(
    ("code", "name", "value"),
    [
        (faults.DIMENSION_COUNT, "operand_batching_dims", ()),
        (faults.DIMENSION_RANGE, "operand_batching_dims", (3,)),
        (faults.DIMENSION_RANGE, "start_indices_batching_dims", (3,)),
        (faults.DIMENSION_COUNT, "operand_batching_dims", (1,)),
        (faults.OUT_OF_BOUNDS, "slice_sizes", (3, 1, 8)),
    ],
)
def test_gather_batching_refused(code: str, name: str, value: object) -> None:
    refuse(code, "gather", "f32[3,10,8]", "s32[3,5,1]", **{**BATCHED, name: value})


def test_gather_by_floats_refused() -> None:
    refuse(faults.INDEX_OPERAND, "gather", "f32[10,8]", "f32[5]", at=1, **ROWS)


ADD = {"f": "(f32[], f32[]) -> f32[]"}
INTO_ROWS: dict[str, Any] = {
    "update_window_dims": (1,),
    "inserted_window_dims": (0,),
    "scatter_dims_to_operand_dims": (0,),
    "index_vector_dim": 1,
    "to_apply": "f",
}
"""f32[5,8] into rows of f32[10,8] by s32[5]."""


def test_scatter() -> None:
    operands = ["f32[10,8]", "s32[5]", "f32[5,8]"]
    assert infer("scatter", *operands, programs=ADD, **INTO_ROWS) == "f32[10,8]"
    narrow = ["f32[10,8]", "s32[5]", "f32[5,3]"]
    assert infer("scatter", *narrow, programs=ADD, **INTO_ROWS) == "f32[10,8]"


def test_scatter_of_several() -> None:
    both = {"f": "(f32[], s32[], f32[], s32[]) -> (f32[], s32[])"}
    operands = ["f32[10,8]", "s32[10,8]", "s32[5]", "f32[5,8]", "s32[5,8]"]
    assert infer("scatter", *operands, programs=both, **INTO_ROWS) == "(f32[10,8], s32[10,8])"


def test_scatter_with_batches() -> None:
    case = {
        "update_window_dims": (2,), "inserted_window_dims": (1,), "input_batching_dims": (0,),
        "scatter_indices_batching_dims": (0,), "scatter_dims_to_operand_dims": (1,),
        "index_vector_dim": 2, "to_apply": "f",
    }  # fmt: skip
    operands = ["f32[3,10,8]", "s32[3,5,1]", "f32[3,5,8]"]
    assert infer("scatter", *operands, programs=ADD, **case) == "f32[3,10,8]"
    wrong = {**case, "scatter_indices_batching_dims": ()}
    refuse(faults.DIMENSION_COUNT, "scatter", *operands, programs=ADD, **wrong)


@pytest.mark.parametrize(
    ("code", "name", "value"),
    [
        (faults.DIMENSION_RANGE, "update_window_dims", (2,)),
        (faults.SIZE_MISMATCH, "update_window_dims", (0, 1)),
        (faults.DIMENSION_COUNT, "inserted_window_dims", ()),
        (faults.DIMENSION_RANGE, "inserted_window_dims", (2,)),
        (faults.DIMENSION_ORDER, "inserted_window_dims", (0, 0)),
        (faults.DIMENSION_COUNT, "scatter_dims_to_operand_dims", (0, 1)),
        (faults.DIMENSION_RANGE, "scatter_dims_to_operand_dims", (2,)),
        (faults.DIMENSION_RANGE, "index_vector_dim", 2),
    ],
)
def test_scatter_numbers_refused(code: str, name: str, value: object) -> None:
    case = {**INTO_ROWS, name: value}
    refuse(code, "scatter", "f32[10,8]", "s32[5]", "f32[5,8]", programs=ADD, **case)


@pytest.mark.parametrize(
    ("code", "indices", "update", "at"),
    [
        (faults.SIZE_MISMATCH, "s32[5]", "f32[5,9]", 2),
        (faults.SIZE_MISMATCH, "s32[5]", "f32[4,8]", 2),
        (faults.SIZE_MISMATCH, "s32[5]", "f32[5]", 2),
        (faults.INDEX_OPERAND, "f32[5]", "f32[5,8]", 1),
        (faults.REDUCER, "s32[5]", "s32[5,8]", "to_apply"),
    ],
)
def test_scatter_operands_refused(code: str, indices: str, update: str, at: int | str) -> None:
    refuse(code, "scatter", "f32[10,8]", indices, update, at=at, programs=ADD, **INTO_ROWS)


def test_scatter_of_an_even_number_of_operands() -> None:
    operands = ["f32[10,8]", "f32[10,8]", "s32[5]", "f32[5,8]"]
    refuse(faults.OPERAND_NUMBER, "scatter", *operands, programs=ADD, **INTO_ROWS)
