"""How many threads BLAS takes for a product: by its size alone, so that runs repeat bit for bit.

A thread hand-over costs more than a small product, and on a busy machine far more: OpenBLAS's
workers spin, and a product of 2 MFLOP on two threads then takes milliseconds instead of tens of
microseconds.
"""

import os
from functools import cache
from typing import Any, Protocol

from threadpoolctl import ThreadpoolController

ONE_THREAD_FLOPS = 20_000_000
"""Below this a second thread does not pay (measured on two x86-64 cores with OpenBLAS 0.3)."""


class _Library(Protocol):
    def set_num_threads(self, num_threads: int) -> Any: ...


@cache
def _libraries() -> tuple[tuple[_Library, int], ...]:
    """Return the loaded BLAS libraries with the number of threads each started with."""
    controller = ThreadpoolController().select(user_api="blas")
    return tuple((library, library.num_threads) for library in controller.lib_controllers)


class _Setting:
    single: bool | None = None
    """What was set last; None before the first product, and in a forked child."""


def use_threads_for(flops: float) -> None:
    """Let the next BLAS calls run on one thread, or on all, as products of `flops` each ask."""
    single = flops < ONE_THREAD_FLOPS
    if _Setting.single is single:
        return
    for library, threads in _libraries():
        library.set_num_threads(1 if single else threads)
    _Setting.single = single


def _forget() -> None:
    _Setting.single = None


os.register_at_fork(after_in_child=_forget)
