"""The LAPACK calls for which numpy has no routine, matrix by matrix through scipy.linalg.lapack."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.linear_algebra.lapack_batches import (
    INT32,
    Results,
    flag,
    integer,
    letter,
)


@cache
def available() -> bool:
    """Tell whether scipy is installed."""
    return find_spec("scipy") is not None


def _routine(name: str, x: Array) -> Any:
    """Return scipy's wrapper of a routine for the dtype of x."""
    try:
        from scipy.linalg.lapack import get_lapack_funcs
    except ImportError as error:
        raise UnsupportedError(
            "E0459",
            f"the LAPACK routine {name} is computed by scipy, which is not installed",
            hint="pip install hloipu[lapack]",
        ) from error
    return get_lapack_funcs((name,), (x,))[0]


def getrf(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """LU with partial pivoting: (a) to (lu, pivots counted from 1, info)."""
    (a,) = operands
    *batch, m, n = a.shape
    results = Results(batch, ((m, n), a.dtype), ((min(m, n),), INT32), ((), INT32))
    if a.size:
        routine = _routine("getrf", a)
        for at in np.ndindex(*batch):
            lu, pivots, info = routine(a[at])
            results.store(at, lu, pivots + 1, info)
    return results.arrays


def geqrf(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """QR: (a) to (r over the reflectors, their factors)."""
    (a,) = operands
    *batch, m, n = a.shape
    results = Results(batch, ((m, n), a.dtype), ((min(m, n),), a.dtype))
    if a.size:
        routine = _routine("geqrf", a)
        for at in np.ndindex(*batch):
            qr, tau, _, _ = routine(a[at])
            results.store(at, qr, tau)
    return results.arrays


def geqp3(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """QR with column pivoting: (a, all-free pivots) to (qr, pivots counted from 1, factors)."""
    a, pivots = operands
    if pivots.any():
        raise UnsupportedError(
            "E0459",
            "lapack geqp3 with columns fixed in advance (non-zero pivots) is not supported",
            hint="pass zeros as pivots, as jax.lax.linalg.qr does",
        )
    *batch, m, n = a.shape
    results = Results(batch, ((m, n), a.dtype), ((n,), pivots.dtype), ((min(m, n),), a.dtype))
    if a.size:
        routine = _routine("geqp3", a)
        for at in np.ndindex(*batch):
            qr, order, tau, _, _ = routine(a[at])
            results.store(at, qr, order, tau)
    return results.arrays


def householder_product(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Columns of Q from reflectors (orgqr, ungqr): (a, factors) to (q)."""
    a, tau = operands
    *batch, m, n = a.shape
    results = Results(batch, ((m, n), a.dtype))
    if a.size:
        routine = _routine("orgqr" if a.dtype.kind == "f" else "ungqr", a)
        for at in np.ndindex(*batch):
            results.store(at, routine(a[at], tau[at])[0])
    return results.arrays


def multiply_by_q(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Q times c (ormqr, unmqr): (a, factors, c; left, transpose) to (q c, c q, with Q or Q^H)."""
    a, tau, c = operands
    *batch, m, n = c.shape
    results = Results(batch, ((m, n), c.dtype))
    real = a.dtype.kind == "f"
    side = "L" if flag(attributes, "left") else "R"
    trans = ("T" if real else "C") if flag(attributes, "transpose") else "N"
    if c.size:
        routine = _routine("ormqr" if real else "unmqr", a)
        count = tau.shape[-1]
        workspace = 64 * max(m, n, 1)
        for at in np.ndindex(*batch):
            reflectors = a[at][:, :count]
            results.store(at, routine(side, trans, reflectors, tau[at], c[at], workspace)[0])
    return results.arrays


def gesvd(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Singular values by QR iteration: (a; mode A, S or N) to (a, s, u, v^H, info)."""
    return _singular_values("gesvd", operands, attributes)


def gesdd(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Singular values by divide and conquer: (a; mode A, S or N) to (a, s, u, v^H, info)."""
    return _singular_values("gesdd", operands, attributes)


def _singular_values(
    name: str, operands: Sequence[Array], attributes: Mapping[str, object]
) -> list[Array]:
    (a,) = operands
    mode = letter(attributes, "mode")
    *batch, m, n = a.shape
    k = min(m, n)
    columns, rows = (k, k) if mode == "S" else (m, n)
    results = Results(
        batch, ((k,), a.real.dtype), ((m, columns), a.dtype), ((rows, n), a.dtype), ((), INT32)
    )
    if a.size:
        routine = _routine(name, a)
        for at in np.ndindex(*batch):
            u, s, vh, info = routine(a[at], compute_uv=mode != "N", full_matrices=mode == "A")
            results.store(at, s, 0 if mode == "N" else u, 0 if mode == "N" else vh, info)
    return [a, *results.arrays]


def geev(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Eigenproblem: (a; compute_left, compute_right) to (w, left, right, info), all complex.

    For real `a` the eigenvalues come as two results, real and imaginary parts.
    """
    (a,) = operands
    *batch, n, _ = a.shape
    left, right = (letter(attributes, f"compute_{side}") == "V" for side in ("left", "right"))
    real = a.dtype.kind == "f"
    complex_type: np.dtype[Any] = np.result_type(a.dtype, np.complex64)
    values = [((n,), a.dtype)] * (2 if real else 1)
    vectors = ((n, n), complex_type)
    results = Results(batch, *values, vectors, vectors, ((), INT32))
    if a.size:
        routine = _routine("geev", a)
        for at in np.ndindex(*batch):
            *w, vl, vr, info = routine(a[at], compute_vl=left, compute_vr=right)
            if real:
                vl, vr = (_unpacked(v, w[1]) for v in (vl, vr))
            results.store(at, *w, vl if left else 0, vr if right else 0, info)
    return results.arrays


def _unpacked(packed: Array, imaginary: Array) -> Array:
    """Return complex eigenvectors from LAPACK's form: a conjugate pair as (real, imaginary)."""
    vectors: Array = packed.astype(np.result_type(packed.dtype, np.complex64))
    first = np.flatnonzero(imaginary > 0)
    if packed.shape[-1] == len(imaginary):
        pair = packed[:, first] + 1j * packed[:, first + 1]
        vectors[:, first], vectors[:, first + 1] = pair, pair.conj()
    return vectors


def gees(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Schur form: (a; mode V or N, sort N) to (t, z, eigenvalues, selected count, info).

    For real `a` the eigenvalues come as two results, real and imaginary parts.
    """
    (a,) = operands
    if letter(attributes, "sort") != "N":
        raise UnsupportedError(
            "E0459",
            "lapack gees that sorts eigenvalues needs a callback, which HLO text cannot carry",
            hint="use sort_eig_vals=False",
        )
    *batch, n, _ = a.shape
    vectors = letter(attributes, "mode") == "V"
    values = [((n,), a.dtype)] * (2 if a.dtype.kind == "f" else 1)
    matrix = ((n, n), a.dtype)
    results = Results(batch, matrix, matrix, *values, ((), INT32), ((), INT32))
    if a.size:
        routine = _routine("gees", a)
        for at in np.ndindex(*batch):
            t, count, *w, z, _, info = routine(_select_none, a[at], compute_v=vectors)
            results.store(at, t, z if vectors else 0, *w, count, info)
    return results.arrays


def _select_none(*_: object) -> bool:
    return False


def syevd(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Symmetric or Hermitian eigenproblem: (a; mode V or N, uplo) to (v, w, info)."""
    (a,) = operands
    *batch, n, _ = a.shape
    vectors, lower = letter(attributes, "mode") == "V", letter(attributes, "uplo") == "L"
    results = Results(batch, ((n, n), a.dtype), ((n,), a.real.dtype), ((), INT32))
    if a.size:
        routine = _routine("syevd" if a.dtype.kind == "f" else "heevd", a)
        for at in np.ndindex(*batch):
            w, v, info = routine(a[at], compute_v=vectors, lower=lower)
            results.store(at, v if vectors else a[at], w, info)
    return results.arrays


def gehrd(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Hessenberg form: (a; low, high counted from 1) to (h over the reflectors, factors, info)."""
    (a,) = operands
    low, high = integer(attributes, "low"), integer(attributes, "high")
    *batch, n, _ = a.shape
    results = Results(batch, ((n, n), a.dtype), ((max(n - 1, 0),), a.dtype), ((), INT32))
    if a.size:
        routine = _routine("gehrd", a)
        for at in np.ndindex(*batch):
            results.store(at, *routine(a[at], lo=low - 1, hi=high - 1))
    return results.arrays


def tridiagonalise(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Tridiagonal form (sytrd, hetrd): (a; uplo) to (reflectors, diagonal, off, factors, info)."""
    (a,) = operands
    lower = letter(attributes, "uplo") == "L"
    *batch, n, _ = a.shape
    real, off = a.real.dtype, max(n - 1, 0)
    results = Results(
        batch, ((n, n), a.dtype), ((n,), real), ((off,), real), ((off,), a.dtype), ((), INT32)
    )
    if a.size:
        routine = _routine("sytrd" if a.dtype.kind == "f" else "hetrd", a)
        for at in np.ndindex(*batch):
            results.store(at, *routine(a[at], lower=lower))
    return results.arrays


def gtsv(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Tridiagonal solve: (lower, diagonal, upper, b) to (three of undefined value, x, info).

    The diagonals are all of length n; the first of the lower and the last of the upper are unused.
    """
    lower, diagonal, upper, b = operands
    *batch, n, width = b.shape
    results = Results(batch, ((n, width), b.dtype), ((), INT32))
    if b.size:
        routine = _routine("gtsv", b)
        for at in np.ndindex(*batch):
            *_, x, info = routine(lower[at][1:], diagonal[at], upper[at][:-1], b[at])
            results.store(at, x, info)
    return [lower, diagonal, upper, *results.arrays]
