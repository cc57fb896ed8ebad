"""Padding: the law, values, cycles by hand."""

from math import prod

import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Block, Tensor
from hloipu_runtime.codelets.ops.join import Pad
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split

TINY = load_machine("tiny")


def counted(*shape: int) -> Given:
    return Given("f32", np.arange(prod(shape), dtype=np.float32).reshape(shape))


def scalar(value: float) -> Given:
    return Given("f32", np.asarray(value, np.float32))


@pytest.mark.parametrize(
    "padding",
    [
        ((2, 3, 0), (0, 0, 0)),
        ((-1, 4, 0), (7, -2, 0)),
        ((0, 0, 2), (1, 1, 0)),
        ((3, -4, 1), (-1, -1, 0)),
        ((-2, 9, 0), (-1, -1, 2)),
        ((-3, 2, 1), (5, 1, 3)),
        ((-4, 1, 0), (1, 0, 0)),
    ],
)
def test_a_pad_splits_between_elements(padding: tuple[tuple[int, int, int], ...]) -> None:
    given = counted(4, 5)
    shape = tuple(
        low + high + size + (size - 1) * interior
        for size, (low, high, interior) in zip((4, 5), padding, strict=True)
    )
    (made,) = check_every_split(Pad(padding), [given, scalar(-7.5)], [Tensor("f32", shape)])
    expected = np.full(shape, -7.5, np.float32)
    for place in np.ndindex(4, 5):
        at = tuple(low + i * (inner + 1) for i, (low, _, inner) in zip(place, padding, strict=True))
        if all(0 <= i < n for i, n in zip(at, shape, strict=True)):
            expected[at] = given.array[place]
    np.testing.assert_array_equal(made, expected)


def test_each_tile_pads_with_its_own_copy_of_the_value() -> None:
    data = Block(np.ones((2, 3), np.float32), (2,), (3,), (np.array([0, 3]),), (6,))
    values = Block(np.array([5, 7], np.float32), (2,), (), (), ())
    result = Block(None, (2,), (5,), (np.array([0, 5]),), (10,))
    (made,) = Pad(((1, 1, 0),)).run([data, values], [result])
    np.testing.assert_array_equal(made, [[5, 1, 1, 1, 5], [7, 1, 1, 1, 7]])


def test_a_pad_fills_and_moves() -> None:
    operands = [Tensor("f32", (4, 5)), Tensor("f32", ())]
    work = Pad(((1, 1, 0), (0, 0, 0))).work(TINY, operands, [Tensor("f32", (6, 5))])
    assert work.cycles == 6 * (23 + 3) + (100 + 10)
    work = Pad(((0, 0, 0), (1, 0, 0))).work(TINY, operands, [Tensor("f32", (4, 6))])
    assert work.cycles == 6 * (23 + 2) + (100 + 40)
    work = Pad(((0, 0, 0), (0, 0, 1))).work(TINY, operands, [Tensor("f32", (4, 9))])
    assert work.cycles == 6 * (23 + 3) + (100 + 240)
