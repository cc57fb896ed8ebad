"""Compiled sums of short rows, one row after another, as numpy adds up a middle dimension."""

from ctypes import c_int64
from functools import lru_cache
from typing import Any

import numpy as np

from hloipu_runtime.kernels.native.counted import CountedKernel
from hloipu_runtime.kernels.native.instructions import register_type
from hloipu_runtime.kernels.native.llvm import address_of
from hloipu_runtime.kernels.native.loop import loads

Array = np.ndarray[Any, Any]

MOST_BESIDE = 32
"""Elements of a row: the sums are in vector registers."""
_ROW_WORK = 8
"""Of a row that numpy adds, in roundings: its loop begins anew, in some 10 ns."""


def sum_natively(x: Array) -> Array | None:
    """Return the sums along the middle of (outer, count, inner); None: numpy is to add up."""
    kind = {"f": "f32", "d": "f64"}.get(x.dtype.char)
    outer, count, inner = x.shape
    if kind is None or not 1 < inner <= MOST_BESIDE or not x.flags.c_contiguous or not count:
        return None
    code = _kernel(kind, inner).code_for(_ROW_WORK * outer * count)
    if code is None:
        return None
    out = np.empty((outer, inner), x.dtype)
    code((c_int64 * 4)(outer, count, address_of(x), address_of(out)))
    return out


@lru_cache(maxsize=2 * MOST_BESIDE)
def _kernel(kind: str, inner: int) -> CountedKernel:
    return CountedKernel(lambda name, _: _text(name, register_type(kind), inner))


def _text(name: str, t: str, inner: int) -> str:
    row, align = f"<{inner} x {t}>", f"align {4 if t == 'float' else 8}"
    given = loads("i64 outer", "i64 count", "ptr x", "ptr out")
    return f"""
define void @{name}(ptr %arguments) #0 {{
entry:
{chr(10).join(given)}
  br label %plane
plane:
  %o = phi i64 [0, %entry], [%o.next, %summed]
  %first = mul i64 %o, %count
  br label %add
add:
  %k = phi i64 [0, %plane], [%k.next, %add]
  %sum = phi {row} [zeroinitializer, %plane], [%added, %add]
  %number = add i64 %first, %k
  %from = mul i64 %number, {inner}
  %at = getelementptr {t}, ptr %x, i64 %from
  %taken = load {row}, ptr %at, {align}
  %added = fadd {row} %sum, %taken
  %k.next = add nuw i64 %k, 1
  %k.more = icmp ult i64 %k.next, %count
  br i1 %k.more, label %add, label %summed
summed:
  %into = mul i64 %o, {inner}
  %sums.at = getelementptr {t}, ptr %out, i64 %into
  store {row} %added, ptr %sums.at, {align}
  %o.next = add nuw i64 %o, 1
  %o.more = icmp ult i64 %o.next, %outer
  br i1 %o.more, label %plane, label %done
done:
  ret void
}}
attributes #0 = {{ nounwind "denormal-fp-math"="dynamic,dynamic" }}
"""
