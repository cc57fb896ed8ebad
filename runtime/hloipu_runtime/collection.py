"""Holding Python's cycle collector off while many records are made."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Hold the cycle collector off: records make no cycles, and scanning them takes long.

    It is put back as it was found. Blocks may lie within each other.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
