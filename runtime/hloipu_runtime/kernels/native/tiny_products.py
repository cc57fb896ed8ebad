"""Compiled products of many small matrices, in place of a call of BLAS for each.

Most of BLAS's kernels add up terms one after the other, each product fused with its addition; where
those of this processor do, which is tried once for each size, the bits are the same.
"""

from ctypes import c_int64
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.kernels.native.counted import CountedKernel
from hloipu_runtime.kernels.native.llvm import CodePointer, address_of
from hloipu_runtime.kernels.native.loop import NEXT_TURN, loads
from hloipu_runtime.kernels.native.text import register_type

Array = np.ndarray[Any, Any]

MOST_ROW, MOST_TERMS = 16, 64
"""Elements of a row of the result, and of a matrix on the left: their vectors are in registers."""
_CALL_WORK, _TERM_WORK = 16, 0.5
"""Of BLAS for a matrix, and for each of its terms, in roundings."""
_TRIED = 64
"""Matrices of random numbers, of which each element has BLAS's bits only in BLAS's order."""
_KEPT = 0.25
"""The share of numbers that are not zero in half of these: a sum of zeros has BLAS's sign."""


def multiply_natively(a: Array, b: Array, out: Array | None = None) -> Array | None:
    """Return a @ b of [..., m, k] and [..., k, n] with as many matrices; None: numpy is to do it.

    The result is `out`, written, if that is given.
    """
    kind = {"f": "f32", "d": "f64"}.get(a.dtype.char)
    (m, k), n = a.shape[-2:], b.shape[-1]
    if kind is None or n > MOST_ROW or m * k > MOST_TERMS or a.dtype != b.dtype:
        return None
    if out is None:
        out = np.empty((*a.shape[:-1], n), a.dtype)
    if not all(x.flags.c_contiguous for x in (a, b, out)):
        return None
    work = _CALL_WORK + _TERM_WORK * m * k * n
    code = _kernel(kind, m, k, n).code_for(work * prod(a.shape[:-2]))
    if code is None or not _is_blas(kind, m, k, n):
        return None
    _multiply(code, a, b, out)
    return out


def _multiply(code: CodePointer, a: Array, b: Array, out: Array) -> None:
    code((c_int64 * 4)(prod(a.shape[:-2]), address_of(a), address_of(b), address_of(out)))


@lru_cache(maxsize=256)
def _is_blas(kind: str, m: int, k: int, n: int) -> bool:
    """Whether a kernel, which is compiled, gives the bits of BLAS."""
    code = _kernel(kind, m, k, n).code_for(0)
    assert code is not None
    generator, dtype = np.random.default_rng(0), np.dtype(kind[0] + str(int(kind[1:]) // 8))
    a, b = (generator.standard_normal((_TRIED, *x)).astype(dtype) for x in ((m, k), (k, n)))
    a[: _TRIED // 2] *= generator.random((_TRIED // 2, m, k)) < _KEPT  # zeros of both signs
    made = np.empty((_TRIED, m, n), dtype)
    _multiply(code, a, b, made)
    wanted: Array = np.matmul(a, b)
    return made.tobytes() == wanted.tobytes()


@lru_cache(maxsize=256)
def _kernel(kind: str, m: int, k: int, n: int) -> CountedKernel:
    return CountedKernel(lambda name, halves: _text(name, register_type(kind), m, k, n))


def _text(name: str, t: str, m: int, k: int, n: int) -> str:
    """Return the function: rows of a matrix of the result are vectors."""
    zeros = f"<{n} x i32> zeroinitializer"
    row, align = f"<{n} x {t}>", f"align {4 if t == 'float' else 8}"
    fused = f"llvm.fma.v{n}f{32 if t == 'float' else 64}"
    lines = [
        f"declare {row} @{fused}({row}, {row}, {row})",
        f"define void @{name}(ptr %arguments) #0 {{",
        "entry:",
        *loads("i64 count", "ptr a", "ptr b", "ptr o"),
    ]
    lines += ["  br label %loop", "loop:", "  %i = phi i64 [0, %entry], [%next, %loop]"]
    for x, size in (("a", m * k), ("b", k * n), ("o", m * n)):
        lines += [
            f"  %{x}.from = mul i64 %i, {size}",
            f"  %{x}.here = getelementptr {t}, ptr %{x}, i64 %{x}.from",
        ]
    for j in range(k):
        lines += [
            f"  %b{j}.at = getelementptr {t}, ptr %b.here, i64 {j * n}",
            f"  %b{j} = load {row}, ptr %b{j}.at, {align}",
        ]
    for i in range(m):
        total = "zeroinitializer"
        for j in range(k):
            x = f"{i}.{j}"
            lines += [
                f"  %a{x}.at = getelementptr {t}, ptr %a.here, i64 {i * k + j}",
                f"  %a{x} = load {t}, ptr %a{x}.at",
                f"  %one{x} = insertelement {row} poison, {t} %a{x}, i32 0",
                f"  %all{x} = shufflevector {row} %one{x}, {row} poison, {zeros}",
                f"  %sum{x} = call {row} @{fused}({row} %all{x}, {row} %b{j}, {row} {total})",
            ]
            total = f"%sum{x}"
        lines += [
            f"  %o{i}.at = getelementptr {t}, ptr %o.here, i64 {i * n}",
            f"  store {row} {total}, ptr %o{i}.at, {align}",
        ]
    lines += [
        *NEXT_TURN,
        'attributes #0 = { nounwind "denormal-fp-math"="dynamic,dynamic" }',
    ]
    return "\n".join(lines) + "\n"
