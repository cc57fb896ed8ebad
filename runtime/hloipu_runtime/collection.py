"""Holding Python's cycle collector off while many records are made."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import perf_counter

LONG_SECONDS = 0.5
"""From here on giving memory back, some 2 ms, takes next to nothing, and tens of MiB are free."""


@contextmanager
def without_collection() -> Iterator[None]:
    """Hold the cycle collector off: records make no cycles, and scanning them takes long.

    It is put back as it was found. Blocks may lie within each other. After a long outermost one
    the system gets back what the C library holds of memory that nothing uses any more.
    """
    enabled = gc.isenabled()
    gc.disable()
    began = perf_counter()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
            if perf_counter() - began > LONG_SECONDS:
                give_memory_back()


def give_memory_back() -> None:
    """Give the system the pages that nothing uses, where the C library is one that can (glibc).

    It does so by itself at the end of the heap alone, and small arrays that caches keep lie between
    those that are gone.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
