"""Parts of tiles seen as the tensor they make up, and codelets that compute on it in one go."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.placing import box_of_parts, follows, whole_of_parts
from hloipu_runtime.codelets.core.tensors import Block
from hloipu_runtime.codelets.indexed.dynamic_slice import DynamicUpdateSlice
from hloipu_runtime.codelets.indexed.gather import Gather
from hloipu_runtime.codelets.indexed.scatter import Scatter
from hloipu_runtime.kernels.gather import GatherDimensions
from hloipu_runtime.kernels.scatter import ScatterDimensions
from tests.support.arrays import Array

ALONG_ROWS = GatherDimensions((), (1,), (1,), 2, (0,), (0,))
"""Of each row the element that its index names."""
BY_ROW = GatherDimensions((1,), (0,), (0,), 1)
INTO_ROWS = ScatterDimensions((), (1,), (1,), 2, (0,), (0,))


def rows(x: Array, tiles: int, size: int) -> Block:
    """Deal the first dimension of an array to tiles, in memory that holds the parts in a row."""
    memory = np.zeros((tiles * size, *x.shape[1:]), x.dtype)
    memory[: len(x)] = x
    parts = memory.reshape(tiles, size, *x.shape[1:])
    starts: tuple[Array | int, ...] = (np.arange(tiles) * size, *(0 for _ in x.shape[1:]))
    return Block(parts, (tiles,), (size, *x.shape[1:]), starts, x.shape)


def some(block: Block, tiles: slice) -> Block:
    """Return the parts of some tiles, as of a class."""
    starts = tuple(x[tiles] if isinstance(x, np.ndarray) else x for x in block.starts)
    parts = block.data[tiles]
    return block._replace(array=parts, grid=parts.shape[:1], starts=starts)


def everywhere(x: Array, tiles: int) -> Block:
    """Give all tiles one copy of an array."""
    return Block(np.broadcast_to(x, (tiles, *x.shape)), (tiles,), x.shape, (0,) * x.ndim, x.shape)


def results(codelet: Codelet, operands: list[Block], result: Block) -> tuple[Array, Array]:
    """Return what `bound` and what `run` leave in a result's memory."""
    found = []
    for bound in (True, False):
        out = result.data.copy()
        place = [result._replace(array=out)]
        if bound:
            arrays = [x.data for x in operands]
            (made,) = codelet.bound(operands, place)(arrays, [out])
        else:
            (made,) = codelet.run(operands, place)
        out[...] = made
        found.append(out)
    return found[0], found[1]


def test_parts_in_a_row_are_the_whole() -> None:
    x = np.arange(30.0).reshape(10, 3)
    block = rows(x, 3, 4)
    view = whole_of_parts(block)
    assert view is not None
    seen = view(block.data)
    np.testing.assert_array_equal(seen, x)
    assert np.shares_memory(seen, block.data)


def test_what_is_no_whole() -> None:
    block = rows(np.arange(30.0).reshape(10, 3), 3, 4)
    overlapping = block._replace(starts=(np.array([0, 3, 6]), 0))
    apart = block._replace(array=np.zeros((3, 5, 3))[:, :4])
    short = block._replace(whole=(13, 3))
    late = block._replace(starts=(np.array([1, 5, 9]), 0))
    for other in (overlapping, apart, short, late):
        assert whole_of_parts(other) is None


def test_what_repeats_is_a_whole_for_reading_alone() -> None:
    block = everywhere(np.arange(6.0), 4)
    assert whole_of_parts(block) is None
    view = whole_of_parts(block, shared=True)
    assert view is not None
    np.testing.assert_array_equal(view(block.data), np.arange(6.0))
    own_copies = block._replace(array=block.data.copy())
    assert whole_of_parts(own_copies, shared=True) is None


def test_a_dimension_follows_one_that_is_cut_likewise() -> None:
    leader = rows(np.zeros((10, 3)), 5, 2)
    assert follows(rows(np.zeros((10, 7)), 5, 2), 0, leader, 0)
    assert follows(everywhere(np.zeros(4), 5), 0, leader, 0)
    assert not follows(rows(np.zeros((5, 1)), 5, 1), 0, leader, 0)


def test_each_tile_gathers_from_its_rows() -> None:
    generator = np.random.default_rng(3)
    table = generator.standard_normal((8, 5)).astype(np.float32)
    index = generator.integers(-2, 9, (8, 1, 1), dtype=np.int32)
    operands = [rows(table, 4, 2), rows(index, 4, 2)]
    found, _ = results(Gather(ALONG_ROWS, (1, 1)), operands, rows(np.zeros((8, 1), "f4"), 4, 2))
    wanted = np.take_along_axis(table, np.clip(index[..., 0], 0, 4), 1)
    np.testing.assert_array_equal(found.reshape(8, 1), wanted)


@pytest.mark.parametrize("tiles", [slice(0, 2), slice(1, 4), slice(2, 3)])
def test_some_tiles_gather_from_their_rows_and_from_all(tiles: slice) -> None:
    generator = np.random.default_rng(3)
    table = generator.standard_normal((8, 5)).astype(np.float32)
    own = generator.integers(-2, 9, (8, 1, 1), dtype=np.int32)
    anywhere = generator.integers(-2, 12, (8, 1), dtype=np.int32)
    of_all = some(everywhere(table, 4), tiles)
    for dims, sizes, operands, wanted in (
        (ALONG_ROWS, (1, 1), [some(rows(table, 4, 2), tiles), some(rows(own, 4, 2), tiles)],
         np.take_along_axis(table, np.clip(own[..., 0], 0, 4), 1)),
        (BY_ROW, (1, 5), [of_all, some(rows(anywhere, 4, 2), tiles)],
         table[np.clip(anywhere[:, 0], 0, 7)]),
    ):  # fmt: skip
        result = some(rows(np.zeros_like(wanted), 4, 2), tiles)
        seen = box_of_parts(result)
        assert seen is not None
        (low, high), _ = seen[1]
        found, alone = results(Gather(dims, sizes), operands, result)
        np.testing.assert_array_equal(found, alone)
        np.testing.assert_array_equal(found.reshape(high - low, -1), wanted[low:high])


@pytest.mark.parametrize("tiles", [slice(0, 1), slice(1, 2), slice(0, 2)])
def test_tiles_gather_parts_of_slices_that_start_anywhere(tiles: slice) -> None:
    table = np.arange(40.0, dtype=np.float32).reshape(8, 5)
    index = np.array([[-1], [2], [5], [7]], np.int32)
    codelet = Gather(GatherDimensions((0, 1), (), (0,), 1), (4, 5))
    wanted = np.stack([table[n : n + 4] for n in (0, 2, 4, 4)], -1)
    result = some(rows(np.zeros_like(wanted), 2, 2), tiles)
    operands = [some(everywhere(x, 2), tiles) for x in (table, index)]
    found, alone = results(codelet, operands, result)
    np.testing.assert_array_equal(found, alone)
    np.testing.assert_array_equal(
        found.reshape(-1, 5, 4), wanted.reshape(2, 2, 5, 4)[tiles].reshape(-1, 5, 4)
    )


def test_no_tile_gathers_from_rows_of_others() -> None:
    """A table cut where indices reach is wrong, and its result must be that of wrong parts."""
    table = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    index = np.array([[7], [0], [5], [2], [1], [6], [3], [4]], np.int32)
    operands = [rows(table, 4, 2), rows(index, 4, 2)]
    found, alone = results(Gather(BY_ROW, (1, 4)), operands, rows(np.zeros((8, 4), "f4"), 4, 2))
    np.testing.assert_array_equal(found, alone)
    assert (found.reshape(8, 4) != table[index[:, 0]]).any()


@pytest.mark.parametrize("size", [2, 3])
def test_each_tile_scatters_into_its_rows(size: int) -> None:
    generator = np.random.default_rng(4)
    x = generator.standard_normal((8, 5)).astype(np.float32)
    index = generator.integers(-1, 6, (8, 9, 1), dtype=np.int32)
    update = generator.standard_normal((8, 9)).astype(np.float32)
    tiles = -(-8 // size)
    codelet = Scatter(INTO_ROWS, "add", None, ("f32",))
    operands = [rows(x, tiles, size), rows(index, tiles, size), rows(update, tiles, size)]
    found, _ = results(codelet, operands, rows(x, tiles, size))
    wanted = x.copy()
    for row, place in np.ndindex(8, 9):
        if 0 <= index[row, place, 0] < 5:
            wanted[row, index[row, place, 0]] += update[row, place]
    np.testing.assert_array_equal(found.reshape(-1, 5)[:8], wanted)


@pytest.mark.parametrize("start", [-4, 0, 3, 5, 99])
def test_all_tiles_replace_their_share_of_a_window(start: int) -> None:
    data = np.arange(10.0, dtype=np.float32)
    window = np.array([70, 80, 90], np.float32)
    block = rows(data, 3, 4)
    at = np.broadcast_to(np.asarray(start, np.int32), (3,))
    scalar = Block(at, (3,), (), (), ())
    operands = [block, everywhere(window, 3), scalar]
    bound = DynamicUpdateSlice().bound(operands, [block])
    bound([x.data for x in operands], [block.data])
    first = min(max(start, 0), 7)
    data[first : first + 3] = window
    np.testing.assert_array_equal(block.data.reshape(-1)[:10], data)
