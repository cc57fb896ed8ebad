from typing import Any

import numpy as np
import pytest

from hloipu_runtime.kernels.fft import fft

SHAPES = [((), (8,)), ((3,), (7,)), ((2, 3), (1,)), ((2,), (5, 6)), ((2,), (3, 4, 7))]


def dft(x: Any, axis: Any, sign: Any) -> Any:
    n = x.shape[axis]
    matrix = np.exp(sign * 2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n)
    return np.moveaxis(np.tensordot(x, matrix, ([axis], [0])), -1, axis)


@pytest.mark.parametrize(("lead", "length"), SHAPES)
@pytest.mark.parametrize("single", [True, False])
def test_all_kinds_against_the_matrix_of_the_transform(lead: Any, length: Any, single: Any) -> None:
    rng = np.random.default_rng(0)
    real, complex_ = (np.float32, np.complex64) if single else (np.float64, np.complex128)
    tolerance: Any = {"rtol": 0, "atol": 2e-5 if single else 1e-13}
    z = rng.standard_normal((*lead, *length)) + 1j * rng.standard_normal((*lead, *length))
    z = z.astype(complex_)
    forward = inverse = z.astype(np.complex128)
    real_forward = z.real.astype(np.complex128)
    for axis in range(len(lead), z.ndim):
        forward, inverse = dft(forward, axis, -1), dft(inverse, axis, 1) / z.shape[axis]
        real_forward = dft(real_forward, axis, -1)
    result = fft(z, "FFT", length)
    assert result.dtype == complex_
    np.testing.assert_allclose(result, forward, **tolerance)
    np.testing.assert_allclose(fft(z, "IFFT", length), inverse, **tolerance)
    half = fft(z.real.astype(real), "RFFT", length)
    assert half.dtype == complex_
    np.testing.assert_allclose(half, real_forward[..., : length[-1] // 2 + 1], **tolerance)
    back = fft(half, "IRFFT", length)
    assert back.dtype == real
    np.testing.assert_allclose(back, z.real, **tolerance)


def test_inverse_of_real_ignores_the_imaginary_part_of_the_ends() -> None:
    result = fft(np.array([1 + 5j, 2 + 1j, 3 + 7j], np.complex64), "IRFFT", (4,))
    np.testing.assert_allclose(result, [2, -1, 0, 0], atol=1e-6)


def test_no_elements() -> None:
    assert fft(np.zeros((0, 4), np.complex64), "FFT", (4,)).shape == (0, 4)
    assert fft(np.zeros((0, 4), np.float64), "RFFT", (4,)).dtype == np.complex128
    assert fft(np.zeros((2, 0), np.float32), "RFFT", (0,)).shape == (2, 0)
    assert fft(np.zeros((0, 3), np.complex64), "IRFFT", (5,)).dtype == np.float32
