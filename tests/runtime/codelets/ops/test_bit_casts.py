"""Bit casts: the law, values, cycles by hand."""

from math import prod

import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.move import BitcastConvert
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split

TINY = load_machine("tiny")


def counted(*shape: int) -> Given:
    return Given("s32", np.arange(prod(shape), dtype=np.int32).reshape(shape))


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


def test_a_bit_cast_costs_a_copy() -> None:
    before = Tensor("f32", (6, 5))
    cast = BitcastConvert("f32", "u8")
    assert cast.work(TINY, [before], [Tensor("u8", (6, 5, 4))]).cycles == 100 + 15
