"""Scan: the law, running sums and maxima, and cycles worked out by hand."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.scan import Scan
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split

RNG = np.random.default_rng(9)
# (x, sum, most) to (sum + x, its maximum so far), both carried on.
BODY = Expression(
    ("s32", "s32", "s32"),
    (Node("add", (0, 1), "s32"), Node("maximum", (3, 2), "s32")),
    (3, 4, 3, 4),
)


@pytest.mark.parametrize("dimension", [0, 1, 2])
@pytest.mark.parametrize("is_reverse", [False, True])
def test_running_sums(dimension: int, is_reverse: bool) -> None:
    shape = (3, 4, 5)
    rest = shape[:dimension] + shape[dimension + 1 :]
    x = Given("s32", RNG.integers(-9, 9, shape).astype(np.int32))
    start = Given("s32", RNG.integers(-9, 9, rest).astype(np.int32))
    lowest = Given("s32", np.full(rest, -1000, np.int32))
    scan = Scan(dimension, BODY, 1, 2, shape[dimension], is_reverse)
    tensors = [Tensor("s32", shape)] * 2 + [Tensor("s32", rest)] * 2
    sums, most, last, top = check_every_split(scan, [x, start, lowest], tensors)
    rows = np.moveaxis(x.array, dimension, 0)
    rows = rows[::-1] if is_reverse else rows
    expected = np.cumsum(rows, axis=0) + start.array
    highest = np.maximum.accumulate(expected, axis=0)
    np.testing.assert_array_equal(last, expected[-1])
    np.testing.assert_array_equal(top, highest[-1])
    if is_reverse:
        expected, highest = expected[::-1], highest[::-1]
    np.testing.assert_array_equal(np.moveaxis(sums, dimension, 0), expected)
    np.testing.assert_array_equal(np.moveaxis(most, dimension, 0), highest)


def test_only_carries() -> None:
    body = Expression(("s32",), (Node("negate", (0,), "s32"),), (1,))
    x = Given("s32", np.arange(12, dtype=np.int32).reshape(3, 4))
    (made,) = check_every_split(Scan(0, body, 0, 0, 3), [x], [x.tensor])
    np.testing.assert_array_equal(made, -x.array)


def test_cycles_by_hand() -> None:
    x, carry = Tensor("s32", (7, 4)), Tensor("s32", (7,))
    operands, results = [x, carry, carry], [x, x, carry, carry]
    scan = Scan(1, BODY, 1, 2, 4)
    # Two columns for the fullest worker, two nodes of 5 slots, 10 slots a step.
    tiny = 11 + 6 * (20 + 4 * (10 + 2 * 2 * 5))
    assert scan.work(load_machine("tiny"), operands, results) == (tiny, tiny)
    unit = 11 + 20 + 4 * (10 + 7 * 2 * 5)
    assert scan.work(load_machine("unit"), operands, results) == (unit, unit)
    empty = [Tensor("s32", (0, 4)), Tensor("s32", (0,)), Tensor("s32", (0,))]
    assert scan.work(load_machine("tiny"), empty, empty).cycles == 0
