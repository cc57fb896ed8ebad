"""Arrays that lie otherwise are copied whole, and nothing around them changes."""

from itertools import permutations

import numpy as np
import pytest

from hloipu_runtime.kernels.native.copying import _kernel, copy_natively, copy_of
from hloipu_runtime.kernels.native.settings import Settings, is_there, native_kernels
from tests.support.native_cases import AT_ONCE, Array

pytestmark = pytest.mark.skipif(not is_there(), reason="llvmlite is not installed")


def _copied(target: Array, source: Array) -> bool:
    how = copy_of(source.shape, source.strides, target.strides, source.itemsize)
    with native_kernels(Settings(keeps=False)):
        if how is not None:
            assert _kernel(8 * source.itemsize, how.side).code_for(AT_ONCE)
        return copy_natively(target, source)


@pytest.mark.parametrize("kind", ["i1", "f2", "i4", "f8", "c8"])
def test_every_order_of_dimensions_is_copied(kind: str) -> None:
    done = 0
    for sizes in ((5, 37, 4, 50), (16, 1, 33, 8), (3, 64, 2, 7)):
        x = np.arange(np.prod(sizes)).reshape(sizes).astype(kind)
        for order in permutations(range(4)):
            source = x.transpose(order)
            around = np.full((source.shape[0] + 2, *source.shape[1:-1], source.shape[-1] + 3), 77)
            around = around.astype(kind)
            target = around[1:-1, ..., 2:-1]
            if not _copied(target, source):
                continue
            done += 1
            np.testing.assert_array_equal(target, source)
            target[...] = 77
            assert (around == np.array(77).astype(kind)).all()
    assert done > 24


def test_what_is_not_transposed_is_left_to_numpy() -> None:
    x = np.arange(40 * 50, dtype=np.float32).reshape(40, 50)
    for source in (x, x[::-1], x[:, ::2], np.broadcast_to(x[0], (40, 50)), x.astype(np.float64).T):
        assert not _copied(np.empty(source.shape, np.float32), source)
    assert not _copied(np.empty((50, 40), np.float32)[:, ::-1], x.T)
    assert not _copied(np.empty((2, 40), np.float32), x.T[:2])
