"""Row numbers of index vectors: against Python's integers, in every index type."""

import numpy as np
import pytest

from hloipu_runtime.kernels.index_rows import IndexRows, index_rows

SIZES = (5, 300, 4)
WINDOW = (1, 101, 4)
"""The last dimension is whole, so it numbers no rows; starts of the others end at 4 and 199."""
LIMITS = {d: size - window for d, (size, window) in enumerate(zip(SIZES, WINDOW, strict=True))}
TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def rows_of(indices: tuple[int, ...], vector_dim: int) -> IndexRows:
    return index_rows(indices, vector_dim, (1, 2, 0), (), LIMITS, [(0, 5), (1, 300)])


def extremes(dtype: str) -> list[int]:
    limits = np.iinfo(dtype)
    wanted = [limits.min, -1, 0, 1, 4, 5, 99, 199, 200, limits.max]
    return [x for x in wanted if limits.min <= x <= limits.max]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("vector_dim", [0, 1])
def test_starts_are_clamped_or_found_out_of_bounds(dtype: str, vector_dim: int) -> None:
    values = extremes(dtype)
    vectors = [(a, b, c) for a in values for b in values for c in values]
    indices = np.array(vectors, dtype)
    indices = np.ascontiguousarray(indices.T) if vector_dim == 0 else indices
    rows = rows_of(indices.shape, vector_dim)

    clamped = [min(max(c, 0), 4) * 300 + min(max(a, 0), 199) for a, b, c in vectors]
    np.testing.assert_array_equal(rows.clamped(indices), clamped)

    found, valid = rows.checked(indices)
    inside = [0 <= a <= 199 and b == 0 and 0 <= c <= 4 for a, b, c in vectors]
    assert valid is not None
    np.testing.assert_array_equal(valid, inside)
    np.testing.assert_array_equal(
        found[valid], [c * 300 + a for (a, _, c), ok in zip(vectors, inside, strict=True) if ok]
    )


def test_one_vector_alone_names_a_row() -> None:
    one = index_rows((1,), 0, (0,), (), {0: 4}, [(0, 1)])
    assert one.clamped(np.array([9], np.int16)) == 4
    found, valid = one.checked(np.array([3], np.int16))
    assert found == 3
    assert valid is None


def test_nothing_is_marked_where_all_are_inside() -> None:
    indices = np.array([[199, 0, 4], [0, 0, 0]], np.int32)
    found, valid = rows_of((2, 3), 1).checked(indices)
    assert valid is None
    np.testing.assert_array_equal(found, [4 * 300 + 199, 0])


def test_no_start_fits_where_the_window_is_larger_than_the_table() -> None:
    rows = index_rows((3,), 1, (0,), (), {0: -1}, [(0, 2)])
    valid = rows.checked(np.zeros(3, np.int32))[1]
    assert valid is not None
    assert not valid.any()


def test_batching_dimensions_count_along_the_indices() -> None:
    rows = index_rows((2, 3, 1), 2, (1,), ((0, 1),), {0: 2, 1: 6}, [(0, 3), (1, 7)])
    indices = np.array([[6, 0, 9], [1, -1, 2]], np.int64)[..., np.newaxis]
    np.testing.assert_array_equal(rows.clamped(indices), [[6, 7, 20], [1, 7, 16]])
    found, valid = rows.checked(indices)
    np.testing.assert_array_equal(valid, [[True, True, False], [True, False, True]])
    np.testing.assert_array_equal(found[0, :2], [6, 7])


def test_a_table_without_rows_has_no_groups() -> None:
    rows = index_rows((2, 3, 1), 2, (1,), ((0, 0),), {1: 2}, [(0, 0), (1, 3)])
    assert rows.group == 0
