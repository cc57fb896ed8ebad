"""The k greatest or least elements of each row, with their places."""

import numpy as np

from hloipu_runtime.kernels.blocks import Array
from hloipu_runtime.kernels.movement import contiguous
from hloipu_runtime.kernels.sorting import SortKey, argsort_by_keys, ascending_keys


def topk(x: Array, k: int, *, largest: bool = True) -> tuple[Array, Array]:
    """Return the k greatest (or least) elements along the last axis, best first, and s32 places.

    Equal elements come in the order of their places. Floats compare in total order, as XLA:CPU
    compares them: NaN with a clear sign bit is greatest, with a set one least, +0 is above -0.
    """
    x = contiguous(x)
    keys = ascending_keys(x, SortKey(0, descending=largest))
    count = x.shape[-1]
    if 0 < k < count and keys.itemsize <= 4 and count < 1 << 32:
        # Places in the low half make all keys differ: a partition is then exact.
        packed = keys.astype(np.uint64) << np.uint64(32) | np.arange(count, dtype=np.uint64)
        packed.partition(k - 1, axis=-1)
        best = np.sort(packed[..., :k], axis=-1)
        places = (best & np.uint64(0xFFFFFFFF)).view(np.int64)
    else:
        places = argsort_by_keys([keys])[..., :k]
    return np.take_along_axis(x, places, axis=-1), places.astype(np.int32)
