"""Subnormal numbers read and written as zeros, as XLA:CPU does and the IPU's f32 units do.

x86 cores take a microcode trap on each subnormal operand: a product of attention weights, a tenth
of which are subnormal, takes thirty times as long. The mode is a bit of the calling thread's
floating-point environment, reached through C's `fesetenv`.
"""

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_FLUSH_BITS = {
    # Byte offset of the control register in glibc's and musl's `fenv_t`, and the bits to set.
    "x86_64": (28, 0x8040),  # MXCSR: flush to zero, denormals are zero
    "aarch64": (0, 1 << 24),  # FPCR: FZ
}
_ENVIRONMENT_BYTES = 64
"""More than any `fenv_t` of these platforms."""


@contextmanager
def flushing_subnormals() -> Iterator[bool]:
    """Flush subnormals in this thread while the block runs; yields whether that could be done.

    Elsewhere than Linux on x86-64 and AArch64 the block runs with IEEE subnormals.
    """
    environment = _Environment.of_this_platform()
    if environment is None:
        yield False
        return
    before = environment.read()
    environment.write(environment.flushed(before))
    try:
        yield True
    finally:
        environment.write(before)


class _Environment:
    """The calling thread's floating-point environment, as bytes."""

    def __init__(self, library: ctypes.CDLL, offset: int, bits: int) -> None:
        self._library, self._offset, self._bits = library, offset, bits

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

    def read(self) -> bytes:
        buffer = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
        self._library.fegetenv(buffer)
        return buffer.raw

    def write(self, environment: bytes) -> None:
        self._library.fesetenv(ctypes.create_string_buffer(environment, _ENVIRONMENT_BYTES))

    def flushed(self, environment: bytes) -> bytes:
        end = self._offset + 4
        word = int.from_bytes(environment[self._offset : end], sys.byteorder) | self._bits
        return environment[: self._offset] + word.to_bytes(4, sys.byteorder) + environment[end:]
