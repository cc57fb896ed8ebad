import itertools
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.kernels.linear_algebra.factorisations import (
    TRANSPOSES,
    cholesky,
    triangular_solve,
)

TYPES = {"f32": np.float32, "f64": np.float64, "c64": np.complex64, "c128": np.complex128}


def random(rng: Any, shape: Any, element_type: Any) -> Any:
    x = rng.standard_normal(shape)
    if element_type.startswith("c"):
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(TYPES[element_type])


def tolerance(element_type: Any) -> Any:
    return 1e-4 if element_type in ("f32", "c64") else 1e-12


@pytest.mark.parametrize("element_type", TYPES)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (2, 3, 7, 7), (40, 40), (0, 3, 3), (2, 0, 0)])
def test_cholesky_reproduces_its_input_from_one_triangle(
    element_type: Any, lower: Any, shape: Any
) -> None:
    rng = np.random.default_rng(0)
    x = random(rng, shape, element_type)
    a = x @ x.conj().swapaxes(-1, -2) + np.eye(shape[-1], dtype=x.dtype)
    unread = np.triu(np.ones(a.shape, bool), 1)
    given = np.where(unread if lower else unread.swapaxes(-1, -2), np.nan, a)
    factor = cholesky(given.astype(a.dtype), lower, element_type)
    assert factor.dtype == a.dtype
    assert not factor[unread if lower else unread.swapaxes(-1, -2)].any()
    adjoint = factor.conj().swapaxes(-1, -2)
    product = factor @ adjoint if lower else adjoint @ factor
    np.testing.assert_allclose(product, a, rtol=0, atol=tolerance(element_type) * shape[-1])


@pytest.mark.parametrize("lower", [True, False])
def test_cholesky_of_the_not_positive_definite_is_nan_and_the_rest_is_not(lower: Any) -> None:
    good = np.array([[4.0, 2.0], [2.0, 5.0]])
    bad = [[[1.0, 2.0], [2.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]]]
    nan = [[1.0, np.nan], [np.nan, 1.0]]
    result = cholesky(np.array([*bad, nan, good]), lower, "f64")
    assert np.isnan(result[:4]).all()
    expected = np.array([[2.0, 0.0], [1.0, 2.0]])
    np.testing.assert_allclose(result[4], expected if lower else expected.T)


def test_cholesky_of_a_narrow_float_is_rounded() -> None:
    result = cholesky(np.array([[2.0]], np.float32), True, "bf16")
    assert result.item() == 1.4140625


@pytest.mark.parametrize("element_type", TYPES)
@pytest.mark.parametrize(
    ("lead", "n", "m"),
    [((), 1, 1), ((), 5, 3), ((3,), 4, 2), ((2,), 33, 3), ((), 70, 1), ((), 0, 3), ((2,), 3, 0)],
)
def test_triangular_solve_satisfies_its_equation(
    element_type: Any, lead: Any, n: Any, m: Any
) -> None:
    rng = np.random.default_rng(1)
    dense = random(rng, (*lead, n, n), element_type) / max(n, 1)
    dense = dense + 2 * np.eye(n, dtype=dense.dtype)
    for left, lower, unit, transpose in itertools.product(
        (True, False), (True, False), (True, False), TRANSPOSES
    ):
        exact = np.tril(dense) if lower else np.triu(dense)
        given = np.where(np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T, dense, np.nan)
        if unit:
            index = np.arange(n)
            exact[..., index, index], given[..., index, index] = 1, np.nan
        op = {"NO_TRANSPOSE": exact, "TRANSPOSE": exact.swapaxes(-1, -2)}.get(
            transpose, exact.conj().swapaxes(-1, -2)
        )
        b = random(rng, (*lead, n, m) if left else (*lead, m, n), element_type)
        x = triangular_solve(
            given.astype(b.dtype),
            b,
            element_type,
            left_side=left,
            lower=lower,
            unit_diagonal=unit,
            transpose_a=transpose,
        )
        assert x.shape == b.shape
        assert x.dtype == b.dtype
        back = op @ x if left else x @ op
        np.testing.assert_allclose(back, b, rtol=0, atol=tolerance(element_type))


def test_zero_on_the_diagonal_gives_no_finite_value_and_no_warning() -> None:
    x = triangular_solve(
        np.array([[1.0, 0.0], [1.0, 0.0]]),
        np.array([[1.0], [3.0]]),
        "f64",
        left_side=True,
        lower=True,
        unit_diagonal=False,
        transpose_a="NO_TRANSPOSE",
    )
    assert x[0, 0] == 1
    assert not np.isfinite(x[1, 0])
