"""A few windows on parts that lie side by side: cut to the box, as if scattered on the whole."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Block
from hloipu_runtime.codelets.indexed.scatter_parts import is_few, scatter_few
from hloipu_runtime.kernels.scatter import ScatterDimensions
from tests.support.arrays import Array

WINDOWS = ScatterDimensions((1, 2), (), (0, 1), 1)
"""Updates [n, rows, columns] at index vectors [n, 2]."""


def shared(array: Array, tiles: int) -> Block:
    whole = array.shape
    view = np.broadcast_to(array, (tiles, *whole))
    return Block(view, (tiles,), whole, (0,) * len(whole), whole)


def row_blocks(whole: Array, first: int, tiles: int, rows: int) -> Block:
    """Return rows `first` and on, so many on each tile."""
    part = whole[first : first + tiles * rows].copy().reshape(tiles, rows, -1)
    starts = (first + rows * np.arange(tiles)).reshape(tiles)
    return Block(part, (tiles,), (rows, whole.shape[1]), (starts, 0), whole.shape)


@pytest.mark.parametrize("monoid", ["assign", "add"])
@pytest.mark.parametrize(
    "corners", [[(0, 0)], [(2, 1)], [(3, 2), (4, 2)], [(7, 0), (-1, 0), (8, 1), (5, 3)], []]
)
def test_rows_on_tiles_get_what_the_whole_would(
    corners: list[tuple[int, int]], monoid: str
) -> None:
    whole = np.arange(60, dtype=np.float32).reshape(12, 5)
    updates = 100 + np.arange(len(corners) * 10, dtype=np.float32).reshape(-1, 5, 2)
    expected = whole.copy()
    for (row, column), window in zip(corners, updates, strict=True):
        if 0 <= row <= 12 - 5 and 0 <= column <= 5 - 2:
            place = expected[row : row + 5, column : column + 2]
            place[...] = window if monoid == "assign" else place + window
    places = np.array(corners, np.int32).reshape(-1, 2)
    for first, tiles, rows in [(0, 6, 2), (3, 3, 3), (4, 1, 4)]:
        block = row_blocks(whole, first, tiles, rows)
        indices = shared(places, tiles)
        assert is_few(WINDOWS, indices)
        assert scatter_few(WINDOWS, [block], indices, [shared(updates, tiles)], monoid, ["f32"])
        found = block.data.reshape(-1, 5)
        np.testing.assert_array_equal(found, expected[first : first + tiles * rows])


def test_tiles_with_windows_of_their_own_and_parts_apart_take_another_way() -> None:
    whole, updates = np.zeros((12, 5), np.float32), np.ones((1, 5, 2), np.float32)
    indices = shared(np.zeros((1, 2), np.int32), 3)
    block = row_blocks(whole, 0, 3, 4)
    own = shared(updates, 3)._replace(array=np.ones((3, 1, 5, 2), np.float32))
    assert not scatter_few(WINDOWS, [block], indices, [own], "add", ["f32"])
    apart = block._replace(starts=(np.array([0, 4, 7]), 0))
    windows = shared(updates, 3)
    assert not scatter_few(WINDOWS, [apart], indices, [windows], "add", ["f32"])
    columns = block._replace(array=np.zeros((3, 5, 4), np.float32).transpose(0, 2, 1))
    assert not scatter_few(WINDOWS, [columns], indices, [windows], "add", ["f32"])
    assert not is_few(WINDOWS, shared(np.zeros((9, 2), np.int32), 3))
