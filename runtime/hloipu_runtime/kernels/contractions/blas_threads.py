"""BLAS products on a number of threads set by size alone, for reproducible runs.

OpenBLAS rounds otherwise on two threads than on one. A thread hand-over costs more than a small
product, and on a busy machine far more: its workers spin, and a product of 2 MFLOP on two threads
then takes milliseconds instead of tens of microseconds.

The number of threads is one for the whole process. Products that want the same number go side by
side; one that wants another waits for them.
"""

import os
from functools import cache
from threading import Condition, Lock
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from hloipu_runtime.kernels.core.blocks import Array

ONE_THREAD_FLOPS = 20_000_000
"""Below this a second thread does not pay (measured on two x86-64 cores with OpenBLAS 0.3)."""

ALWAYS_ONE_THREAD_FLOPS = 2 * 9216
"""Up to here OpenBLAS uses one thread whatever it is told: 2304 * GEMM_MULTITHREAD_THRESHOLD
elements of a matrix times a vector, more of other products (OpenMathLib/OpenBLAS:
interface/gemv.c, interface/gemm.c, Makefile.rule)."""

SMALL_PRODUCTS = 1_000_000
"""Most multiplications of what OpenBLAS multiplies where it lies; see `blas_pieces`."""


@cache
def blas_libraries() -> tuple[Any, ...]:
    """Return the loaded BLAS libraries."""
    return tuple(ThreadpoolController().select(user_api="blas").lib_controllers)


class _Process:
    """What is known of BLAS's threads in this process."""

    lock = Lock()
    """Of everything here; entered more cheaply than the condition that has it."""
    changed = Condition(lock)
    single: bool | None = None
    """What was set last; None: what whoever called us had set."""
    products = 0
    """That are going on."""
    waiting = 0
    """Products that wait for another number of threads."""
    blocks = 0
    """Of `begin_with_blas_threads`, open in all threads."""
    given: tuple[int, ...] = ()
    """The threads of each library that whoever called us had set."""


def blas_matmul(a: Array, b: Array, flops: float, out: Array | None = None) -> Array:
    """Return `np.matmul` of two operands, on one thread or on all as a product of `flops` asks.

    What one thread does is cut into pieces where that is quicker.
    """
    if flops <= ALWAYS_ONE_THREAD_FLOPS:
        small: Array = np.matmul(a, b, out=out)
        return small
    single = flops < ONE_THREAD_FLOPS
    lock = _Process.lock
    with lock:
        if _Process.single is not single:
            _wait_and_set(single=single)
        _Process.products += 1
    try:
        if flops > 2 * SMALL_PRODUCTS and (single or max(_Process.given, default=1) == 1):
            from hloipu_runtime.kernels.contractions.blas_pieces import product  # not to compile

            return product(a, b, out)
        whole: Array = np.matmul(a, b, out=out)
        return whole
    finally:
        with lock:
            _Process.products -= 1
            if _Process.waiting and not _Process.products:
                _Process.changed.notify_all()


class on_one_thread:
    """Let BLAS multiply on one thread while the block runs, whoever calls it."""

    __slots__ = ()

    def __enter__(self) -> None:
        with _Process.lock:
            if _Process.single is not True:
                _wait_and_set(single=True)
            _Process.products += 1

    def __exit__(self, *error: object) -> None:
        with _Process.lock:
            _Process.products -= 1
            if _Process.waiting and not _Process.products:
                _Process.changed.notify_all()


def begin_with_blas_threads() -> None:
    """Remember to give BLAS the threads that it has: those of the first product that changes them.

    `give_back_blas_threads` ends that; pairs may be open in all threads, and nested.
    """
    with _Process.lock:
        if not _Process.blocks:
            _Process.single = None
        _Process.blocks += 1


def give_back_blas_threads() -> None:
    """Give BLAS the threads that it had, once the last block of all threads is left."""
    with _Process.lock:
        _Process.blocks -= 1
        if not _Process.blocks and _Process.single is not None:
            _set(single=False)
            _Process.single = None


def _wait_and_set(*, single: bool) -> None:
    """Set the number of threads once no product goes on with another; the lock is held."""
    _Process.waiting += 1
    while _Process.products and _Process.single is not single:
        _Process.changed.wait()
    _Process.waiting -= 1
    if _Process.single is not single:
        if _Process.single is None or not _Process.blocks:  # a kernel called by itself
            _Process.given = tuple(library.num_threads for library in blas_libraries())
        _set(single=single)


def _set(*, single: bool) -> None:
    # Those with one thread never had another number.
    several = [n for n, threads in enumerate(_Process.given) if threads != 1]
    for n in several:
        library, threads = blas_libraries()[n], _Process.given[n]
        library.set_num_threads(1 if single else threads)
        # threadpoolctl lets the first thread that sets a number set all later ones; it is the lock
        # that orders those here.
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread()
    _Process.single = single


def _forget() -> None:
    """Begin anew in a child, which has no thread but the one that forked."""
    _Process.lock = Lock()
    _Process.changed = Condition(_Process.lock)
    _Process.single = None
    _Process.products = _Process.waiting = 0


os.register_at_fork(after_in_child=_forget)
