import sys
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.errors import UnsupportedError, UsageError
from hloipu_runtime.kernels.linear_algebra import lapack_loops, lapack_scipy
from hloipu_runtime.kernels.linear_algebra.lapack import LAPACK_TARGETS
from hloipu_runtime.kernels.native.settings import Settings, is_there, native_kernels
from tests.support.native_cases import AT_ONCE

TYPES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
ROUTINES = "potrf trsm gesdd getrf geqrf geqp3 gesvd geev gees gehrd gtsv".split()


def matrices(prefix: Any, *shape: Any) -> Any:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape)
    if prefix in "cz":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(TYPES[prefix])


def adjoint(x: Any) -> Any:
    return x.conj().swapaxes(-1, -2)


def call(prefix: Any, routine: Any, *operands: Any, **attributes: Any) -> Any:
    results = LAPACK_TARGETS[f"lapack_{prefix}{routine}_ffi"](operands, attributes)
    for result in results:
        assert isinstance(result, np.ndarray)
    return results


def close(prefix: Any, actual: Any, expected: Any) -> Any:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-4 if prefix in "sc" else 1e-11)


def test_the_targets_are_those_of_jaxlib() -> None:
    real = ["syevd", "sytrd", "orgqr", "ormqr"]
    complex_ = ["heevd", "hetrd", "ungqr", "unmqr"]
    expected = {f"lapack_{p}{r}_ffi" for p in "sdcz" for r in ROUTINES}
    expected |= {f"lapack_{p}{r}_ffi" for p in "sd" for r in real}
    expected |= {f"lapack_{p}{r}_ffi" for p in "cz" for r in complex_}
    assert set(LAPACK_TARGETS) == expected


@pytest.mark.parametrize("prefix", TYPES)
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
class TestFactorisations:
    def test_cholesky(self, prefix: Any, lead: Any) -> None:
        x = matrices(prefix, *lead, 4, 4)
        a = x @ adjoint(x) + np.eye(4, dtype=x.dtype)
        for uplo, code in (("L", 76), ("U", "U")):
            factor, info = call(prefix, "potrf", a, uplo=code)
            assert info.shape == lead
            assert info.dtype == np.int32
            assert not info.any()
            triangle = np.tril(factor) if uplo == "L" else np.triu(factor)
            product = triangle @ adjoint(triangle) if uplo == "L" else adjoint(triangle) @ triangle
            close(prefix, product, a)
            other = np.triu if uplo == "L" else np.tril
            np.testing.assert_array_equal(
                other(factor, 1 if uplo == "L" else -1), other(a, 1 if uplo == "L" else -1)
            )

    def test_lu(self, prefix: Any, lead: Any) -> None:
        for m, n in ((4, 4), (5, 3), (3, 5)):
            a = matrices(prefix, *lead, m, n)
            lu, pivots, info = call(prefix, "getrf", a)
            assert pivots.dtype == np.int32
            assert not info.any()
            k = min(m, n)
            lower = np.tril(lu[..., :k], -1) + np.eye(m, k, dtype=a.dtype)
            product = lower @ np.triu(lu[..., :k, :])
            for at in np.ndindex(*lead):
                rows = product[at]
                for i in reversed(range(k)):
                    rows[[i, pivots[at][i] - 1]] = rows[[pivots[at][i] - 1, i]]
                close(prefix, rows, a[at])

    def test_qr(self, prefix: Any, lead: Any) -> None:
        product, multiply = ("orgqr", "ormqr") if prefix in "sd" else ("ungqr", "unmqr")
        a = matrices(prefix, *lead, 5, 3)
        qr, tau = call(prefix, "geqrf", a)
        (q,) = call(prefix, product, qr, tau)
        close(prefix, q @ np.triu(qr[..., :3, :]), a)
        close(prefix, adjoint(q) @ q, np.broadcast_to(np.eye(3, dtype=q.dtype), (*lead, 3, 3)))
        (rotated,) = call(prefix, multiply, qr, tau, a, left=True, transpose=True)
        close(prefix, rotated, np.triu(qr))
        (back,) = call(prefix, multiply, qr, tau, rotated, left=True, transpose=False)
        close(prefix, back, a)
        (right,) = call(prefix, multiply, qr, tau, adjoint(a), left=False, transpose=False)
        close(prefix, right, adjoint(rotated))

    def test_pivoted_qr(self, prefix: Any, lead: Any) -> None:
        a = matrices(prefix, *lead, 5, 3)
        qr, pivots, tau = call(prefix, "geqp3", a, np.zeros((*lead, 3), np.int32))
        (q,) = call(prefix, "orgqr" if prefix in "sd" else "ungqr", qr, tau)
        permuted = np.take_along_axis(a, (pivots - 1)[..., None, :], -1)
        close(prefix, q @ np.triu(qr[..., :3, :]), permuted)

    def test_singular_values(self, prefix: Any, lead: Any) -> None:
        for routine in ("gesdd", "gesvd"):
            for m, n in ((4, 4), (5, 3), (3, 5)):
                a = matrices(prefix, *lead, m, n)
                k = min(m, n)
                for mode, columns, rows in (("A", m, n), ("S", k, k), ("N", m, n)):
                    _, s, u, vh, info = call(prefix, routine, a, mode=ord(mode))
                    assert u.shape == (*lead, m, columns)
                    assert vh.shape == (*lead, rows, n)
                    assert s.dtype == a.real.dtype
                    assert not info.any()
                    close(prefix, s, np.linalg.svd(a.astype(np.complex128), compute_uv=False))
                    if mode != "N":
                        close(prefix, (u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a)

    def test_symmetric_eigenproblem_reads_one_triangle(self, prefix: Any, lead: Any) -> None:
        x = matrices(prefix, *lead, 4, 4)
        a = x + adjoint(x)
        for uplo, half in (("L", np.tril), ("U", np.triu)):
            name = "syevd" if prefix in "sd" else "heevd"
            v, w, info = call(prefix, name, half(a), mode=86, uplo=ord(uplo))
            assert not info.any()
            close(prefix, v * w[..., None, :], a @ v)
            _, w_only, _ = call(prefix, name, half(a), mode=78, uplo=ord(uplo))
            close(prefix, w_only, w)

    def test_eigenproblem(self, prefix: Any, lead: Any) -> None:
        a = matrices(prefix, *lead, 5, 5)
        *w, left, right, info = call(prefix, "geev", a, compute_left=86, compute_right=86)
        values = w[0] + 1j * w[1] if prefix in "sd" else w[0]
        assert not info.any()
        assert left.dtype == right.dtype == np.result_type(a.dtype, np.complex64)
        close(prefix, a @ right, right * values[..., None, :])
        close(prefix, adjoint(left) @ a, values[..., :, None] * adjoint(left))
        *_, left, right, _ = call(prefix, "geev", a, compute_left=78, compute_right=78)
        assert left.shape == right.shape == a.shape

    def test_schur(self, prefix: Any, lead: Any) -> None:
        a = matrices(prefix, *lead, 4, 4)
        t, z, *w, count, info = call(prefix, "gees", a, mode=86, sort=78)
        assert len(w) == (2 if prefix in "sd" else 1)
        assert not info.any()
        assert not count.any()
        close(prefix, z @ t @ adjoint(z), a)

    def test_hessenberg(self, prefix: Any, lead: Any) -> None:
        a = matrices(prefix, *lead, 5, 5)
        h, tau, info = call(prefix, "gehrd", a, low=1, high=5)
        assert tau.shape == (*lead, 4)
        assert not info.any()
        # A similarity transform keeps the trace and the norm.
        upper = np.triu(h, -1)
        close(prefix, np.trace(upper, axis1=-2, axis2=-1), np.trace(a, axis1=-2, axis2=-1))
        close(prefix, np.linalg.norm(upper, axis=(-2, -1)), np.linalg.norm(a, axis=(-2, -1)))

    def test_tridiagonal(self, prefix: Any, lead: Any) -> None:
        x = matrices(prefix, *lead, 5, 5)
        a = x + adjoint(x)
        for uplo in "LU":
            name = "sytrd" if prefix in "sd" else "hetrd"
            _, d, e, tau, info = call(prefix, name, a, uplo=ord(uplo))
            assert d.dtype == e.dtype == a.real.dtype
            assert tau.shape == (*lead, 4)
            assert not info.any()
            for at in np.ndindex(*lead):
                form = np.diag(d[at]) + np.diag(e[at], 1) + np.diag(e[at], -1)
                close(prefix, np.linalg.eigvalsh(form), np.linalg.eigvalsh(a[at]))

    def test_solves(self, prefix: Any, lead: Any) -> None:
        a, b = matrices(prefix, *lead, 4, 4), matrices(prefix, *lead, 4, 2)
        a = a + 4 * np.eye(4, dtype=a.dtype)
        for uplo, half in (("L", np.tril), ("U", np.triu)):
            (x,) = call(prefix, "trsm", a, b, side=76, uplo=ord(uplo), trans_x=67, diag=78)
            close(prefix, adjoint(half(a)) @ x, b)
        low, main, up = (np.array(np.moveaxis(a, -1, 0)[i]) for i in range(3))
        main = main + 5
        *_, x, info = call(prefix, "gtsv", low, main, up, b)
        assert not info.any()
        product = main[..., None] * x
        product[..., 1:, :] += low[..., 1:, None] * x[..., :-1, :]
        product[..., :-1, :] += up[..., :-1, None] * x[..., 1:, :]
        close(prefix, product, b)


@pytest.mark.skipif(not is_there(), reason="llvmlite is not installed")
@pytest.mark.parametrize("prefix", TYPES)
def test_one_compiled_loop_gives_the_bits_of_a_call_for_each_matrix(prefix: str) -> None:
    for shape in ((64, 4, 4), (3, 5, 7, 4), (2, 4, 9), (2, 40, 40)):
        a = matrices(prefix, *shape)
        a[..., 0, :] *= np.arange(shape[-1]) % 2
        a[0, ..., 1] = 0  # not to be inverted
        with native_kernels(Settings(is_on=False)):
            wanted = call(prefix, "getrf", a)
        with native_kernels(Settings(keeps=False)):
            assert lapack_loops._kernel().code_for(AT_ONCE)
            assert lapack_loops._address(prefix) is not None
            made = call(prefix, "getrf", a)
        assert wanted[2].any()
        for x, y in zip(made, wanted, strict=True):
            assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


def test_failures_are_reported_matrix_by_matrix() -> None:
    good, bad = np.eye(3), -np.eye(3)
    factor, info = call("d", "potrf", np.stack([good, bad]), uplo=76)
    assert info[0] == 0
    assert info[1] > 0
    np.testing.assert_array_equal(factor[0], good)
    _, _, info = call("d", "getrf", np.zeros((2, 2)))
    assert info > 0


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0), (3, 0), (0, 3)])
def test_no_elements(shape: Any) -> None:
    a = np.zeros(shape)
    _, s, u, vh, info = call("d", "gesdd", a, mode=65)
    assert s.shape == (*shape[:-2], min(shape[-2:]))
    assert u.shape == (*shape[:-1], shape[-2])
    assert vh.shape == (*shape[:-2], shape[-1], shape[-1])
    assert info.shape == shape[:-2]


def test_a_bad_attribute_is_named() -> None:
    with pytest.raises(UsageError, match="uplo"):
        call("d", "potrf", np.eye(2))
    with pytest.raises(UsageError, match="left"):
        call("d", "ormqr", np.eye(2), np.zeros(2), np.eye(2), left="yes", transpose=False)


def test_without_scipy_numpy_does_what_it_can(monkeypatch: Any) -> None:
    monkeypatch.setattr(lapack_scipy, "available", lambda: False)
    monkeypatch.setitem(sys.modules, "scipy.linalg.lapack", None)
    monkeypatch.setattr(lapack_scipy, "_routine", lapack_scipy._routine.__wrapped__)  # not cached
    a = np.stack([matrices("d", 4, 3), np.full((4, 3), np.nan)])
    _, s, u, vh, info = call("d", "gesdd", a, mode=83)
    close("d", (u[0] * s[0]) @ vh[0], a[0])
    assert np.isnan(s[1]).all()
    assert info.tolist() == [0, 1]
    _, s_only, _, _, _ = call("d", "gesdd", a[:1], mode=78)
    close("d", s_only, s[:1])
    square = matrices("z", 3, 3)
    square = square + adjoint(square)
    v, w, _ = call("z", "heevd", square, mode=86, uplo=76)
    close("z", v * w, square @ v)
    with pytest.raises(UnsupportedError, match="scipy"):
        call("d", "getrf", np.eye(2))
