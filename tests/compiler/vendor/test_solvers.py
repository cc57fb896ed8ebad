"""Factorisations as JAX lowers them for GPUs and TPUs: what they gave multiplies to the matrix."""

from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_compiler.formulas.call import FormulaError

pytest.importorskip("jax")
import jax
import jax.numpy as jnp

RNG = np.random.default_rng(8)
EVERYWHERE = pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
GPUS = pytest.mark.parametrize("platform", ["cuda", "rocm"])


def _results(platform: str, function: Any, *arrays: np.ndarray) -> list[Any]:
    given = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    lowered = jax.jit(function).trace(*given).lower(lowering_platforms=(platform,))
    text = lowered.as_text("hlo")
    assert "lapack" not in text
    return [np.asarray(x) for x in hloipu.compile(text).run(*arrays).outputs]


def _matrices(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _complex(*shape: int) -> np.ndarray:
    return (_matrices(*shape) + 1j * _matrices(*shape)).astype(np.complex64)


def _same(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


@EVERYWHERE
def test_cholesky(platform: str) -> None:
    x = _matrices(3, 5, 5)
    a = x @ x.transpose(0, 2, 1) + 5 * np.eye(5, dtype=np.float32)
    (factor,) = _results(platform, jnp.linalg.cholesky, a)
    assert not np.triu(factor, 1).any()
    _same(factor @ factor.transpose(0, 2, 1), a)


@EVERYWHERE
@pytest.mark.parametrize("shape", [(6, 6), (2, 5, 3), (2, 3, 5)])
def test_lu(platform: str, shape: tuple[int, ...]) -> None:
    a = _matrices(*shape)
    lu, _, permutation = _results(platform, jax.lax.linalg.lu, a)
    k = min(shape[-2:])
    lower = np.tril(lu, -1)[..., :k] + np.eye(shape[-2], k, dtype=np.float32)
    rows = np.take_along_axis(a, permutation[..., None], -2)
    _same(lower @ np.triu(lu)[..., :k, :], rows)


@EVERYWHERE
def test_qr(platform: str) -> None:
    a = _matrices(2, 6, 4)
    q, r = _results(platform, jnp.linalg.qr, a)
    _same(q @ r, a)
    _same(q.transpose(0, 2, 1) @ q, np.broadcast_to(np.eye(4), (2, 4, 4)))
    assert not np.tril(r, -1).any()


@EVERYWHERE
def test_eigenvalues(platform: str) -> None:
    x = _matrices(2, 5, 5)
    a = x + x.transpose(0, 2, 1)
    values, vectors = _results(platform, jnp.linalg.eigh, a)
    _same(values, np.linalg.eigvalsh(a))
    _same(a @ vectors, vectors * values[:, None])


@GPUS
@pytest.mark.parametrize("algorithm", ["JACOBI", "QR", "POLAR"])
@pytest.mark.parametrize("shape", [(6, 4), (2, 4, 6), (40, 36)])
@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("numbers", [_matrices, _complex])
def test_singular_values(
    platform: str, algorithm: str, shape: tuple[int, ...], is_whole: bool, numbers: Any
) -> None:
    a = numbers(*shape)
    how = jax.lax.linalg.SvdAlgorithm[algorithm]

    def svd(x: Any) -> Any:
        return jax.lax.linalg.svd(x, full_matrices=is_whole, algorithm=how)

    def alone(x: Any) -> Any:
        return jax.lax.linalg.svd(x, compute_uv=False, algorithm=how)

    try:
        u, s, vt = _results(platform, svd, a)
        (values,) = _results(platform, alone, a)
    except NotImplementedError as refused:
        pytest.skip(str(refused))
    k = min(shape[-2:])
    _same((u[..., :k] * s[..., None, :]) @ vt[..., :k, :], a)
    _same(values, np.linalg.svd(a, compute_uv=False))


@GPUS
def test_tridiagonal_systems(platform: str) -> None:
    low, diagonal, high = _matrices(8), _matrices(8) + 4, _matrices(8)
    low[0] = high[-1] = 0
    b = _matrices(8, 2)
    (x,) = _results(platform, jax.lax.linalg.tridiagonal_solve, low, diagonal, high, b)
    whole = np.diag(diagonal) + np.diag(low[1:], -1) + np.diag(high[:-1], 1)
    _same(whole @ x, b)


@pytest.mark.parametrize(("kind", "numbers"), [("f32", _matrices), ("c64", _complex)])
def test_cholesky_after_optimisation(kind: str, numbers: Any) -> None:
    text = f"""HloModule chol
ENTRY e {{
  a = {kind}[3,3] parameter(0)
  c = ({kind}[3,3], {kind}[64], s32[]) custom-call(a), custom_call_target="__cusolver$cholesky",
    backend_config={{"lower":true}}
  ROOT r = ({kind}[3,3], {kind}[64], s32[]) copy(c)
}}"""
    x = numbers(3, 3)
    a = x @ x.conj().T + 3 * np.eye(3, dtype=x.dtype)
    factor, workspace, info = (np.asarray(x) for x in hloipu.compile(text).run(a).outputs)
    factor = np.tril(factor)
    _same(factor @ factor.conj().T, a)
    assert not workspace.any()
    assert not info


def test_what_does_not_fit() -> None:
    text = """HloModule qr
ENTRY e {
  a = f16[4,4] parameter(0)
  ROOT c = (f16[4,4], f16[4]) custom-call(a), custom_call_target="Qr"
}"""
    with pytest.raises(FormulaError, match="it takes f16"):
        hloipu.compile(text)
