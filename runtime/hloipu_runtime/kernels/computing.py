"""How a thread is set up while kernels run in it."""

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np

from hloipu_runtime.kernels.contractions.blas_threads import blas_threads_given_back

_FLUSH_BITS = {
    # Byte offset of the control register in glibc's and musl's `fenv_t`, and the bits to set.
    "x86_64": (28, 0x8040),  # MXCSR: flush to zero, denormals are zero
    "aarch64": (0, 1 << 24),  # FPCR: FZ
}
_ENVIRONMENT_BYTES = 64
"""More than any `fenv_t` of these platforms."""
_Words = ctypes.c_uint32 * (_ENVIRONMENT_BYTES // 4)


@contextmanager
def flushing_subnormals() -> Iterator[bool]:
    """Flush subnormals in this thread while the block runs; yields whether that could be done.

    They are read and written as zeros, as XLA:CPU does and the IPU's f32 units do. x86 cores take a
    microcode trap on each subnormal operand: a product of attention weights, a tenth of which are
    subnormal, takes thirty times as long. The mode is a bit of the calling thread's floating-point
    environment, reached through C's `fesetenv`.

    Elsewhere than Linux on x86-64 and AArch64 the block runs with IEEE subnormals.
    """
    environment = _Environment.of_this_platform()
    if environment is None:
        yield False
        return
    words = environment.read()
    before = words[environment.place]
    words[environment.place] = before | environment.bits
    environment.write(words)
    try:
        yield True
    finally:
        words[environment.place] = before
        environment.write(words)


class _Environment:
    """The calling thread's floating-point environment, as 32-bit words."""

    def __init__(self, library: ctypes.CDLL, offset: int, bits: int) -> None:
        self._get, self._set = library.fegetenv, library.fesetenv
        self.place, self.bits = offset // 4, bits

    @staticmethod
    @cache
    def of_this_platform() -> "_Environment | None":
        place = _FLUSH_BITS.get(platform.machine())
        if place is None or sys.platform != "linux":
            return None
        library = ctypes.CDLL(None)  # the process itself: Python links the maths library
        if not (hasattr(library, "fegetenv") and hasattr(library, "fesetenv")):
            return None
        return _Environment(library, *place)

    def read(self) -> "ctypes.Array[ctypes.c_uint32]":
        words = _Words()
        self._get(words)
        return words

    def write(self, words: "ctypes.Array[ctypes.c_uint32]") -> None:
        self._set(words)


@contextmanager
def computing() -> Iterator[None]:
    """Let no operation warn, flush subnormals, and give BLAS its threads back at the end.

    Blocks may be nested, and open in several threads at once.
    """
    with np.errstate(all="ignore"), flushing_subnormals(), blas_threads_given_back():
        yield
