"""Copies, transposes, reversals, slices and broadcasts: the law, values, cycles by hand."""

from math import prod

import numpy as np
import pytest

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.tensors import Block, Tensor
from hloipu_runtime.codelets.ops.move import Copy, Reverse, StridedSlice, Transpose
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, run_whole

TINY = load_machine("tiny")
UNIT = load_machine("unit")


def counted(*shape: int) -> Given:
    return Given("f32", np.arange(prod(shape), dtype=np.float32).reshape(shape))


def cycles(codelet: Codelet, operand: Tensor, result: Tensor) -> int:
    return codelet.work(TINY, [operand], [result]).cycles


@pytest.mark.parametrize("shape", [(), (7,), (5, 6), (3, 4, 5)])
def test_a_copy_splits_in_any_way(shape: tuple[int, ...]) -> None:
    given = counted(*shape)
    (made,) = check_every_split(Copy(), [given], [given.tensor])
    np.testing.assert_array_equal(made, given.array)


def test_a_copy_onto_itself_touches_nothing() -> None:
    array = np.ones(5, np.float32)
    block = Block(array, (), (5,), (0,), (5,))
    assert Copy().run([block], [block])[0] is array


@pytest.mark.parametrize(
    ("shape", "permutation"),
    [
        ((5, 7), (1, 0)),
        ((3, 4, 5), (2, 0, 1)),
        ((3, 4, 5), (1, 2, 0)),
        ((2, 3, 4, 5), (3, 1, 0, 2)),
    ],
)
def test_a_transpose_splits_in_any_way(
    shape: tuple[int, ...], permutation: tuple[int, ...]
) -> None:
    given = counted(*shape)
    result = Tensor("f32", tuple(shape[d] for d in permutation))
    (made,) = check_every_split(Transpose(permutation), [given], [result])
    for place in np.ndindex(result.shape):
        source = [0] * len(shape)
        for axis, d in enumerate(permutation):
            source[d] = place[axis]
        assert made[place] == given.array[tuple(source)]


def test_a_large_transpose_into_an_array_is_copied_whole() -> None:
    given = counted(300, 500)
    (made,) = run_whole(Transpose((1, 0)), [given], [Tensor("f32", (500, 300))], into=True)
    assert made.flags.c_contiguous
    rows, columns = np.indices((500, 300))
    np.testing.assert_array_equal(made, columns * 500.0 + rows)


@pytest.mark.parametrize("dimensions", [(), (0,), (1, 2), (0, 1, 2)])
def test_a_reversal_splits_what_it_does_not_flip(dimensions: tuple[int, ...]) -> None:
    given = counted(3, 4, 5)
    codelet = Reverse(dimensions)
    (made,) = check_every_split(codelet, [given], [given.tensor])
    np.testing.assert_array_equal(made, np.flip(given.array, dimensions))
    assert len(codelet.indexing([given.tensor], [given.tensor]).sizes) == 3 - len(dimensions)


@pytest.mark.parametrize(
    ("starts", "limits", "strides"),
    [((0, 0), (11, 9), (1, 1)), ((2, 1), (10, 8), (3, 2)), ((4, 3), (5, 3), (1, 1)),
     ((1, 8), (11, 9), (10, 1))],
)  # fmt: skip
def test_a_slice_splits_in_any_way(
    starts: tuple[int, ...], limits: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    given = counted(11, 9)
    expected = np.array(
        [
            [row * 9 + column for column in range(starts[1], limits[1], strides[1])]
            for row in range(starts[0], limits[0], strides[0])
        ],
        np.float32,
    )
    (made,) = check_every_split(
        StridedSlice(starts, strides), [given], [Tensor("f32", expected.shape)]
    )
    np.testing.assert_array_equal(made, expected)


def test_a_whole_transpose_or_slice_is_a_view() -> None:
    given = counted(4, 6)
    for codelet, shape in (
        (Transpose((1, 0)), (6, 4)),
        (StridedSlice((0, 2), (1, 2)), (4, 2)),
    ):
        (made,) = run_whole(codelet, [given], [Tensor("f32", shape)])
        assert np.shares_memory(made, given.array)


def test_a_copy_costs_its_call_and_eight_bytes_a_cycle() -> None:
    assert cycles(Copy(), Tensor("f32", (10, 10)), Tensor("f32", (10, 10))) == 100 + 50
    assert cycles(Copy(), Tensor("f16", (3,)), Tensor("f16", (3,))) == 100 + 1
    assert cycles(Copy(), Tensor("s4", (17,)), Tensor("s4", (17,))) == 100 + 2
    assert cycles(Copy(), Tensor("f32", (0, 9)), Tensor("f32", (0, 9))) == 0
    assert Copy().work(UNIT, [], [Tensor("f32", (2,))]).cycles == 1 + 8


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        # 7 + 6 * (29 + 1 * (18 + R * (12 + k * (C - 2)))) with R, C in grains of 2 or 4
        ("f32", (8, 6), 7 + 6 * (29 + 18 + 4 * (12 + 3 * 1))),
        ("f16", (16, 12), 7 + 6 * (29 + 18 + 4 * (12 + 4 * 1))),
        ("f32", (2, 2), 7 + 6 * 29),
        ("f16", (4, 4), 7 + 6 * 29),
        ("f32", (6, 2), 7 + 6 * (27 + 35 + 3 * 1)),
        # 48 elements in grains, 15 by themselves
        ("f32", (9, 7), 7 + 6 * (29 + 18 + 4 * (12 + 3 * 1)) + 15 * 6),
        ("f32", (1, 7), 100 + 4),  # nothing changes place
        ("f64", (3, 5), 100 + 60),  # 120 bytes in runs of 8, half a cycle each
        ("s8", (3, 5), 100 + 15 * 6),
    ],
)
def test_a_transpose_costs_its_grains(name: str, shape: tuple[int, int], expected: int) -> None:
    result = Tensor(name, shape[::-1])
    assert cycles(Transpose((1, 0)), Tensor(name, shape), result) == expected


def test_a_transpose_shares_matrices_among_the_workers() -> None:
    operand = Tensor("f32", (13, 4, 4))
    got = cycles(Transpose((0, 2, 1)), operand, operand)
    assert got == 7 + 6 * (29 + 3 * (18 + 2 * 12))


def test_a_transpose_that_keeps_its_last_dimension_moves_runs() -> None:
    operand, result = Tensor("f16", (4, 5, 2)), Tensor("f16", (5, 4, 2))
    assert cycles(Transpose((1, 0, 2)), operand, result) == 100 + 80 * 3
    long = Tensor("f16", (2, 3, 4000))
    # six copies of 8000 bytes are cheaper than one rearrangement of all 48000
    assert cycles(Transpose((1, 0, 2)), long, Tensor("f16", (3, 2, 4000))) == 6 * (100 + 1000)


def test_slices_and_reversals_move_runs() -> None:
    whole = Tensor("f32", (6, 4))
    assert cycles(StridedSlice((0, 0), (1, 1)), whole, Tensor("f32", (3, 4))) == 100 + 6
    assert cycles(StridedSlice((0, 1), (1, 1)), whole, Tensor("f32", (6, 2))) == 100 + 24
    assert cycles(StridedSlice((0, 0), (1, 2)), whole, Tensor("f32", (6, 2))) == 100 + 144
    assert cycles(Reverse((0,)), whole, whole) == 100 + 48
    assert cycles(Reverse((1,)), whole, whole) == 100 + 288
    assert cycles(Reverse(()), whole, whole) == 100 + 12


@pytest.mark.parametrize("name", ["f32", "f16", "f8e5m2", "s4", "pred", "c128"])
def test_nothing_costs_nothing(name: str) -> None:
    none = Tensor(name, (0, 3))
    assert cycles(Transpose((1, 0)), none, Tensor(name, (3, 0))) == 0
    assert cycles(Reverse((1,)), none, none) == 0
    assert cycles(StridedSlice((0, 0), (1, 1)), Tensor(name, (2, 3)), none) == 0


@pytest.mark.parametrize("name", ["f32", "f16", "s8", "f64"])
@pytest.mark.parametrize("matrices", [1, 2, 7])
def test_a_larger_transpose_costs_no_less(name: str, matrices: int) -> None:
    def price(rows: int, columns: int) -> int:
        operand = Tensor(name, (matrices, rows, columns))
        return cycles(Transpose((0, 2, 1)), operand, Tensor(name, (matrices, columns, rows)))

    for rows in range(2, 14):
        for columns in range(2, 14):
            assert price(rows, columns) <= min(price(rows + 1, columns), price(rows, columns + 1))
