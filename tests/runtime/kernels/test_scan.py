from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hloipu_runtime.kernels.scan import scan

Array = NDArray[Any]


@pytest.mark.parametrize("is_reverse", [False, True])
def test_running_sums_along_the_middle_dimension(is_reverse: bool) -> None:
    x = np.arange(24).reshape(2, 3, 4)

    def body(value: Array, total: Array) -> list[Array]:
        return [total, total + value]

    outs, carries = scan(
        [x],
        [np.zeros((2, 4), int)],
        1,
        body,
        [((2, 3, 4), np.dtype(int))],
        length=3,
        is_reverse=is_reverse,
    )
    np.testing.assert_array_equal(carries[0], x.sum(axis=1))
    steps = x[:, ::-1] if is_reverse else x
    want = np.cumsum(steps, axis=1) - steps
    np.testing.assert_array_equal(outs[0], want[:, ::-1] if is_reverse else want)


def test_no_steps_leave_the_carries() -> None:
    outs, carries = scan(
        [np.zeros((0,))],
        [np.asarray(3.0)],
        0,
        lambda v, c: [v, c],
        [((0,), np.dtype(float))],
        length=0,
    )
    assert outs[0].shape == (0,)
    assert carries[0] == 3
