"""LAPACK calls: the law, residuals in f64, and cycles worked out by hand."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Array, Tensor
from hloipu_runtime.codelets.dense.custom import LapackCall
from hloipu_runtime.kernels.linear_algebra.lapack import LAPACK_TARGETS
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, close_values

RNG = np.random.default_rng(10)
NEAR = close_values(1e-4, 1e-4)


def _matrices(*shape: int) -> Given:
    return Given("f32", RNG.standard_normal(shape).astype(np.float32))


def test_singular_values() -> None:
    a = _matrices(3, 2, 4, 3)
    results = [
        a.tensor,
        Tensor("f32", (3, 2, 3)),
        Tensor("f32", (3, 2, 4, 3)),
        Tensor("f32", (3, 2, 3, 3)),
        Tensor("s32", (3, 2)),
    ]
    call = LapackCall("lapack_sgesdd_ffi", (("mode", "S"),))
    _, s, u, vh, info = check_every_split(call, [a], results, same=NEAR)
    product = (u.astype(np.float64) * s[..., np.newaxis, :]) @ vh
    np.testing.assert_allclose(product, a.array.astype(np.float64), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(info, np.zeros((3, 2), np.int32))


def test_lu_of_one_matrix() -> None:
    pytest.importorskip("scipy")
    a = _matrices(4, 4)
    results = [a.tensor, Tensor("s32", (4,)), Tensor("s32", ())]
    call = LapackCall("lapack_sgetrf_ffi", ())
    lu, pivots, _ = check_every_split(call, [a], results, same=NEAR)
    rows = a.array.astype(np.float64)
    for place, pivot in enumerate(pivots - 1):
        rows[[place, pivot]] = rows[[pivot, place]]
    product = (np.tril(lu, -1) + np.eye(4)) @ np.triu(lu)
    np.testing.assert_allclose(product, rows, rtol=1e-5, atol=1e-5)


def test_tridiagonal_solve() -> None:
    pytest.importorskip("scipy")
    lower, upper, b = _matrices(3, 5), _matrices(3, 5), _matrices(3, 5, 2)
    diagonal = Given("f32", _matrices(3, 5).array + np.float32(9))
    operands = [lower, diagonal, upper, b]
    results = [*(x.tensor for x in operands), Tensor("s32", (3,))]
    call = LapackCall("lapack_sgtsv_ffi", ())
    solution = check_every_split(call, operands, results, same=NEAR)[3]
    product = diagonal.array[..., np.newaxis] * solution
    product[:, 1:] += lower.array[:, 1:, np.newaxis] * solution[:, :-1]
    product[:, :-1] += upper.array[:, :-1, np.newaxis] * solution[:, 1:]
    np.testing.assert_allclose(product, b.array, rtol=1e-4, atol=1e-4)


def _cycles(target: str, *shapes: tuple[int, ...], machine: str = "unit") -> tuple[int, int]:
    tensors = [Tensor("f32", shape) for shape in shapes]
    work = LapackCall(target, ()).work(load_machine(machine), tensors, tensors)
    return work.cycles, work.assumed_cycles


def test_cycles_by_hand() -> None:
    assert _cycles("lapack_spotrf_ffi", (7, 2, 2), machine="tiny") == (6 * 2 * 720, 0)
    assert _cycles("lapack_strsm_ffi", (1, 4, 4), (1, 4, 3)) == (3 * (24 + 720 - 126), 0)
    lu = 2 * (4 * 3 * 3 + 100 * 12 + 700 + 100)
    assert _cycles("lapack_sgetrf_ffi", (2, 4, 3)) == (lu, lu)
    # Twice, in double precision: 2 * 36 and the rest, 40 times as dear on `tiny`.
    qr = 6 * 40 * (72 + 2000)
    assert _cycles("lapack_dgeqrf_ffi", (2, 4, 3), machine="tiny") == (qr, qr)
    assert _cycles("lapack_sgeev_ffi", (0, 4, 4)) == (0, 0)


@pytest.mark.parametrize("target", sorted(LAPACK_TARGETS))
def test_every_routine_has_a_cost(target: str) -> None:
    small, large = (
        [(2, n)] * 3 + [(2, n, 3)] if "gtsv" in target else _operands(target, n) for n in (3, 9)
    )
    assert 0 < _cycles(target, *small)[0] < _cycles(target, *large)[0]


def _operands(target: str, n: int) -> list[tuple[int, ...]]:
    matrix = (2, n, n)
    if "trsm" in target:
        return [matrix, matrix]
    return [matrix, (2, n), matrix] if "mqr" in target else [matrix]


def test_split_values_are_whole_values(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Array] = []

    def routine(operands: list[Array], attributes: dict[str, object]) -> list[Array]:
        calls.append(operands[0])
        return [operands[0] * attributes["factor"]]

    monkeypatch.setitem(LAPACK_TARGETS, "lapack_sgetrf_ffi", routine)
    a = _matrices(5, 2, 2)
    call = LapackCall("lapack_sgetrf_ffi", (("factor", 2),))
    (made,) = check_every_split(call, [a], [a.tensor])
    np.testing.assert_array_equal(made, 2 * a.array)
    assert all(x.shape[-2:] == (2, 2) for x in calls)
