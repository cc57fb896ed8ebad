"""The LAPACK calls for which numpy has no routine, matrix by matrix through scipy.linalg.lapack."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.linear_algebra.lapack_batches import (
    INT32,
    flag,
    integer,
    letter,
)
from hloipu_runtime.kernels.native.settings import settings


@cache
def available() -> bool:
    """Tell whether scipy is installed."""
    return find_spec("scipy") is not None


@lru_cache(maxsize=64)
def _routine(name: str, dtype: np.dtype[Any]) -> Any:
    """Return scipy's wrapper of a routine for a dtype."""
    try:
        from scipy.linalg.lapack import get_lapack_funcs
    except ImportError as error:
        raise UnsupportedError(
            "E0459",
            f"the LAPACK routine {name} is computed by scipy, which is not installed",
            hint="pip install hloipu[lapack]",
        ) from error
    return get_lapack_funcs((name,), dtype=dtype)[0]


Kinds = Sequence[tuple[tuple[int, ...], np.dtype[Any]]]
"""Shape and type of each result of one matrix."""


def _of_each(
    name: str, x: Array, kinds: Kinds, of_one: Callable[[Any, tuple[int, ...]], Sequence[object]]
) -> list[Array]:
    """Return what a routine of the type of x makes of each of its matrices; zeros of none.

    `of_one` gets the routine and the place of a matrix in the batch.
    """
    batch = x.shape[:-2]
    results: list[Array] = [np.zeros((*batch, *shape), dtype) for shape, dtype in kinds]
    if x.size:
        routine = _routine(name, x.dtype)
        for at in np.ndindex(*batch):
            for array, value in zip(results, of_one(routine, at), strict=True):
                array[at] = value
    return results


def getrf(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """LU with partial pivoting: (a) to (lu, pivots counted from 1, info)."""
    (a,) = operands
    *batch, m, n = a.shape
    if not a.size:
        return [a.copy(), np.ones((*batch, min(m, n)), INT32), np.zeros(batch, INT32)]
    columns = np.array(a.swapaxes(-1, -2), order="C")  # as LAPACK has them, to be written over
    pivots, info = np.empty((*batch, min(m, n)), INT32), np.empty(batch, INT32)
    if not _factorised_natively(columns, pivots, info):
        routine, failed = _routine("getrf", a.dtype), info.reshape(-1)
        each = zip(columns.reshape(-1, n, m), pivots.reshape(-1, min(m, n)), strict=True)
        for k, (matrix, places) in enumerate(each):
            _, places[...], failed[k] = routine(matrix.T, 1)
        pivots += 1
    return [np.array(columns.swapaxes(-1, -2), order="C"), pivots, info]


def _factorised_natively(columns: Array, pivots: Array, info: Array) -> bool:
    if info.size < 2 or not settings().compiles:
        return False
    from hloipu_runtime.kernels.linear_algebra.lapack_loops import factorise_each

    return factorise_each(columns, pivots, info)


def geqrf(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """QR: (a) to (r over the reflectors, their factors)."""
    (a,) = operands
    m, n = a.shape[-2:]
    kinds = [((m, n), a.dtype), ((min(m, n),), a.dtype)]
    return _of_each("geqrf", a, kinds, lambda routine, at: routine(a[at])[:2])


def geqp3(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """QR with column pivoting: (a, all-free pivots) to (qr, pivots counted from 1, factors)."""
    a, pivots = operands
    if pivots.any():
        raise UnsupportedError(
            "E0459",
            "lapack geqp3 with columns fixed in advance (non-zero pivots) is not supported",
            hint="pass zeros as pivots, as jax.lax.linalg.qr does",
        )
    m, n = a.shape[-2:]
    kinds = [((m, n), a.dtype), ((n,), pivots.dtype), ((min(m, n),), a.dtype)]
    return _of_each("geqp3", a, kinds, lambda routine, at: routine(a[at])[:3])


def householder_product(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Columns of Q from reflectors (orgqr, ungqr): (a, factors) to (q)."""
    a, tau = operands
    name, kinds = "orgqr" if a.dtype.kind == "f" else "ungqr", [(a.shape[-2:], a.dtype)]
    return _of_each(name, a, kinds, lambda routine, at: routine(a[at], tau[at])[:1])


def multiply_by_q(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Q times c (ormqr, unmqr): (a, factors, c; left, transpose) to (q c, c q, with Q or Q^H)."""
    a, tau, c = operands
    real = a.dtype.kind == "f"
    side = "L" if flag(attributes, "left") else "R"
    trans = ("T" if real else "C") if flag(attributes, "transpose") else "N"
    count, workspace = tau.shape[-1], 64 * max(*c.shape[-2:], 1)

    def of_one(routine: Any, at: tuple[int, ...]) -> Sequence[object]:
        result, *_ = routine(side, trans, a[at][:, :count], tau[at], c[at], workspace)
        return (result,)

    return _of_each("ormqr" if real else "unmqr", c, [(c.shape[-2:], c.dtype)], of_one)


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
    m, n = a.shape[-2:]
    k = min(m, n)
    columns, rows = (k, k) if mode == "S" else (m, n)
    kinds = [((k,), a.real.dtype), ((m, columns), a.dtype), ((rows, n), a.dtype), ((), INT32)]

    def of_one(routine: Any, at: tuple[int, ...]) -> Sequence[object]:
        u, s, vh, info = routine(a[at], compute_uv=mode != "N", full_matrices=mode == "A")
        return s, 0 if mode == "N" else u, 0 if mode == "N" else vh, info

    return [a, *_of_each(name, a, kinds, of_one)]


def geev(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Eigenproblem: (a; compute_left, compute_right) to (w, left, right, info), all complex.

    For real `a` the eigenvalues come as two results, real and imaginary parts.
    """
    (a,) = operands
    n = a.shape[-1]
    left, right = (letter(attributes, f"compute_{side}") == "V" for side in ("left", "right"))
    real = a.dtype.kind == "f"
    complex_type: np.dtype[Any] = np.result_type(a.dtype, np.complex64)
    values = [((n,), a.dtype)] * (2 if real else 1)
    vectors = ((n, n), complex_type)

    def of_one(routine: Any, at: tuple[int, ...]) -> Sequence[object]:
        *w, vl, vr, info = routine(a[at], compute_vl=left, compute_vr=right)
        if real:
            vl, vr = (_unpacked(v, w[1]) for v in (vl, vr))
        return *w, vl if left else 0, vr if right else 0, info

    return _of_each("geev", a, [*values, vectors, vectors, ((), INT32)], of_one)


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
    n = a.shape[-1]
    vectors = letter(attributes, "mode") == "V"
    values = [((n,), a.dtype)] * (2 if a.dtype.kind == "f" else 1)
    matrix = ((n, n), a.dtype)

    def of_one(routine: Any, at: tuple[int, ...]) -> Sequence[object]:
        t, count, *w, z, _, info = routine(_select_none, a[at], compute_v=vectors)
        return t, z if vectors else 0, *w, count, info

    return _of_each("gees", a, [matrix, matrix, *values, ((), INT32), ((), INT32)], of_one)


def _select_none(*_: object) -> bool:
    return False


def syevd(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Symmetric or Hermitian eigenproblem: (a; mode V or N, uplo) to (v, w, info)."""
    (a,) = operands
    n = a.shape[-1]
    vectors, lower = letter(attributes, "mode") == "V", letter(attributes, "uplo") == "L"

    def of_one(routine: Any, at: tuple[int, ...]) -> Sequence[object]:
        w, v, info = routine(a[at], compute_v=vectors, lower=lower)
        return v if vectors else a[at], w, info

    kinds = [((n, n), a.dtype), ((n,), a.real.dtype), ((), INT32)]
    return _of_each("syevd" if a.dtype.kind == "f" else "heevd", a, kinds, of_one)


def gehrd(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Hessenberg form: (a; low, high counted from 1) to (h over the reflectors, factors, info)."""
    (a,) = operands
    low, high = integer(attributes, "low") - 1, integer(attributes, "high") - 1
    n = a.shape[-1]
    kinds = [((n, n), a.dtype), ((max(n - 1, 0),), a.dtype), ((), INT32)]
    return _of_each("gehrd", a, kinds, lambda routine, at: routine(a[at], lo=low, hi=high))


def tridiagonalise(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Tridiagonal form (sytrd, hetrd): (a; uplo) to (reflectors, diagonal, off, factors, info)."""
    (a,) = operands
    lower = letter(attributes, "uplo") == "L"
    n, real = a.shape[-1], a.real.dtype
    off = (max(n - 1, 0),)
    kinds = [((n, n), a.dtype), ((n,), real), (off, real), (off, a.dtype), ((), INT32)]
    name = "sytrd" if a.dtype.kind == "f" else "hetrd"
    return _of_each(name, a, kinds, lambda routine, at: routine(a[at], lower=lower))


def gtsv(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Tridiagonal solve: (lower, diagonal, upper, b) to (three of undefined value, x, info).

    The diagonals are all of length n; the first of the lower and the last of the upper are unused.
    """
    lower, diagonal, upper, b = operands

    def of_one(routine: Any, at: tuple[int, ...]) -> Sequence[object]:
        *_, x, info = routine(lower[at][1:], diagonal[at], upper[at][:-1], b[at])
        return x, info

    return [
        lower, diagonal, upper,
        *_of_each("gtsv", b, [(b.shape[-2:], b.dtype), ((), INT32)], of_one),
    ]  # fmt: skip
