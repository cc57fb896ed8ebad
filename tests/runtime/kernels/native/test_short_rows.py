"""Short rows are added up by kernels with numpy's bits."""

from contextlib import nullcontext
from typing import Literal

import numpy as np
import pytest

from hloipu_runtime.codelets.core.call_writer import reducing
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.native.settings import Settings, is_there, native_kernels
from hloipu_runtime.kernels.native.short_rows import (
    _columns_kernel,
    _kernel,
    combine_columns,
    sum_natively,
)
from hloipu_runtime.kernels.reduction import reduce_monoid
from tests.support.native_cases import AT_ONCE, differences, some_values

pytestmark = pytest.mark.skipif(not is_there(), reason="llvmlite is not installed")


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize(
    "sizes", [(40, 50, 3), (1, 128, 32), (7, 1, 2), (5, 300, 4), (1, 5, 31), (3, 64, 16)]
)
def test_sums_have_the_same_bits(kind: str, sizes: tuple[int, int, int]) -> None:
    x = some_values(kind, int(np.prod(sizes)), np.random.default_rng(5)).reshape(sizes)
    for setting in (nullcontext(), computing()):
        with setting, np.errstate(all="ignore"):
            with native_kernels(Settings(is_on=False)):
                wanted = reduce_monoid(x, "add", (1,))
                by_numpy = np.add.reduce(x, axis=1)
            with native_kernels(Settings(keeps=False)):
                assert _kernel(kind, sizes[2]).code_for(AT_ONCE)
                made, own = reduce_monoid(x, "add", (1,)), sum_natively(x)
        assert differences(made, wanted) == 0
        assert own is not None
        assert differences(own, by_numpy) == 0


@pytest.mark.parametrize(
    "sizes", [(8, 128, 16), (8, 127, 16), (32, 64, 8), (300, 5, 4), (128, 128, 3)]
)
def test_reductions_of_regions_have_the_same_bits(sizes: tuple[int, int, int]) -> None:
    x = np.random.default_rng(6).standard_normal(sizes).astype(np.float32)
    reduction, init = reducing("add", "f32", sizes, (1,)), np.zeros((), x.dtype)
    with native_kernels(Settings(is_on=False)):
        wanted = reduction(x, init)
    with native_kernels(Settings(keeps=False)):
        assert _kernel("f32", sizes[2]).code_for(AT_ONCE)
        assert differences(reduction(x, init), wanted) == 0


def test_what_lies_otherwise_is_numpys() -> None:
    with native_kernels(Settings(keeps=False)):
        for shape in ((3, 4, 1), (3, 4, 33), (3, 0, 4)):
            assert sum_natively(np.ones(shape, np.float32)) is None
        assert sum_natively(np.ones((3, 4, 5), np.int32)) is None
        assert sum_natively(np.ones((3, 4, 5), np.float32).transpose(2, 1, 0)) is None


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("monoid", ["add", "multiply"])
@pytest.mark.parametrize("sizes", [(512, 2), (777, 3), (1000, 7), (4099, 16), (515, 31), (600, 32)])
def test_combined_columns_have_the_same_bits(
    kind: str, monoid: Literal["add", "multiply"], sizes: tuple[int, int]
) -> None:
    x = some_values(kind, int(np.prod(sizes)), np.random.default_rng(7)).reshape(sizes)
    x[5] = -0.0
    for setting in (nullcontext(), computing()):
        with setting, np.errstate(all="ignore"):
            with native_kernels(Settings(is_on=False)):
                wanted = reduce_monoid(x, monoid, (1,))
            with native_kernels(Settings(keeps=False)):
                assert _columns_kernel(kind, sizes[1], monoid).code_for(AT_ONCE)
                made, own = reduce_monoid(x, monoid, (1,)), combine_columns(x, monoid)
        assert own is not None
        assert differences(own, wanted) == differences(made, wanted) == 0


def test_columns_that_lie_otherwise_are_numpys() -> None:
    with native_kernels(Settings(keeps=False)):
        assert combine_columns(np.ones((600, 8), np.float32)[:, :4], "add") is None
        assert combine_columns(np.ones((600, 8), np.int32), "add") is None
        assert combine_columns(np.ones((600, 8), np.float32), "maximum") is None
