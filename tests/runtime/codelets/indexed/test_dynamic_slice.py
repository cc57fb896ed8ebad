"""Windows at run-time places: the law, values, in place, cycles by hand."""

from collections.abc import Sequence
from math import prod

import numpy as np
import pytest

from hloipu_runtime.codelets.core.codelet import ALL, Index
from hloipu_runtime.codelets.core.tensors import Block, Tensor
from hloipu_runtime.codelets.indexed.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from hloipu_runtime.codelets.indexed.dynamic_slice_candidates import DynamicSliceCandidates
from hloipu_runtime.codelets.indexed.or_bits import OrBits
from hloipu_runtime.codelets.indexed.ranges import Walk, moving_window, stretches
from hloipu_runtime.machine.load import load_machine
from tests.support.arrays import Array
from tests.support.codelet_law import Given, check_every_split, check_law, run_whole

TINY = load_machine("tiny")
CASES = [
    ((9, 6), (3, 6), (4, 0)),
    ((9, 6), (9, 2), (0, 3)),
    ((9, 6), (4, 3), (100, -5)),
    ((9, 6), (9, 6), (3, 3)),
    ((9, 6), (1, 1), (8, 5)),
    ((9, 6), (0, 2), (4, 1)),
    ((4, 5, 6), (2, 5, 3), (1, 2, 2)),
]


def counted(*shape: int) -> Given:
    return Given("f32", np.arange(prod(shape), dtype=np.float32).reshape(shape))


def scalars(*values: int) -> list[Given]:
    return [Given("s32", np.asarray(value, np.int32)) for value in values]


def corner(shape: Sequence[int], window: Sequence[int], at: Sequence[int]) -> list[int]:
    """Return where XLA's semantics put the window (openxla.org, operation semantics)."""
    return [min(max(start, 0), n - size) for start, n, size in zip(at, shape, window, strict=True)]


@pytest.mark.parametrize(("shape", "window", "at"), CASES)
def test_a_dynamic_slice_splits_its_result(
    shape: tuple[int, ...], window: tuple[int, ...], at: tuple[int, ...]
) -> None:
    given = counted(*shape)
    (made,) = check_every_split(DynamicSlice(), [given, *scalars(*at)], [Tensor("f32", window)])
    expected = given.array
    for axis, (start, size) in enumerate(zip(corner(shape, window, at), window, strict=True)):
        expected = np.take(expected, range(start, start + size), axis)
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize(("shape", "window", "at"), CASES)
def test_an_update_splits_the_data_by_ranges(
    shape: tuple[int, ...], window: tuple[int, ...], at: tuple[int, ...]
) -> None:
    given, update = counted(*shape), Given("f32", -1 - counted(*window).array)
    (made,) = check_every_split(
        DynamicUpdateSlice(), [given, update, *scalars(*at)], [given.tensor]
    )
    expected, start = given.array.copy(), corner(shape, window, at)
    for place in np.ndindex(window):
        expected[tuple(map(sum, zip(start, place, strict=True)))] = update.array[place]
    np.testing.assert_array_equal(made, expected)


DROPPED = [
    ((9, 6), (0,), (4, 0), (1, 6)),
    ((9, 6), (1,), (3, 4), (5, 1)),
    ((9, 6), (0, 1), (12, 5), (1, 1)),
    ((4, 5, 6), (1,), (1, 9, 2), (2, 1, 3)),
    ((4, 1, 6), (0, 1), (3, 0, 0), (1, 1, 6)),
]


@pytest.mark.parametrize(("shape", "dropped", "at", "window"), DROPPED)
def test_a_window_may_lack_dimensions_of_one_element(
    shape: tuple[int, ...], dropped: tuple[int, ...], at: tuple[int, ...], window: tuple[int, ...]
) -> None:
    given = counted(*shape)
    short = tuple(n for d, n in enumerate(window) if d not in dropped)
    place = tuple(
        slice(low, low + n) for low, n in zip(corner(shape, window, at), window, strict=True)
    )
    tensors = [given, *scalars(*at)]
    (taken,) = check_every_split(DynamicSlice(dropped), tensors, [Tensor("f32", short)])
    np.testing.assert_array_equal(taken, given.array[place].reshape(short))
    for d in range(len(shape)):
        offering = DynamicSliceCandidates(d, 2, dropped)
        offers = Tensor("f32", (-(-shape[d] // 2), *short))
        (offered,) = check_every_split(offering, tensors, [offers])
        (joined,) = run_whole(OrBits(), [Given("f32", offered)], [Tensor("f32", short)])
        np.testing.assert_array_equal(joined, taken)
    update = Given("f32", np.asarray(-1 - counted(*short).array))
    put = [given, update, *scalars(*at)]
    (made,) = check_every_split(DynamicUpdateSlice(dropped), put, [given.tensor])
    expected = given.array.copy()
    expected[place] = update.array.reshape(window)
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("block", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("at", range(0, 41, 5))
def test_an_update_may_meet_any_number_of_ranges(block: int, at: int) -> None:
    given, update = counted(50), Given("f32", -1 - counted(11).array)
    (made,) = check_law(
        DynamicUpdateSlice(), [given, update, *scalars(at)], [given.tensor], {0: block}
    )
    expected = given.array.copy()
    expected[min(at, 39) :][:11] = update.array
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("block", [1, 2, 4, 20])
@pytest.mark.parametrize(("shape", "window", "at"), CASES)
def test_candidates_split_the_data_by_ranges(
    shape: tuple[int, ...], window: tuple[int, ...], at: tuple[int, ...], block: int
) -> None:
    given = Given("f32", 1 + counted(*shape).array)
    expected = given.array
    for axis, (start, size) in enumerate(zip(corner(shape, window, at), window, strict=True)):
        expected = np.take(expected, range(start, start + size), axis)
    for dimension in range(len(shape)):
        parts = -(-shape[dimension] // block)
        codelet = DynamicSliceCandidates(dimension, block)
        (made,) = check_every_split(
            codelet, [given, *scalars(*at)], [Tensor("f32", (parts, *window))]
        )
        begin = corner(shape, window, at)[dimension]
        for part in range(parts):
            inside = (begin + np.arange(window[dimension])) // block == part
            mask = np.moveaxis(np.ones_like(expected), dimension, -1) * inside
            np.testing.assert_array_equal(made[part], expected * np.moveaxis(mask, -1, dimension))


def test_candidates_go_by_each_tile_s_own_copy_of_the_place() -> None:
    grid = (2,)
    data = Block(np.arange(1.0, 7).reshape(2, 3), grid, (3,), (np.array([0, 3]),), (6,))
    at = Block(np.array([1, 3]), grid, (), (), ())
    result = Block(None, grid, (1, 2), (np.array([0, 1]), 0), (2, 2))
    (made,) = DynamicSliceCandidates(0, 3).run([data, at], [result])
    np.testing.assert_array_equal(made[:, 0], [[2, 3], [4, 5]])


def test_candidates_with_their_combination_are_a_slice() -> None:
    assert DynamicSliceCandidates(0, 3).combined_with(OrBits(), []) == (DynamicSlice(), 0)
    assert DynamicSliceCandidates(0, 3).combined_with(DynamicSlice(), []) is None


def test_what_is_not_whole_is_on_every_tile() -> None:
    data, window = Tensor("f32", (9, 6)), Tensor("f32", (3, 6))
    starts = [Tensor("s32", ())] * 2
    indexing = DynamicSlice().indexing([data, *starts], [window])
    assert indexing.operands == ((ALL, Index(1)), (), ())
    indexing = DynamicUpdateSlice().indexing([data, window, *starts], [data])
    assert indexing.operands == ((Index(0), Index(1)), (ALL, Index(1)), (), ())


def test_a_whole_update_is_made_in_place() -> None:
    array = np.zeros(1000, np.float32)
    data = Block(array, (), (1000,), (0,), (1000,))
    window = Block(np.ones(3, np.float32), (), (3,), (0,), (3,))
    at = Block(np.asarray(7, np.int64), (), (), (), ())
    target = data._replace(array=array[:])
    (made,) = DynamicUpdateSlice().run([data, window, at], [target])
    assert np.shares_memory(made, array)
    assert np.flatnonzero(array).tolist() == [7, 8, 9]


def test_an_update_leaves_an_operand_that_is_needed_alone() -> None:
    given = counted(8)
    (made,) = run_whole(DynamicUpdateSlice(), [given, counted(2), *scalars(3)], [given.tensor])
    np.testing.assert_array_equal(given.array, np.arange(8.0))
    np.testing.assert_array_equal(made, [0, 1, 2, 0, 1, 5, 6, 7])


def test_every_tile_goes_by_its_own_copy_of_the_place() -> None:
    grid = (3,)
    data = Block(np.arange(12.0).reshape(3, 4), grid, (4,), (np.array([0, 4, 8]),), (12,))
    window = Block(np.full((3, 2), -1.0), grid, (2,), (0,), (2,))
    at = Block(np.array([1, 4, 10]), grid, (), (), ())
    (made,) = DynamicUpdateSlice().run([data, window, at], [data._replace(array=None)])
    np.testing.assert_array_equal(made, [[0, -1, -1, 3], [-1, -1, 6, 7], [8, 9, -1, -1]])
    shared = Block(np.broadcast_to(np.arange(9.0), (3, 9)), grid, (9,), (0,), (9,))
    result = Block(None, grid, (2,), (0,), (2,))
    (made,) = DynamicSlice().run([shared, at], [result])
    np.testing.assert_array_equal(made, [[1, 2], [4, 5], [7, 8]])


def test_parts_may_lie_unequally_far_apart() -> None:
    grid = (3,)
    shared = Block(np.broadcast_to(np.arange(9.0), (3, 9)), grid, (9,), (0,), (9,))
    at = Block(np.broadcast_to(np.asarray(1), grid), grid, (), (), ())
    result = Block(None, grid, (2,), (np.array([0, 2, 5]),), (8,))
    (made,) = DynamicSlice().run([shared, at], [result])
    np.testing.assert_array_equal(made, [[1, 2], [3, 4], [6, 7]])
    data = Block(np.arange(6.0).reshape(3, 2), grid, (2,), (np.array([0, 2, 6]),), (9,))
    window = Block(np.broadcast_to(np.arange(-6.0, 0), (3, 6)), grid, (6,), (0,), (6,))
    (made,) = DynamicUpdateSlice().run([data, window, at], [data._replace(array=None)])
    np.testing.assert_array_equal(made, [[0, -6], [-5, -4], [-1, 5]])


@pytest.mark.parametrize(
    ("window", "data", "cycles"),
    [
        # 25 + 6 * (39 + (24 + 2 * stores) * pieces): 9600 bytes are 1600 for each worker
        ((4, 600), (10, 600), 25 + 6 * (39 + 24 + 2 * 200)),
        ((2, 300), (10, 600), 25 + 6 * (39 + (24 + 2 * 25) * 2)),
        # 40 pieces of one element: a rearranging copy in runs of 4 bytes is cheaper
        ((40, 1), (40, 6), 25 + 100 + 40 * 4 * 3),
        ((0, 6), (10, 6), 0),
    ],
)
def test_a_window_costs_its_pieces(
    window: tuple[int, int], data: tuple[int, int], cycles: int
) -> None:
    operands = [Tensor("f32", data), Tensor("s32", ()), Tensor("s32", ())]
    result = Tensor("f32", window)
    assert DynamicSlice().work(TINY, operands, [result]).cycles == cycles
    operands.insert(1, result)
    assert DynamicUpdateSlice().work(TINY, operands, [operands[0]]).cycles == cycles


@pytest.mark.parametrize("step", [3, 4, 6])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_stretches_are_what_each_tile_holds(step: int, size: int) -> None:
    for starts in (np.arange(5) * step + 2, np.array([1, 5, 11, 30]), np.array([4])):
        for at in range(0, 26, 3):
            for length in (0, 1, 2, 7, 20):
                _check_stretches(starts, size, at, length)


def _check_stretches(starts: Array, size: int, at: int, length: int) -> None:
    found: dict[tuple[int, int], int] = {}
    for stretch in stretches(starts, size, at, length):
        position = stretch.position
        for tile in range(stretch.coordinates.start, stretch.coordinates.stop):
            for offset, local in enumerate(range(stretch.local.start, stretch.local.stop)):
                assert (tile, local) not in found
                found[tile, local] = position + offset
            position += stretch.step
    expected = {
        (tile, local): start + local - at
        for tile, start in enumerate(starts.tolist())
        for local in range(size)
        if at <= start + local < at + length
    }
    assert found == expected


@pytest.mark.parametrize(("first", "step"), [(0, 3), (5, 0), (3, -2), (-1, 0)])
def test_a_moving_window_never_leaves_its_array(first: int, step: int) -> None:
    array = np.zeros((3, 8))
    with pytest.raises(ValueError, match="a window from"):
        moving_window(array, (0, first), (3, 4), [Walk(0, 1, step)])
    assert moving_window(array, (0, 0), (3, 4), [Walk(0, 1, 2)]).shape == (3, 4)


def _columns(x: Array, parts: int) -> Block:
    """Return a block of all rows of a matrix, its columns cut into equal parts."""
    rows, columns = x.shape
    size = columns // parts
    array = x.reshape(rows, parts, size).transpose(1, 0, 2)
    starts = np.arange(parts)[:, np.newaxis].reshape(parts) * size
    return Block(array, (parts,), (rows, size), (0, starts), x.shape)


def _on_all(x: Array, parts: int) -> Block:
    """Return a block of the whole on every tile, stored once."""
    array = np.broadcast_to(x, (parts, *x.shape))
    return Block(array, (parts,), x.shape, (0,) * x.ndim, x.shape)


@pytest.mark.parametrize("how", ["follows", "shared", "own copies", "turned"])
@pytest.mark.parametrize("place", [(0, 0), (3, 0), (9, 2), (-1, -1), (2, 3)])
def test_a_window_is_written_where_the_data_is(how: str, place: tuple[int, int]) -> None:
    """On all tiles at once where each has of the window what it replaces, else one by one."""
    numbers = np.random.default_rng(1)
    wide = how in ("follows", "turned")
    data = numbers.standard_normal((6, 8)).astype(np.float32)
    window = numbers.standard_normal((2, 8 if wide else 3)).astype(np.float32)
    expected = data.copy()
    block = _columns(data, 4)
    piece = _columns(window, 4) if wide else _on_all(window, 4)
    if how == "own copies":
        piece = piece._replace(array=np.array(piece.data))
    if how == "turned":  # the last tile has the first columns of both
        back = np.arange(4)[::-1] * 2
        block = block._replace(array=block.data[::-1], starts=(0, back))
        piece = piece._replace(array=piece.data[::-1], starts=(0, back))
    at = [_on_all(np.array(p, np.int32), 4) for p in place]
    bound = DynamicUpdateSlice().bound([block, piece, *at], [block])
    for start in (place, (5, 5)):  # the second time elsewhere
        told = [np.broadcast_to(np.int32(p), (4,)) for p in start]
        bound([block.data, piece.data, *told], [block.data])
        row, column = corner(data.shape, window.shape, start)
        expected[row : row + 2, column : column + window.shape[1]] = window
        np.testing.assert_array_equal(data, expected)


def test_a_tile_without_its_part_of_the_window_does_not_write_it() -> None:
    data, window = np.zeros((8, 8), np.float32), np.ones((2, 8), np.float32)
    rows = Block(
        data.reshape(4, 2, 8), (4,), (2, 8), (np.arange(4) * 2, 0), data.shape
    )  # all columns, of which each tile has two of the window's
    at = [_on_all(np.array(0, np.int32), 4)] * 2
    bound = DynamicUpdateSlice().bound([rows, _columns(window, 4), *at], [rows])
    with pytest.raises(ValueError, match="broadcast"):
        bound([rows.data, _columns(window, 4).data, *(x.data for x in at)], [rows.data])
