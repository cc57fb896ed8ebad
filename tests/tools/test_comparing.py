"""Comparisons of arrays in tests take no other shape or type for the same."""

from typing import Any

import numpy as np
import pytest

from tests.support.arrays import f32, s32

ONES = f32([1, 1])
REFUSED = {
    "a scalar for all": (ONES, 1), "a row for all": (f32([[1, 1], [1, 1]]), ONES),
    "an axis too many": (ONES[None], ONES), "wider": (ONES.astype(np.float64), ONES),
    "narrower": (ONES.astype(np.float16), ONES), "integers": (s32([1, 1]), ONES),
    "floats": (ONES, s32([1, 1])), "a reference of integers": (ONES, np.ones(2, np.int64)),
    "complex": (ONES, ONES.astype(np.complex128)), "of numbers": (ONES, np.bool_([1, 1])),
}  # fmt: skip
TAKEN = {
    "itself": (ONES, ONES), "numbers": (ONES, [1, 1]), "a wide reference": (ONES, np.ones(2)),
    "whole numbers": (s32([1, 1]), np.ones(2, np.int64)), "a number": (np.float32(1), 1.0),
}  # fmt: skip


@pytest.mark.parametrize("compare", [np.testing.assert_allclose, np.testing.assert_array_equal])
@pytest.mark.parametrize("name", [*REFUSED, *TAKEN])
def test_what_is_taken_for_the_same(compare: Any, name: str) -> None:
    if name in TAKEN:
        compare(*TAKEN[name])
        return
    with pytest.raises(AssertionError, match=r"differ|is not"):
        compare(*REFUSED[name])
