"""The functions of our own, against scipy."""

import numpy as np
import pytest
import scipy.special

from hloipu_runtime.kernels.elementwise.special import erf
from tests.support.arrays import Array


def _ulps(found: Array, wanted: np.ndarray) -> Array:
    return np.asarray(np.abs(found - wanted) / np.spacing(np.abs(wanted.astype(found.dtype))))


@pytest.mark.parametrize(("dtype", "budget"), [(np.float32, 4.0), (np.float64, 4.0)])
def test_erf(dtype: type, budget: float) -> None:
    rng = np.random.default_rng(0)
    x: Array = np.concatenate(
        [rng.uniform(-7, 7, 20000), 10.0 ** rng.uniform(-30, 0, 5000)]
    ).astype(dtype)
    found = np.empty_like(x)
    erf(x, found)
    assert _ulps(found, scipy.special.erf(x.astype(np.float64))).max() <= budget
    assert np.abs(found).max() <= 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_erf_edges_in_place(dtype: type) -> None:
    x: Array = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 40.0], dtype)
    erf(x, x)
    np.testing.assert_array_equal(x, [0.0, -0.0, 1.0, -1.0, np.nan, 1.0])
    assert list(np.signbit(x[:2])) == [False, True]
