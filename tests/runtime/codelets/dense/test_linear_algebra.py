"""Cholesky and triangular solve: the law, residuals in f64, and cycles worked out by hand."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Array, Tensor
from hloipu_runtime.codelets.dense.linear_algebra import Cholesky, TriangularSolve
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, close_values

RNG = np.random.default_rng(8)
NEAR = close_values(1e-4, 1e-4)


def _positive(*shape: int) -> Array:
    x = RNG.standard_normal(shape)
    return np.asarray((x @ x.swapaxes(-1, -2) + np.eye(shape[-1])).astype(np.float32))


@pytest.mark.parametrize("lower", [True, False])
def test_cholesky(lower: bool) -> None:
    a = Given("f32", _positive(3, 2, 5, 5))
    (made,) = check_every_split(Cholesky(lower, "f32"), [a], [a.tensor], same=NEAR)
    factor = made.astype(np.float64)
    other = factor.swapaxes(-1, -2)
    product = factor @ other if lower else other @ factor
    np.testing.assert_allclose(product, a.array.astype(np.float64), rtol=1e-5, atol=1e-5)


def test_only_the_matrix_that_fails_is_nan() -> None:
    values = _positive(4, 3, 3)
    values[2] = -values[2]
    a = Given("f32", values)
    (made,) = check_every_split(Cholesky(True, "f32"), [a], [a.tensor], same=NEAR)
    np.testing.assert_array_equal(np.isnan(made).all(axis=(1, 2)), [False, False, True, False])
    np.testing.assert_array_equal(np.isnan(made).any(axis=(1, 2)), [False, False, True, False])


@pytest.mark.parametrize("left_side", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE"])
def test_triangular_solve(left_side: bool, lower: bool, transpose: str) -> None:
    triangle = (np.tril if lower else np.triu)(_positive(2, 5, 5))
    a = Given("f32", triangle)
    shape = (2, 5, 4) if left_side else (2, 4, 5)
    b = Given("f32", RNG.standard_normal(shape).astype(np.float32))
    solve = TriangularSolve(left_side, lower, False, transpose, "f32")
    (made,) = check_every_split(solve, [a, b], [b.tensor], same=NEAR)
    matrix = triangle.astype(np.float64)
    matrix = matrix if transpose == "NO_TRANSPOSE" else matrix.swapaxes(-1, -2)
    product = matrix @ made if left_side else made @ matrix
    np.testing.assert_allclose(product, b.array.astype(np.float64), rtol=1e-4, atol=1e-4)


def test_cycles_by_hand() -> None:
    tiny, unit = load_machine("tiny"), load_machine("unit")
    seven = Tensor("f32", (7, 2, 2))
    # 8 + 408 + 202 + 102 slots a matrix; 7 matrices are two rounds of six workers.
    assert Cholesky(True, "f32").work(tiny, [seven], [seven]) == (6 * 2 * 720, 0)
    assert Cholesky(True, "f32").work(unit, [seven], [seven]) == (7 * 720, 0)
    half = Tensor("f16", (1, 4, 4))
    assert Cholesky(True, "f16").work(unit, [half], [half]) == (32 + 3180 + 382 + 426, 0)
    # f64 is 40 times as dear, on an assumption; bf16 is converted in and out.
    wide = Cholesky(True, "f64").work(tiny, [seven], [seven])
    assert wide == (6 * 2 * 720 * 40, 6 * 2 * 720 * 40)
    brain = Cholesky(True, "bf16").work(unit, [seven], [seven])
    assert brain == (7 * (720 + 2 * 4), 7 * (720 + 2 * 4))


def _solve_cycles(solve: TriangularSolve, b: tuple[int, ...], n: int) -> int:
    tensors = [Tensor("f32", (1, n, n)), Tensor("f32", b)]
    return solve.work(load_machine("unit"), tensors, tensors[1:]).cycles


def test_solve_cycles_by_hand() -> None:
    forward, backward = 24 + 720 - 126, 108 + 654 + 54
    lower = TriangularSolve(True, True, False, "NO_TRANSPOSE", "f32")
    upper = TriangularSolve(True, False, False, "NO_TRANSPOSE", "f32")
    turned = TriangularSolve(True, True, False, "TRANSPOSE", "f32")
    right = TriangularSolve(False, False, False, "NO_TRANSPOSE", "f32")
    assert _solve_cycles(lower, (1, 4, 3), 4) == 3 * forward
    assert _solve_cycles(upper, (1, 4, 3), 4) == 3 * backward
    assert _solve_cycles(turned, (1, 4, 3), 4) == 3 * backward
    assert _solve_cycles(right, (1, 3, 4), 4) == 3 * forward
    assert _solve_cycles(lower, (1, 4, 0), 4) == 0
    assert _solve_cycles(lower, (1, 0, 3), 0) == 0
