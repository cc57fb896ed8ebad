from itertools import product

import ml_dtypes
import numpy as np
import pytest

from hloipu_runtime.kernels.core import movement
from tests.support.cases import each


def test_iota_counts_along_one_dimension() -> None:
    assert movement.iota((2, 3), 1, "s32").tolist() == [[0, 1, 2], [0, 1, 2]]
    assert movement.iota((2, 3), 0, "f32").dtype == np.float32


def test_iota_rounds_to_the_grid_of_narrow_floats() -> None:
    want = np.arange(300).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(movement.iota((300,), 0, "bf16"), want)


def test_iota_wraps_narrow_integers() -> None:
    assert movement.iota((18,), 0, "u4").tolist() == [*range(16), 0, 1]
    assert movement.iota((10,), 0, "s4").tolist() == [*range(8), -8, -7]


@pytest.mark.parametrize("dimensions", [(0, 2), (2, 0)])
def test_broadcast_maps_operand_dimensions_in_any_order(dimensions: tuple[int, int]) -> None:
    x = np.arange(6).reshape(2, 3)
    shape = (2, 4, 3) if dimensions == (0, 2) else (3, 4, 2)
    got = movement.broadcast(x, shape, dimensions)
    for place in product(*map(range, shape)):
        assert got[place] == x[tuple(place[d] for d in dimensions)]
    assert not got.flags.writeable


def test_scalars_stay_arrays() -> None:
    x = np.asarray(np.float32(2))
    for got in (
        movement.transpose(x, ()),
        movement.reverse(x, ()),
        movement.slice_(x, (), (), ()),
        movement.dynamic_slice(x, (), ()),
        movement.reshape(x, ()),
    ):
        assert isinstance(got, np.ndarray)
        assert got.shape == ()


def test_contiguous_of_a_large_transpose_equals_a_plain_copy() -> None:
    x = np.arange(130 * 7 * 37).reshape(130, 7, 37)
    for order in ((2, 1, 0), (1, 2, 0), (2, 0, 1), (0, 2, 1)):
        got = movement.contiguous(x.transpose(order))
        assert got.flags.c_contiguous
        np.testing.assert_array_equal(got, np.array(x.transpose(order), order="C"))
    column = np.broadcast_to(x.transpose(2, 1, 0)[..., np.newaxis], (37, 7, 130, 1))
    np.testing.assert_array_equal(movement.contiguous(column), column)


def test_tiles_parts_of_a_transposed_whole_are_copied_whole() -> None:
    # Grid axes of rows and columns first, as the parts of tiles lie in a whole.
    source = np.arange(360 * 224).reshape(360, 224).T
    target = np.zeros_like(source, order="C")
    parts = [x.reshape(16, 14, 9, 40).transpose(0, 2, 3, 1) for x in (target, source)]
    movement.copy_into(*parts)
    np.testing.assert_array_equal(target, source)


def test_reshape_of_a_transposed_view_is_row_major() -> None:
    x = np.arange(200 * 100).reshape(200, 100)
    got = movement.reshape(x.T, (50, 400))
    np.testing.assert_array_equal(got.reshape(-1), [v for column in x.T.tolist() for v in column])


def test_slice_and_reverse_by_definition() -> None:
    x = np.arange(10)
    assert movement.slice_(x, (1,), (9,), (3,)).tolist() == [1, 4, 7]
    assert movement.slice_(x, (4,), (4,), (1,)).tolist() == []
    assert movement.reverse(x.reshape(2, 5), (1,)).tolist() == [[4, 3, 2, 1, 0], [9, 8, 7, 6, 5]]


PADDINGS = [
    (size, low, high, interior)
    for size, low, high, interior in product((0, 1, 4), range(-4, 5, 2), range(-4, 5), range(3))
    if low + high + size + max(size - 1, 0) * interior >= 0
]


@each(("size", "low", "high", "interior"), PADDINGS)
def test_pad_by_definition(size: int, low: int, high: int, interior: int) -> None:
    length = low + high + size + max(size - 1, 0) * interior
    want = [9] * length
    for k in range(size):
        if 0 <= (place := low + k * (interior + 1)) < length:
            want[place] = k + 1
    got = movement.pad(np.arange(1, size + 1), np.asarray(9), [(low, high, interior)])
    assert got.tolist() == want


def test_pad_keeps_a_negative_zero_value() -> None:
    got = movement.pad(np.ones(1, np.float32), np.asarray(np.float32(-0.0)), [(1, 0, 0)])
    assert np.signbit(got).tolist() == [True, False]


@pytest.mark.parametrize(
    ("start", "want"),
    [
        (np.uint64(2**64 - 1), [3, 4]),
        (np.int8(-1), [0, 1]),
        (np.uint8(250), [3, 4]),
        (np.int64(-(2**62)), [0, 1]),
        (np.int32(2), [2, 3]),
    ],
)
def test_dynamic_slice_clamps_starts_of_any_type(start: np.integer, want: list[int]) -> None:
    got = movement.dynamic_slice(np.arange(5), [np.asarray(start)], (2,))
    assert got.tolist() == want


def test_dynamic_update_slice_leaves_its_operand_alone_unless_told() -> None:
    x = np.arange(5)
    got = movement.dynamic_update_slice(x, np.array([8, 9]), [7])
    assert got.tolist() == [0, 1, 2, 8, 9]
    assert x.tolist() == [0, 1, 2, 3, 4]
    same = movement.dynamic_update_slice(x, np.array([8, 9]), [-3], out=x)
    assert same is x
    assert x.tolist() == [8, 9, 2, 3, 4]


def test_concatenate_with_empty_pieces() -> None:
    pieces = [np.ones((2, 0)), np.zeros((2, 1)), np.ones((2, 2))]
    assert movement.concatenate(pieces, 1).tolist() == [[0, 1, 1], [0, 1, 1]]


@pytest.mark.parametrize("edges", [(1, 2, 3), (-2, 4, 1), (0, -3, 2), (-9, 1, 0), (5, 0, 0)])
def test_padding_goes_to_the_memory_that_is_given(edges: tuple[int, int, int]) -> None:
    x, value = np.arange(1, 41, dtype=np.float32).reshape(8, 5), np.asarray(np.float32(-0.0))
    padding = [edges, (1, 1, 1)]
    expected = movement.pad(x, value, padding)
    memory = np.full((expected.shape[1], expected.shape[0]), np.nan, np.float32).T
    got = movement.pad(x, value, padding, memory)
    assert got.tobytes() == expected.tobytes()
    assert got is memory or not np.isin(expected, x).any()
