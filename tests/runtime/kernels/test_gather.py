from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hloipu_runtime.kernels.gather import GatherDimensions, clamp_starts, gather

Array = NDArray[Any]


def gather_by_definition(
    operand: Array, indices: Array, dims: GatherDimensions, sizes: tuple[int, ...]
) -> Array:
    """Evaluate the definition in StableHLO's specification, element by element."""
    if dims.index_vector_dim == indices.ndim:
        indices = indices[..., np.newaxis]
    batch = [n for d, n in enumerate(indices.shape) if d != dims.index_vector_dim]
    dropped = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    kept = [d for d in range(operand.ndim) if d not in dropped]
    rank = len(batch) + len(kept)
    batch_dims = [d for d in range(rank) if d not in dims.offset_dims]
    shape = [0] * rank
    for d, n in zip(batch_dims, batch, strict=True):
        shape[d] = n
    for d, k in zip(dims.offset_dims, kept, strict=True):
        shape[d] = sizes[k]
    out = np.empty(shape, operand.dtype)
    for place in product(*map(range, shape)):
        row = [place[d] for d in batch_dims]
        full = [*row[: dims.index_vector_dim], 0, *row[dims.index_vector_dim :]]
        start = [0] * operand.ndim
        for k, d in enumerate(dims.start_index_map):
            full[dims.index_vector_dim] = k
            start[d] = min(max(int(indices[tuple(full)]), 0), operand.shape[d] - sizes[d])
        for d, source in zip(
            dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True
        ):
            start[d] = full[source]
        for d, k in zip(dims.offset_dims, kept, strict=True):
            start[k] += place[d]
        out[place] = operand[tuple(start)]
    return out


CASES = {
    "embedding rows": ((7, 3), (4, 1), GatherDimensions((1,), (0,), (0,), 1), (1, 3)),
    "index vector left out": ((7, 3), (4,), GatherDimensions((1,), (0,), (0,), 1), (1, 3)),
    "last axis": ((3, 7), (4, 2), GatherDimensions((0,), (1,), (1,), 2), (3, 1)),
    "few of a long last axis": ((3, 70), (2,), GatherDimensions((0,), (1,), (1,), 1), (3, 1)),
    "points": ((4, 5), (6, 2), GatherDimensions((), (0, 1), (0, 1), 1), (1, 1)),
    "points, swapped map": ((4, 5), (2, 6), GatherDimensions((), (0, 1), (1, 0), 0), (1, 1)),
    "windows": ((6, 5), (2, 3, 2), GatherDimensions((1, 3), (), (0, 1), 2), (2, 3)),
    "windows, one kept single": ((6, 5), (3, 2), GatherDimensions((0, 1), (), (0, 1), 1), (1, 3)),
    "part of an unindexed axis": ((6, 5), (3, 1), GatherDimensions((1,), (0,), (0,), 1), (1, 2)),
    "whole operand": ((2, 3), (4, 1), GatherDimensions((1, 2), (), (0,), 1), (2, 3)),
    "batching": (
        (4, 3, 5),
        (3, 2, 1),
        GatherDimensions((2,), (0,), (0,), 2, (1,), (0,)),
        (1, 1, 5),
    ),
    "batching, windows": (
        (4, 3, 5),
        (2, 3, 1),
        GatherDimensions((2, 3), (), (2,), 2, (1,), (1,)),
        (4, 1, 2),
    ),
    "no index": ((2, 3), (4, 0), GatherDimensions((1, 2), (), (), 1), (2, 2)),
    "empty batch": ((7, 3), (0, 1), GatherDimensions((1,), (0,), (0,), 1), (1, 3)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("layout", ["C", "F"])
def test_gather_by_definition(name: str, layout: str) -> None:
    shape, index_shape, dims, sizes = CASES[name]
    rng = np.random.default_rng(len(name))
    operand = np.asarray(rng.integers(0, 1000, shape), order="C" if layout == "C" else "F")
    indices = rng.integers(-3, 9, index_shape)
    got = gather(operand, indices, dims, sizes)
    np.testing.assert_array_equal(got, gather_by_definition(operand, indices, dims, sizes))


@pytest.mark.parametrize(
    ("indices", "want"),
    [
        (np.array([2**64 - 1, 1], np.uint64), [4, 1]),
        (np.array([2**32 - 1, 0], np.uint32), [4, 0]),
        (np.array([-128, 127], np.int8), [0, 4]),
        (np.array([-(2**63), 2**63 - 1], np.int64), [0, 4]),
        (np.array([255, 3], np.uint8), [4, 3]),
    ],
)
def test_indices_of_any_type_are_clamped(indices: Array, want: list[int]) -> None:
    dims = GatherDimensions((), (0,), (0,), 1)
    assert gather(np.arange(5), indices, dims, (1,)).tolist() == want


def test_small_index_types_reach_as_far_as_they_can() -> None:
    dims = GatherDimensions((), (0,), (0,), 1)
    got = gather(np.arange(1000), np.array([255], np.uint8), dims, (1,))
    assert got.tolist() == [255]


def test_a_single_element_is_an_array_still() -> None:
    dims = GatherDimensions(
        offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=0
    )
    found = gather(np.arange(5), np.asarray(3), dims, (1,))

    assert isinstance(found, np.ndarray)
    assert found.shape == ()
    assert found == 3


def test_slices_without_elements() -> None:
    dims = GatherDimensions(
        offset_dims=(1,), collapsed_slice_dims=(0, 1), start_index_map=(1, 0), index_vector_dim=1
    )
    found = gather(np.zeros((2, 3, 0)), np.zeros((4, 2), np.int32), dims, (1, 1, 0))

    assert found.shape == (4, 0)


@pytest.mark.parametrize(
    ("dtype", "starts", "limit", "clamped"),
    [
        (np.uint64, [0, 5, 6, 2**63, 2**64 - 1], 5, [0, 5, 5, 5, 5]),
        (np.uint8, [0, 200, 255], 300, [0, 200, 255]),  # the limit is no value of the type
        (np.uint8, [0, 200, 255], 199, [0, 199, 199]),
        (np.int8, [-128, -1, 0, 127], 300, [0, 0, 0, 127]),
        (np.int64, [-(2**63), 4, 2**63 - 1], 3, [0, 3, 3]),
    ],
)
def test_starts_of_any_integer_type_are_clamped(
    dtype: type, starts: list[int], limit: int, clamped: list[int]
) -> None:
    found = clamp_starts(np.array(starts, dtype), limit)
    assert found.dtype == np.int64
    assert found.tolist() == clamped


def test_small_slices_are_laid_row_major() -> None:
    operand, indices = np.arange(6 * 8).reshape(6, 8), np.array([[3], [1], [7]])
    columns = GatherDimensions((0,), (1,), (1,), 1)
    picked = gather(operand, indices, columns, (6, 1))
    np.testing.assert_array_equal(picked, operand[:, [3, 1, 7]])
    assert picked.flags.c_contiguous
