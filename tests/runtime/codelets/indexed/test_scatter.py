"""Scatters: the law, values window by window, in place, cycles by hand."""

from math import prod

import numpy as np
import pytest

from hloipu_runtime.codelets.core.codelet import ALL, Index
from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.core.tensors import Block, Blocks, OnArrays, Tensor
from hloipu_runtime.codelets.indexed import scatter as scatter_codelets
from hloipu_runtime.codelets.indexed.scatter import Scatter
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.kernels.scatter import ScatterDimensions
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, check_law, run_whole
from tests.support.scattered import Combine, scattered

TINY = load_machine("tiny")
ROWS = ScatterDimensions((1,), (0,), (0,), 1)

CASES = [
    # operand, updates, shape of indices, dimension numbers
    ((9, 4), (15, 4), (15, 1), ROWS),
    ((9, 4), (5, 3, 4), (5, 3), ScatterDimensions((2,), (0,), (0,), 2)),
    ((9, 4), (3, 12, 2), (12, 2), ScatterDimensions((0, 2), (), (0, 1), 1)),
    ((9, 4), (13, 2, 3), (2, 13), ScatterDimensions((1, 2), (), (1, 0), 0)),
    ((6, 5, 4), (3, 4, 2, 4), (3, 4, 2), ScatterDimensions((2, 3), (1,), (0, 1), 2)),
    ((3, 7, 4), (3, 5, 4), (3, 5, 1), ScatterDimensions((2,), (1,), (1,), 2, (0,), (0,))),
    ((3, 7, 4), (3, 5, 2), (3, 5, 1), ScatterDimensions((2,), (1,), (1,), 2, (0,), (0,))),
    ((7, 3, 4), (5, 2, 3, 4), (5, 3, 1), ScatterDimensions((1, 3), (), (0,), 2, (1,), (1,))),
    ((7, 4), (7, 3, 2), (3, 0), ScatterDimensions((0, 2), (), (), 1)),
    ((7, 4), (7, 6, 4), (6, 1), ScatterDimensions((0, 2), (), (0,), 1)),
    ((40,), (11,), (11, 1), ScatterDimensions((), (0,), (0,), 1)),
]  # fmt: skip
COMBINE: dict[str, Combine] = {"assign": lambda a, b: b, "": lambda a, b: a - b}


def counted(*shape: int) -> Given:
    return Given("f32", np.arange(1, prod(shape) + 1, dtype=np.float32).reshape(shape))


def numbers(shape: tuple[int, ...], low: int = -1, high: int = 9) -> Given:
    generator = np.random.default_rng(11)
    return Given("s32", generator.integers(low, high, shape, dtype=np.int32))


def binary(op: str) -> Expression:
    return Expression(("f32", "f32"), (Node(op, (0, 1), "f32"),), (2,))


@pytest.mark.parametrize("monoid", ["assign", ""])
@pytest.mark.parametrize(("operand", "updates", "indices", "dims"), CASES)
def test_a_scatter_splits_its_operand(
    operand: tuple[int, ...],
    updates: tuple[int, ...],
    indices: tuple[int, ...],
    dims: ScatterDimensions,
    monoid: str,
) -> None:
    data, windows, places = counted(*operand), counted(*updates), numbers(indices)
    body = None if monoid else binary("subtract")
    codelet = Scatter(dims, monoid, body, ("f32",))
    (made,) = check_every_split(codelet, [data, places, windows], [data.tensor])
    expected = scattered(data.array, places.array, windows.array, dims, COMBINE[monoid])
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("monoid", ["assign", ""])
def test_tables_that_are_large_are_changed_in_place(
    monoid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter_codelets, "_LARGE_ELEMENTS", 1)
    called: list[bool] = []
    prepare = Scatter.on_arrays

    def noted(self: Scatter, operands: Blocks, results: Blocks) -> OnArrays | None:
        prepared = prepare(self, operands, results)
        called.append(prepared is not None)
        return prepared

    monkeypatch.setattr(Scatter, "on_arrays", noted)
    data, windows, places = counted(12, 4), counted(30, 4), numbers((30, 1), -1, 13)
    codelet = Scatter(ROWS, monoid, None if monoid else binary("subtract"), ("f32",))
    (made,) = check_every_split(codelet, [data, places, windows], [data.tensor])
    expected = scattered(data.array, places.array, windows.array, ROWS, COMBINE[monoid])
    np.testing.assert_array_equal(made, expected)
    assert any(called)


@pytest.mark.parametrize("monoid", ["add", "maximum"])
def test_windows_that_meet_are_combined_in_order_on_every_tile(monoid: str) -> None:
    data = Given("f16", np.full((12, 3), 2048.0, np.float32))
    places, windows = numbers((30, 1), 0, 3), Given("f16", np.ones((30, 3), np.float32))
    codelet = Scatter(ROWS, monoid, None, ("f16",))
    (made,) = check_every_split(codelet, [data, places, windows], [data.tensor])
    # 2048 + 1 is 2048 in f16, thirty times over; the sum of ones first would be seen.
    np.testing.assert_array_equal(made, data.array)


def test_several_operands_are_scattered_together() -> None:
    types = ("f32", "f32", "f32", "f32")
    body = Expression(types, (Node("add", (0, 3), "f32"), Node("maximum", (1, 2), "f32")), (4, 5))
    a, b = counted(6, 4), Given("f32", -counted(6, 4).array)
    u, v = counted(9, 4), Given("f32", 5 * counted(9, 4).array)
    places = numbers((9, 1), 0, 6)
    codelet = Scatter(ROWS, "", body, ("f32", "f32"))
    made = check_every_split(codelet, [a, b, places, u, v], [a.tensor, b.tensor])
    first, second = a.array.copy(), b.array.copy()
    for n, row in enumerate(places.array[:, 0]):
        first[row], second[row] = first[row] + v.array[n], np.maximum(second[row], u.array[n])
    np.testing.assert_array_equal(made[0], first)
    np.testing.assert_array_equal(made[1], second)


@pytest.mark.parametrize("kind", ["u8", "u64", "s64"])
def test_places_of_any_integer_type_may_be_out_of_bounds(kind: str) -> None:
    dtype = np.dtype({"u8": "u1", "u64": "u8", "s64": "i8"}[kind])
    top = {"u8": 255, "u64": 2**64 - 1, "s64": 2**63 - 1}[kind]
    places = Given(kind, np.array([[1], [top], [top // 2 + 1], [5]], dtype))
    data, windows = counted(6, 2), Given("f32", np.zeros((4, 2), np.float32))
    codelet = Scatter(ROWS, "assign", None, ("f32",))
    (made,) = check_every_split(codelet, [data, places, windows], [data.tensor])
    assert np.flatnonzero(made[:, 0] == 0).tolist() == [1, 5]


@pytest.mark.parametrize("place", [-1, 2, 7])
def test_a_window_alone_may_be_out_of_bounds(place: int) -> None:
    places = Given("s32", np.array([place, 0], np.int32))
    data, windows = counted(8, 512), Given("f32", np.zeros((2, 512), np.float32))
    codelet = Scatter(ScatterDimensions((0, 1), (), (0, 1), 0), "minimum", None, ("f32",))
    (made,) = check_every_split(codelet, [data, places, windows], [data.tensor])
    assert np.flatnonzero(made[:, 0] == 0).tolist() == ([2, 3] if place == 2 else [])


def test_ranges_follow_the_operand_and_windows_follow_whole_dimensions() -> None:
    operands = [Tensor("f32", (3, 7, 4)), Tensor("s32", (3, 5, 1)), Tensor("f32", (3, 5, 4))]
    dims = ScatterDimensions((2,), (1,), (1,), 2, (0,), (0,))
    codelet = Scatter(dims, "add", None, ("f32",))
    indexing = codelet.indexing(operands, operands[:1])
    assert indexing.sizes == (3, 7, 4)
    assert indexing.operands[1:] == ((Index(0), ALL, ALL), (Index(0), ALL, Index(2)))


def test_a_whole_scatter_is_made_in_place() -> None:
    array = np.zeros((50, 4), np.float32)
    data = Block(array, (), (50, 4), (0, 0), (50, 4))
    places = Block(np.arange(20)[:, None] * 2, (), (20, 1), (0, 0), (20, 1))
    windows = Block(np.ones((20, 4), np.float32), (), (20, 4), (0, 0), (20, 4))
    codelet = Scatter(ROWS, "add", None, ("f32",))
    (made,) = codelet.run([data, places, windows], [data])
    assert made is array
    assert array.sum() == 80
    (made,) = codelet.run([data, places, windows], [data._replace(array=None)])
    assert made.base is None
    assert array.sum() == 80


def test_each_tile_goes_by_its_own_windows_and_places() -> None:
    grid = (2,)
    data = Block(np.zeros((2, 3), np.float32), grid, (3,), (np.array([0, 3]),), (6,))
    places = Block(np.array([[[1]], [[4]]]), grid, (1, 1), (0, 0), (1, 1))
    windows = Block(np.array([[5], [7]], np.float32), grid, (1,), (0,), (1,))
    dims = ScatterDimensions((), (0,), (0,), 1)
    codelet = Scatter(dims, "assign", None, ("f32",))
    (made,) = codelet.run([data, places, windows], [data._replace(array=None)])
    np.testing.assert_array_equal(made, [[0, 5, 0], [0, 7, 0]])


def test_many_small_ranges() -> None:
    data, windows, places = counted(200), counted(500), numbers((500, 1), -5, 205)
    codelet = Scatter(ScatterDimensions((), (0,), (0,), 1), "add", None, ("f32",))
    (made,) = check_law(codelet, [data, places, windows], [data.tensor], {0: 3})
    expected = data.array.copy()
    inside = (places.array[:, 0] >= 0) & (places.array[:, 0] < 200)
    np.add.at(expected, places.array[inside, 0], windows.array[inside])
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize(
    ("monoid", "name", "cycles"),
    [
        # 13 rows of 8, 3 for the worker with most: it passes over 10
        ("assign", "f32", 6 * (29 + 3 * (19 + 2 * 4) + 10 * 8)),
        ("add", "f32", 6 * (33 + 3 * (13 + 4 * 3) + 10 * 5)),
        ("add", "f16", 6 * (33 + 3 * (13 + 3 * 1) + 10 * 5)),
    ],
)
def test_a_scatter_costs_its_windows(monoid: str, name: str, cycles: int) -> None:
    operands = [Tensor(name, (100, 8)), Tensor("s32", (13, 1)), Tensor(name, (13, 8))]
    codelet = Scatter(ROWS, monoid, None, (name,))
    assert codelet.work(TINY, operands, operands[:1]).cycles == cycles
    none = [operands[0], Tensor("s32", (0, 1)), Tensor(name, (0, 8))]
    assert codelet.work(TINY, none, operands[:1]).cycles == 0


@pytest.mark.parametrize(("rows", "mine", "here"), [(100, 3, 13), (50, 2, 7), (10, 1, 2)])
def test_windows_are_taken_to_be_spread_evenly(rows: int, mine: int, here: int) -> None:
    """Of 13 windows over 100 rows, a tile with half of the rows gets 7, a worker of it 2."""
    operands = [Tensor("f32", (rows, 8)), Tensor("s32", (13, 1)), Tensor("f32", (13, 8))]
    codelet = Scatter(ROWS, "add", None, ("f32",), whole=(100, 8))
    cycles = codelet.work(TINY, operands, operands[:1]).cycles
    assert mine == -(-here // 6)
    assert cycles == 6 * (33 + mine * (13 + 4 * 3) + (13 - mine) * 5)


def test_an_operand_that_is_needed_is_left_alone() -> None:
    data, windows, places = counted(6, 2), counted(3, 2), numbers((3, 1), 0, 6)
    before = data.array.copy()
    run_whole(Scatter(ROWS, "add", None, ("f32",)), [data, places, windows], [data.tensor])
    np.testing.assert_array_equal(data.array, before)


def test_workers_note_the_windows_of_their_tile_where_most_fall_elsewhere() -> None:
    """Of 600 windows over 100 rows 6 fall into one row: each worker passes over 100, and notes."""
    operands = [Tensor("f32", (1, 8)), Tensor("s32", (600, 1)), Tensor("f32", (600, 8))]
    codelet = Scatter(ROWS, "add", None, ("f32",), whole=(100, 8))
    work = codelet.work(TINY, operands, operands[:1])
    noted, read = 100 * 5 + 1 * 3, 6 * 3 + 5 * 5
    supervisor = TINY.tile.supervisor_vertex_cycles
    assert work.cycles == supervisor + 6 * (2 * 33 + noted + read + (13 + 4 * 3))
    assert work.assumed_cycles == work.cycles
    assert codelet.room_bytes(TINY, operands, operands[:1]) == 600 * 8
    few = [operands[0], Tensor("s32", (6, 1)), Tensor("f32", (6, 8))]
    assert codelet.room_bytes(TINY, few, operands[:1]) == 0
    assert codelet.work(TINY, few, operands[:1]).assumed_cycles == 0


@pytest.mark.parametrize("start", [0.0, 2.0])
def test_shares_of_updates_with_a_table_each_are_one_sum(start: float) -> None:
    dims = ScatterDimensions((2,), (1,), (1,), 2, (0,), (0,))
    tables = Given("f32", np.broadcast_to(np.float32(start), (3, 9, 4)))
    indices, updates, init = numbers((3, 15, 1)), counted(3, 15, 4), Given("f32", np.array(7, "f4"))
    shares = Scatter(dims, "add", None, ("f32",))
    combine = Reduce((0,), "add", None, ("f32",))
    (sums,) = run_whole(shares, [tables, indices, updates], [Tensor("f32", (3, 9, 4))])
    whole, taken = shares.combined_with(combine, [None]) or (shares, 0)
    (made,) = run_whole(
        whole, [tables, indices, updates, init][: 3 + taken], [Tensor("f32", (9, 4))]
    )
    np.testing.assert_array_equal(made, 7 + sums.sum(0))


def test_shares_stay_apart_where_they_are_not_added_up_again() -> None:
    dims = ScatterDimensions((2,), (1,), (1,), 2, (0,), (0,))
    shares = Scatter(dims, "add", None, ("f32",))
    for combine in (
        Reduce((1,), "add", None, ("f32",)),
        Reduce((0,), "maximum", None, ("f32",)),
        Reduce((0,), "add", None, ("f32",), (3,)),
        shares,
    ):
        assert shares.combined_with(combine, [None]) is None
    assert (
        Scatter(ROWS, "add", None, ("f32",)).combined_with(
            Reduce((0,), "add", None, ("f32",)), [None]
        )
        is None
    )
