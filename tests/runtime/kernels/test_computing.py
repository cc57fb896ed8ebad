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
