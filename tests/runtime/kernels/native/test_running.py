"""Running sums and products by kernels have numpy's bits, whichever way rows lie."""

from contextlib import nullcontext

import numpy as np
import pytest

from hloipu_runtime.kernels.accumulation import accumulate
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.native.running import _kernel, run_natively
from hloipu_runtime.kernels.native.settings import Settings, is_there, native_kernels
from tests.support.native_cases import AT_ONCE, differences, some_values

pytestmark = pytest.mark.skipif(not is_there(), reason="llvmlite is not installed")


@pytest.mark.parametrize("ufunc", [np.add, np.multiply])
@pytest.mark.parametrize(
    ("sizes", "axis"),
    [((9, 300), 1), ((300, 9), 0), ((3, 2, 5), 2), ((70_000,), 0), ((4, 1), 1), ((2, 66_000), 1)],
)
def test_totals_have_the_same_bits(ufunc: np.ufunc, sizes: tuple[int, ...], axis: int) -> None:
    x = some_values("f32", int(np.prod(sizes)), np.random.default_rng(3)).reshape(sizes)
    x = np.where(np.abs(x) < 1e30, x, np.float32(0.75))
    for given in (x, x[..., ::-1], np.repeat(x, 2, -1)[..., ::2], np.asfortranarray(x)):
        for setting in (nullcontext(), computing()):
            with setting, np.errstate(all="ignore"):
                with native_kernels(Settings(is_on=False)):
                    wanted = accumulate(given, axis, ufunc)
                with native_kernels(Settings(keeps=False)):
                    assert _kernel(ufunc.__name__).code_for(AT_ONCE)
                    made = accumulate(given, axis, ufunc)
            assert differences(made, wanted) == 0
            assert made.strides == wanted.strides


def test_other_types_are_numpys() -> None:
    with native_kernels(Settings(keeps=False)):
        assert run_natively(np.ones((2, 3)), "add") is None
        assert run_natively(np.ones((2, 3), np.float32), "maximum") is None
