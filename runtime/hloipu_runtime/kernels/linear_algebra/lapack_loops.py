"""LAPACK's LU of each matrix of a batch, called by one compiled loop.

The routine is that of scipy's wrapper, so the bits are the same; its address is what scipy gives
Cython's users, as a capsule for each routine (scipy: `scipy.linalg.cython_lapack`).
"""

import ctypes
import re
from ctypes import c_int64
from functools import cache, lru_cache
from math import prod

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.native.counted import CountedKernel
from hloipu_runtime.kernels.native.llvm import address_of
from hloipu_runtime.kernels.native.loop import NEXT_TURN, loads

_CALL_WORK = 256
"""Of scipy's wrapper for a matrix, in roundings: some 0.3 us."""

_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}
_SIGNATURE = re.compile(r"void \(int \*, int \*, \w+ \*, int \*, int \*, int \*\)")
"""As the capsule says it: rows, columns, the matrix, its leading dimension, pivots, info."""


def factorise_each(columns: Array, pivots: Array, info: Array) -> bool:
    """Factorise [..., n, m], matrices by columns, where they lie; say whether that was done.

    LAPACK's pivots, which are counted from 1, are written to [..., min(m, n)], what it says of each
    matrix to [...].
    """
    *batch, n, m = columns.shape
    code = _kernel().code_for(_CALL_WORK * prod(batch))
    routine = None if code is None else _address(_LETTERS[columns.dtype.char])
    if code is None or routine is None:
        return False
    sizes = np.array([m, n], np.int32)
    arrays = (sizes, columns, pivots, info)
    steps = (m * n * columns.itemsize, min(m, n) * pivots.itemsize)
    code((c_int64 * 8)(prod(batch), routine, *map(address_of, arrays), *steps))
    return True


@lru_cache(maxsize=8)
def _address(letter: str) -> int | None:
    """Return the address of the routine for a type; None if scipy's has another signature."""
    try:
        from scipy.linalg import cython_lapack

        capsule = cython_lapack.__pyx_capi__[f"{letter}getrf"]
    except (ImportError, AttributeError, KeyError):
        return None
    api, given = ctypes.pythonapi, ctypes.py_object
    name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, given)(("PyCapsule_GetName", api))
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, given, ctypes.c_char_p)
    name = name_of(capsule)
    if not _SIGNATURE.fullmatch(name.decode()):
        return None
    address: int | None = pointer_of(("PyCapsule_GetPointer", api))(capsule, name)
    return address


@cache
def _kernel() -> CountedKernel:
    return CountedKernel(lambda name, halves: _text(name))


def _text(name: str) -> str:
    """Return the function: a call for each matrix."""
    return "\n".join([
        f"define void @{name}(ptr %arguments) #0 {{",
        "entry:",
        *loads("i64 count", "ptr routine", "ptr sizes", "ptr a", "ptr pivots", "ptr info",
               "i64 a.step", "i64 pivots.step"),
        "  %columns = getelementptr i32, ptr %sizes, i64 1",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [0, %entry], [%next, %loop]",
        "  %a.from = mul i64 %i, %a.step",
        "  %a.here = getelementptr i8, ptr %a, i64 %a.from",
        "  %pivots.from = mul i64 %i, %pivots.step",
        "  %pivots.here = getelementptr i8, ptr %pivots, i64 %pivots.from",
        "  %info.here = getelementptr i32, ptr %info, i64 %i",
        "  call void %routine(ptr %sizes, ptr %columns, ptr %a.here, ptr %sizes, ptr %pivots.here,"
        " ptr %info.here)",
        *NEXT_TURN,
        "attributes #0 = { nounwind }",
    ]) + "\n"  # fmt: skip
