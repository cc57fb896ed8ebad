"""Putting candidates together: the law, every bit, cycles by hand."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.indexed.or_bits import OrBits
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, run_whole

TINY = load_machine("tiny")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("f32", "f4"), ("f64", "f8"), ("c64", "c8"), ("c128", "c16"), ("s8", "i1"), ("u64", "u8")],
)
def test_every_bit_of_the_one_part_stays(name: str, dtype: str) -> None:
    generator = np.random.default_rng(3)
    size = np.dtype(dtype).itemsize
    whole = np.frombuffer(generator.bytes(4 * 5 * size), dtype).reshape(4, 5)
    owner = generator.integers(0, 3, (4, 5))
    parts = np.stack([np.where(owner == n, whole, np.zeros((), dtype)) for n in range(3)])
    (made,) = run_whole(OrBits(), [Given(name, parts)], [Tensor(name, (4, 5))])
    assert made.tobytes() == whole.tobytes()


def test_signed_zeros_and_predicates() -> None:
    zeros = Given("f32", np.array([[-0.0, 0.0], [0.0, 0.0]], np.float32))
    (made,) = check_every_split(OrBits(), [zeros], [Tensor("f32", (2,))])
    assert np.signbit(made).tolist() == [True, False]
    flags = Given("pred", np.array([[True, False], [False, False]]))
    (made,) = check_every_split(OrBits(), [flags], [Tensor("pred", (2,))])
    assert made.tolist() == [True, False]


def test_a_scalar_and_a_split_result() -> None:
    parts = Given("s32", np.array([0, 7, 0], np.int32))
    (made,) = check_every_split(OrBits(), [parts], [Tensor("s32", ())])
    assert made == 7
    grid = np.zeros((3, 7, 4), np.int32)
    grid[1] = np.arange(28).reshape(7, 4)
    (made,) = check_every_split(OrBits(), [Given("s32", grid)], [Tensor("s32", (7, 4))])
    np.testing.assert_array_equal(made, grid[1])


def test_it_costs_a_strided_reduction() -> None:
    work = OrBits().work(TINY, [Tensor("f32", (5, 100))], [Tensor("f32", (100,))])
    # 50 words, 9 of them for the worker with most, 4 more parts after the first
    assert work == (10 + 6 * (16 + 9 * (10 + 4)),) * 2
    none = [Tensor("f32", (5, 0))], [Tensor("f32", (0,))]
    assert OrBits().work(TINY, *none).cycles == 0
