"""Products of many small matrices have the bits of BLAS, or are left to it."""

import numpy as np
import pytest

from hloipu_runtime.kernels.contractions.matmul import matmul
from hloipu_runtime.kernels.native import tiny_products
from hloipu_runtime.kernels.native.settings import Settings, is_there, native_kernels
from hloipu_runtime.kernels.native.tiny_products import _is_blas, _kernel, multiply_natively
from tests.support.native_cases import AT_ONCE, differences

pytestmark = pytest.mark.skipif(not is_there(), reason="llvmlite is not installed")


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (3, 5, 7), (1, 8, 8), (8, 8, 16), (2, 32, 16)])
def test_products_have_the_bits_of_blas(kind: str, sizes: tuple[int, int, int]) -> None:
    (m, k, n), dtype = sizes, np.dtype(f"f{int(kind[1:]) // 8}")
    generator = np.random.default_rng(1)
    a = generator.standard_normal((3, 70, m, k)).astype(dtype)
    b = generator.standard_normal((3, 70, k, n)).astype(dtype)
    a[0, 0, 0, 0], b[1, 1] = np.nan, np.inf
    a[2] *= 0  # of both signs, and so are products
    with native_kernels(Settings(is_on=False)), np.errstate(all="ignore"):
        wanted = matmul(a, b)
    with native_kernels(Settings(keeps=False)), np.errstate(all="ignore"):
        assert _kernel(kind, m, k, n).code_for(AT_ONCE)
        made, out = matmul(a, b), np.empty_like(wanted)
        if multiply_natively(a, b, out) is not None:
            assert differences(out, wanted) == 0
        np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)
    assert differences(made, wanted) == 0
    assert made.strides == wanted.strides


def test_other_bits_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.ones((100, 4, 5), np.float32), np.ones((100, 5, 4), np.float32)
    with native_kernels(Settings(keeps=False)):
        assert _kernel("f32", 4, 5, 4).code_for(AT_ONCE)
        monkeypatch.setattr(tiny_products, "_multiply", lambda code, a, b, out: out.fill(1))
        _is_blas.cache_clear()
        assert multiply_natively(a, b) is None
    _is_blas.cache_clear()
