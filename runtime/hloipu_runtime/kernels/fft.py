"""Discrete Fourier transforms over the last one to three dimensions."""

from math import prod
from typing import Literal

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.quiet import quietly

KINDS = ("FFT", "IFFT", "RFFT", "IRFFT")


def fft(x: Array, kind: str, fft_length: tuple[int, ...]) -> Array:
    """Transform the last len(fft_length) dims, of sizes `fft_length` in the time domain.

    `kind` is one of KINDS. RFFT takes real x and keeps the n // 2 + 1 non-negative frequencies of
    the last dim; IRFFT takes those back to n real values and, like every inverse, divides by the
    number of elements transformed. f32 and c64 are computed in single precision.
    """
    with quietly():
        return _transform(x, kind, fft_length)


def _transform(x: Array, kind: str, fft_length: tuple[int, ...]) -> Array:
    axes = tuple(range(x.ndim - len(fft_length), x.ndim))
    if 0 in x.shape or 0 in fft_length:
        return _empty_transform(x, kind, fft_length)
    single = x.dtype.itemsize == (8 if x.dtype.kind == "c" else 4)
    if kind == "IFFT":
        return np.fft.ifftn(x, axes=axes) if len(axes) > 1 else np.fft.ifft(x)
    if kind == "IRFFT":
        return np.fft.irfftn(x, s=fft_length, axes=axes)
    # numpy (2.4) computes an unscaled single-precision transform in double, at four times the
    # cost; a scaled one stays in single. Scaling back costs one rounding.
    norm: Literal["forward", "backward"] = "forward" if single else "backward"
    if kind == "FFT":
        result = np.fft.fftn(x, axes=axes, norm=norm) if len(axes) > 1 else np.fft.fft(x, norm=norm)
    else:
        result = (
            np.fft.rfftn(x, axes=axes, norm=norm) if len(axes) > 1 else np.fft.rfft(x, norm=norm)
        )
    if single:
        result *= np.float32(prod(fft_length))
    return result


def _empty_transform(x: Array, kind: str, fft_length: tuple[int, ...]) -> Array:
    leading = x.shape[: x.ndim - len(fft_length)]
    last = fft_length[-1]
    if kind == "RFFT":
        last = last // 2 + 1 if last else 0
    shape = (*leading, *fft_length[:-1], last)
    single = x.dtype.itemsize == (8 if x.dtype.kind == "c" else 4)
    if kind == "IRFFT":
        dtype = np.dtype(np.float32 if single else np.float64)
    else:
        dtype = np.dtype(np.complex64 if single else np.complex128)
    # A transform over no frequencies is a sum of nothing.
    return np.zeros(shape, dtype) if prod(shape) else np.empty(shape, dtype)
