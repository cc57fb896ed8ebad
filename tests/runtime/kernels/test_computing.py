import platform
import subprocess
import sys

import numpy as np
import pytest

from hloipu_runtime.kernels.computing import flushing_subnormals

TINY = {np.float32: 1e-40, np.float64: 1e-310}
SMALLEST_NORMAL = {np.float32: 2.0**-126, np.float64: 2.0**-1022}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_operands_and_results_are_flushed_inside_only(dtype: type[np.floating]) -> None:
    subnormal = np.full(100, TINY[dtype], dtype)
    normal = np.full(100, SMALLEST_NORMAL[dtype], dtype)
    with flushing_subnormals() as active:
        read = subnormal * dtype(2.0**60)
        written = normal * dtype(0.5)
    if not active:
        pytest.skip("this platform keeps subnormals")
    assert (read == 0).all()
    assert (written == 0).all()
    assert (subnormal * dtype(2.0**60) != 0).all()
    assert (normal * dtype(0.5) != 0).all()


def test_the_mode_ends_with_an_error_too() -> None:
    with pytest.raises(KeyError), flushing_subnormals():
        raise KeyError
    assert np.float32(1e-40) * np.float32(2) != 0


_FRESH_PAGES = """
import resource, sys
import numpy as np
from hloipu_runtime.kernels.computing import computing

def make():
    kept = [np.zeros(1 << 18, np.uint8) + np.uint8(1) for _ in range(16)]

with computing():
    make()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        make()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults)
"""


def test_arrays_of_a_run_come_to_lie_where_freed_ones_lay() -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another allocator than glibc's")
    done = subprocess.run(
        [sys.executable, "-c", _FRESH_PAGES], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 64  # of ten times a thousand pages
