"""Windows along a dimension are added up by kernels with numpy's bits."""

from contextlib import nullcontext

import numpy as np
import pytest

from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.native.folding import _kernel, fold_natively
from hloipu_runtime.kernels.native.settings import Settings, is_there, native_kernels
from hloipu_runtime.kernels.windows import reduce_window
from hloipu_runtime.kernels.windows_geometry import WindowDimension
from tests.support.native_cases import AT_ONCE, differences, some_values

pytestmark = pytest.mark.skipif(not is_there(), reason="llvmlite is not installed")

ALONG = (
    WindowDimension(2, 2), WindowDimension(3, 1, 1, 1), WindowDimension(5, 2, 0, 3),
    WindowDimension(2, 1, 1, 1, 2), WindowDimension(3, 1, 2, 2, 3), WindowDimension(1, 3),
    WindowDimension(3, 2, 4, 4, 1, 2), WindowDimension(2, 1, 5, -3),
)  # fmt: skip


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("init", [0.0, -0.0])
def test_windows_have_the_same_bits(kind: str, along: WindowDimension, init: float) -> None:
    generator, one = np.random.default_rng(4), WindowDimension(1)
    for sizes, window in (
        ((3, 12, 17), (one, along, one)), ((11, 12, 9), (along, along, one)),
        ((2, 9, 10, 8), (one, along, along, one)), ((4, 30), (one, along)),
    ):  # fmt: skip
        x = some_values(kind, int(np.prod(sizes)), generator).reshape(sizes)
        for setting in (nullcontext(), computing()):
            with setting, np.errstate(all="ignore"):
                with native_kernels(Settings(is_on=False)):
                    (wanted,) = reduce_window([x], [np.array(init, x.dtype)], window, "add", [kind])
                with native_kernels(Settings(keeps=False)):
                    assert _kernel(kind).code_for(AT_ONCE)
                    (made,) = reduce_window([x], [np.array(init, x.dtype)], window, "add", [kind])
            assert differences(made, wanted) == 0, sizes
            assert made.strides == wanted.strides


def test_what_lies_otherwise_is_numpys() -> None:
    folds = ((slice(0, 4), slice(0, 4)),)
    with native_kernels(Settings(keeps=False)):
        assert fold_natively(np.ones((4, 7), np.float32), 0, 4, folds) is None  # few side by side
        assert fold_natively(np.ones((9, 4), np.float32).T, 0, 4, folds) is None
        assert fold_natively(np.ones((4, 9), np.int32), 0, 4, folds) is None
