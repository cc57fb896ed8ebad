"""Reshapes and bit casts: the law, values, cycles by hand."""

from math import prod

import numpy as np
import pytest

from hloipu_runtime.codelets.core.codelet import ALL, Index, Tensor
from hloipu_runtime.codelets.ops.reshape import BitcastConvert, Reshape
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split

TINY = load_machine("tiny")


def counted(*shape: int) -> Given:
    return Given("s32", np.arange(prod(shape), dtype=np.int32).reshape(shape))


@pytest.mark.parametrize(
    ("before", "after", "sizes"),
    [
        ((6, 5), (30,), (6,)),
        ((30,), (6, 5), (6,)),
        ((4, 6), (6, 4), (2,)),
        ((3, 1, 8, 5), (1, 3, 2, 20), (3, 2)),
        ((4, 5), (4, 5), (4, 5)),
        ((1, 1), (), ()),
        ((3, 4), (2, 6), ()),
        ((0, 3), (0,), ()),
        ((7, 6, 4, 10), (7, 24, 2, 5), (7, 6, 2)),
    ],
)
def test_a_reshape_splits_by_what_first_dimensions_share(
    before: tuple[int, ...], after: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    given, result = counted(*before), Tensor("s32", after)
    assert Reshape().indexing([given.tensor], [result]).sizes == sizes
    (made,) = check_every_split(Reshape(), [given], [result])
    np.testing.assert_array_equal(made.ravel(), np.arange(prod(before)))


def test_a_piece_of_a_split_dimension_is_whole_rows() -> None:
    indexing = Reshape().indexing([Tensor("f32", (6, 5))], [Tensor("f32", (30,))])
    assert indexing.operands == ((Index(0, 1, 0, 1), ALL),)
    assert indexing.results == ((Index(0, 5, 0, 5),),)


@pytest.mark.parametrize(
    ("source", "target", "before", "after"),
    [
        ("s32", "f32", (3, 4), (3, 4)),
        ("s32", "u8", (3, 4), (3, 4, 4)),
        ("s32", "s16", (5,), (5, 2)),
        ("u8", "s32", (5, 4), (5,)),
        ("u8", "s16", (3, 6, 2), (3, 6)),
    ],
)
def test_a_bit_cast_splits_the_dimensions_that_stay(
    source: str, target: str, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    dtypes = {"s32": "<i4", "f32": "<f4", "u8": "u1", "s16": "<i2"}
    array = (np.arange(prod(before)) * 0x01020305 + 77).astype(dtypes[source]).reshape(before)
    (made,) = check_every_split(
        BitcastConvert(source, target), [Given(source, array)], [Tensor(target, after)]
    )
    expected = np.frombuffer(array.tobytes(), dtypes[target]).reshape(after)
    np.testing.assert_array_equal(made, expected)


def test_both_cost_a_copy() -> None:
    before, after = Tensor("f32", (6, 5)), Tensor("f32", (30,))
    assert Reshape().work(TINY, [before], [after]).cycles == 100 + 15
    cast = BitcastConvert("f32", "u8")
    assert cast.work(TINY, [before], [Tensor("u8", (6, 5, 4))]).cycles == 100 + 15
