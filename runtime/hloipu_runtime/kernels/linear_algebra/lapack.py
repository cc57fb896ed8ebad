"""Value semantics of the LAPACK custom calls in CPU programs: target name to function.

Targets and their operands, results and attributes: jax-ml/jax: jax/_src/lax/linalg.py and
jaxlib/cpu/lapack_kernels.cc. A target is `lapack_` + one of s d c z + routine + `_ffi`. Every
function maps whole batches; results that LAPACK leaves undefined are copies of inputs, zeros or
NaN. Cholesky and triangular solve are our own. All else is scipy's LAPACK, which jaxlib calls too,
imported when first needed; without it numpy computes gesdd, syevd and heevd, whose vectors may
then differ from XLA's by a sign (a phase, if complex), and the rest is unsupported.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.linear_algebra import lapack_scipy
from hloipu_runtime.kernels.linear_algebra.factorisations import cholesky, triangular_solve
from hloipu_runtime.kernels.linear_algebra.lapack_batches import info_of, letter

LapackFunction = Callable[[Sequence[Array], Mapping[str, object]], list[Array]]


def potrf(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Cholesky: (a; uplo) to (factor, info); the other triangle of `a` is left as it was."""
    (a,) = operands
    lower = letter(attributes, "uplo") == "L"
    factor = cholesky(a, lower, _ELEMENT_TYPES[a.dtype])
    failed = np.isnan(factor[..., :1, :1]).any(axis=(-1, -2))
    np.copyto(factor, a, where=_unread(a.shape[-1], lower))
    return [factor, np.asarray(failed).astype(np.int32)]


@lru_cache(maxsize=64)
def _unread(n: int, lower: bool) -> Array:
    """Return where the triangle is that a factorisation does not read."""
    strict = np.tri(n, k=-1, dtype=np.bool_)
    return strict.T if lower else strict


def trsm(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Triangular solve: (a, b; side, uplo, trans_x, diag) to (x)."""
    a, b = operands
    transpose = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}
    solution = triangular_solve(
        a,
        b,
        _ELEMENT_TYPES[b.dtype],
        left_side=letter(attributes, "side") == "L",
        lower=letter(attributes, "uplo") == "L",
        unit_diagonal=letter(attributes, "diag") == "U",
        transpose_a=transpose[letter(attributes, "trans_x")],
    )
    return [solution]


def gesdd(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Singular values: (a; mode A, S or N) to (a, s, u, v^H, info)."""
    if lapack_scipy.available():
        return lapack_scipy.gesdd(operands, attributes)
    (a,) = operands
    mode = letter(attributes, "mode")
    *batch, m, n = a.shape
    k = min(m, n)
    columns, rows = (k, k) if mode == "S" else (m, n)
    real = a.real.dtype
    if a.size == 0 or mode == "N":
        u, vh = np.zeros((*batch, m, columns), a.dtype), np.zeros((*batch, rows, n), a.dtype)
        if a.size == 0:
            return [a, np.zeros((*batch, k), real), u, vh, info_of(batch)]

    def decompose(matrices: Array) -> list[Array]:
        if mode == "N":
            return [np.linalg.svd(matrices, compute_uv=False)]
        left, s, right = np.linalg.svd(matrices, full_matrices=mode == "A")
        return [s, left, right]

    shapes = [(k,), (m, columns), (rows, n)]
    results, info = _or_nan(decompose, a, shapes[:1] if mode == "N" else shapes, real)
    return [a, *results, u, vh, info] if mode == "N" else [a, *results, info]


def syevd(operands: Sequence[Array], attributes: Mapping[str, object]) -> list[Array]:
    """Symmetric or Hermitian eigenproblem: (a; mode V or N, uplo) to (v, w, info)."""
    if lapack_scipy.available():
        return lapack_scipy.syevd(operands, attributes)
    (a,) = operands
    *batch, n, _ = a.shape
    real = a.real.dtype
    if a.size == 0:
        return [a, np.zeros((*batch, n), real), info_of(batch)]
    uplo: Literal["L", "U"] = "L" if letter(attributes, "uplo") == "L" else "U"
    if letter(attributes, "mode") == "N":
        (w,), info = _or_nan(lambda x: [np.linalg.eigvalsh(x, uplo)], a, [(n,)], real)
        return [a, w, info]

    def decompose(matrices: Array) -> list[Array]:
        w, v = np.linalg.eigh(matrices, uplo)
        return [w, v]

    (w, v), info = _or_nan(decompose, a, [(n,), (n, n)], real)
    return [v, w, info]


_ELEMENT_TYPES = {np.dtype(t.storage): t.name for t in ELEMENT_TYPES.values() if t.bits >= 32}
"""The types that are stored as they are."""


def _or_nan(
    decompose: Callable[[Array], list[Array]],
    a: Array,
    shapes: list[tuple[int, ...]],
    real: np.dtype[Any],
) -> tuple[list[Array], Array]:
    """Decompose a batch; matrices on which LAPACK fails get NaN results and info 1.

    `shapes` are the results' shapes for one matrix, the first result (the values) being real.
    """
    batch = a.shape[:-2]
    try:
        with np.errstate(all="ignore"):
            return decompose(a), info_of(batch)
    except np.linalg.LinAlgError:
        pass
    info = info_of(batch)
    results: list[Array] = [
        np.full((*batch, *shape), np.nan, real if i == 0 else a.dtype)
        for i, shape in enumerate(shapes)
    ]
    for at in np.ndindex(*batch):
        try:
            with np.errstate(all="ignore"):
                parts = decompose(a[at])
        except np.linalg.LinAlgError:
            info[at] = 1
            continue
        for result, part in zip(results, parts, strict=True):
            result[at] = part
    return results, info


def _table() -> dict[str, LapackFunction]:
    both: dict[str, LapackFunction] = {
        "potrf": potrf,
        "trsm": trsm,
        "gesdd": gesdd,
        "getrf": lapack_scipy.getrf,
        "geqrf": lapack_scipy.geqrf,
        "geqp3": lapack_scipy.geqp3,
        "gesvd": lapack_scipy.gesvd,
        "geev": lapack_scipy.geev,
        "gees": lapack_scipy.gees,
        "gehrd": lapack_scipy.gehrd,
        "gtsv": lapack_scipy.gtsv,
    }
    real: dict[str, LapackFunction] = {
        "syevd": syevd,
        "sytrd": lapack_scipy.tridiagonalise,
        "orgqr": lapack_scipy.householder_product,
        "ormqr": lapack_scipy.multiply_by_q,
    }
    complex_: dict[str, LapackFunction] = {
        "heevd": syevd,
        "hetrd": lapack_scipy.tridiagonalise,
        "ungqr": lapack_scipy.householder_product,
        "unmqr": lapack_scipy.multiply_by_q,
    }
    table = {f"lapack_{p}{name}_ffi": f for p in "sdcz" for name, f in both.items()}
    table |= {f"lapack_{p}{name}_ffi": f for p in "sd" for name, f in real.items()}
    table |= {f"lapack_{p}{name}_ffi": f for p in "cz" for name, f in complex_.items()}
    return table


LAPACK_TARGETS: dict[str, LapackFunction] = _table()
"""Custom-call target to function(operands, attributes) -> results, all in storage form.

Attributes are the values of the call's backend_config by name: integers (letters as their code, as
in `uplo = 76 : ui8`, or as one-letter strings) and booleans.
"""
