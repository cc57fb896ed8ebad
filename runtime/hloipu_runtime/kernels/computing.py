"""How a thread is set up while kernels run in it."""

import ctypes
import platform
import sys
from functools import cache

import numpy as np

from hloipu_runtime.kernels.contractions.blas_threads import (
    begin_with_blas_threads,
    give_back_blas_threads,
)
from hloipu_runtime.kernels.core.quiet import warnings_off

_FLUSH_BITS = {
    # Byte offset of the control register in glibc's and musl's `fenv_t`, and the bits to set.
    "x86_64": (28, 0x8040),  # MXCSR: flush to zero, denormals are zero
    "aarch64": (0, 1 << 24),  # FPCR: FZ
}
_ENVIRONMENT_BYTES = 64
"""More than any `fenv_t` of these platforms."""
_Words = ctypes.c_uint32 * (_ENVIRONMENT_BYTES // 4)


class flushing_subnormals:
    """Flush subnormals in this thread while the block runs; yields whether that could be done.

    They are read and written as zeros, as XLA:CPU does and the IPU's f32 units do. x86 cores take a
    microcode trap on each subnormal operand: a product of attention weights, a tenth of which are
    subnormal, takes thirty times as long. The mode is a bit of the calling thread's floating-point
    environment, reached through C's `fesetenv`.

    Elsewhere than Linux on x86-64 and AArch64 the block runs with IEEE subnormals.
    """

    __slots__ = ("_before", "_environment", "_words")

    def __enter__(self) -> bool:
        self._environment = environment = _Environment.of_this_platform()
        if environment is None:
            return False
        self._words = words = environment.read()
        self._before = words[environment.place]
        words[environment.place] = self._before | environment.bits
        environment.write(words)
        return True

    def __exit__(self, *error: object) -> None:
        environment = self._environment
        if environment is not None:
            self._words[environment.place] = self._before
            environment.write(self._words)


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


KEPT_BYTES = 4 << 20
"""Arrays up to this size are kept, twice as much of them together. Assumed: small beside a process.
"""


@cache
def keep_freed_memory() -> None:
    """Have glibc keep what arrays of some size leave free, for those to come.

    At first every array of 128 KiB is mapped anew and unmapped at its end, and touching its pages
    for the first time takes as long as several operations on it. Once mapped memory was freed,
    glibc keeps what is no larger, and gives back what lies free beyond twice that (mallopt(3),
    M_MMAP_THRESHOLD). A program whose arrays are of a few hundred KiB would never come there.
    """
    np.empty(KEPT_BYTES, np.uint8)  # freed at once, no page of it touched


class computing:
    """Let no operation warn, flush subnormals, and give BLAS its threads back at the end.

    Blocks may be nested, and open in several threads at once. A small program takes no longer than
    entering blocks of generators would.
    """

    __slots__ = ("_flushing", "_quiet")

    def __enter__(self) -> None:
        begin_with_blas_threads()
        keep_freed_memory()
        self._quiet = warnings_off()
        self._quiet.__enter__()
        self._flushing = flushing_subnormals()
        self._flushing.__enter__()

    def __exit__(self, *error: object) -> None:
        self._flushing.__exit__()
        self._quiet.__exit__()
        give_back_blas_threads()
