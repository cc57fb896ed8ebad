"""Short runs of memory are copied whole, and nothing around them changes."""

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from hloipu_runtime.kernels.native.copying import copy_natively
from hloipu_runtime.kernels.native.run_copies import (
    LONGEST_BYTES,
    _kernel,
    copy_runs,
    runs_of,
)
from hloipu_runtime.kernels.native.settings import Settings, is_there, native_kernels
from tests.support.native_cases import AT_ONCE, Array

pytestmark = pytest.mark.skipif(not is_there(), reason="llvmlite is not installed")


def _copied(target: Array, source: Array) -> bool:
    runs = runs_of(source.shape, source.strides, target.strides, source.itemsize)
    with native_kernels(Settings(keeps=False)):
        if runs is not None:
            assert _kernel(runs.bytes).code_for(AT_ONCE)
        return copy_runs(target, source)


@pytest.mark.parametrize("kind", ["i1", "f2", "i4", "f8", "c16"])
@pytest.mark.parametrize("run", [2, 3, 7, 13, 16])
def test_windows_are_copied(kind: str, run: int) -> None:
    x = np.arange(3 * 20 * 31).reshape(3, 20, 31).astype(kind)
    windows = sliding_window_view(x, (4, run), (1, 2))
    orders = [(0, 1, 2, 3, 4), (0, 3, 1, 2, 4), (3, 0, 2, 1, 4)]
    for source in [windows.transpose(order) for order in orders]:
        around = np.full((source.shape[0] + 2, *source.shape[1:-1], run + 3), 77).astype(kind)
        target = around[1:-1, ..., 2:-1]
        assert _copied(target, source)
        np.testing.assert_array_equal(target, source)
        target[...] = 77
        assert (around == np.array(77).astype(kind)).all()


def test_a_target_may_lie_in_another_order_and_a_source_repeat() -> None:
    x = np.arange(64 * 50, dtype=np.float32).reshape(64, 50)
    repeated = as_strided(x, (64, 3, 2, 5, 8), (200, 0, 0, 32, 4))
    target = np.empty((2, 3, 64, 5, 8), np.float32).transpose(2, 1, 0, 3, 4)
    assert _copied(target, repeated)
    np.testing.assert_array_equal(target, repeated)


def test_what_has_no_short_runs_is_left_to_numpy() -> None:
    x = np.zeros((600, LONGEST_BYTES), np.float32)
    empty = np.empty_like(x)
    assert not _copied(empty, x)
    assert not _copied(empty[:, :-1], x[:, 1:]), "runs are long"
    assert not _copied(empty[:, ::2], x[:, ::2]), "runs are single elements"
    assert not _copied(empty[:9, :9], x[:9, :9]), "runs are few"
    assert not _copied(empty[:0, :9], x[:0, :9])
    assert not copy_natively(empty[:, :9], x[:, :9].astype(np.int32)), "types differ"
