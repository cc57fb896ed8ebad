"""Compiled reductions of short rows, to a row or each to a number.

They are added up one after another, as numpy adds up a middle dimension, or the elements of each
are combined pairwise.
"""

from ctypes import c_int64
from functools import lru_cache
from typing import Any

import numpy as np

from hloipu_runtime.kernels.native.counted import CountedKernel
from hloipu_runtime.kernels.native.llvm import address_of
from hloipu_runtime.kernels.native.loop import loads
from hloipu_runtime.kernels.native.text import register_type

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


_AT_ONCE = 8
"""Rows whose elements are combined in the same vectors: their results fill one of AVX."""
_NEUTRAL = {"add": ("fadd", -0.0), "multiply": ("fmul", 1.0)}
"""What combines, and what with any number gives that."""


def combine_columns(rows: Array, monoid: str) -> Array | None:
    """Return the elements of each row combined by pairs of columns, pairs of those, and so on.

    Of an odd number the last one waits behind the pairs. None: numpy is to combine them.
    """
    kind = {"f": "f32", "d": "f64"}.get(rows.dtype.char)
    count, width = rows.shape
    if kind is None or monoid not in _NEUTRAL or width < 2 or not rows.flags.c_contiguous:
        return None
    code = _columns_kernel(kind, width, monoid).code_for(rows.size / 2)
    if code is None:
        return None
    out = np.empty(count, rows.dtype)
    whole = count - count % _AT_ONCE
    code((c_int64 * 4)(whole, count, address_of(rows), address_of(out)))
    return out


@lru_cache(maxsize=4 * MOST_BESIDE)
def _columns_kernel(kind: str, width: int, monoid: str) -> CountedKernel:
    return CountedKernel(lambda name, _: _columns_text(name, register_type(kind), width, monoid))


def _columns_text(name: str, t: str, width: int, monoid: str) -> str:
    """Return the function: so many rows at once, then those that are left one by one."""
    return f"""
define void @{name}(ptr %arguments) #0 {{
entry:
{chr(10).join(loads("i64 whole", "i64 count", "ptr x", "ptr out"))}
  %some = icmp ne i64 %whole, 0
  br i1 %some, label %many, label %rest
{_columns_loop("many", _AT_ONCE, t, width, monoid)}
rest:
  %left = icmp ult i64 %whole, %count
  br i1 %left, label %one, label %done
{_columns_loop("one", 1, t, width, monoid)}
done:
  ret void
}}
attributes #0 = {{ nounwind "denormal-fp-math"="dynamic,dynamic" }}
"""


def _columns_loop(label: str, rows: int, t: str, width: int, monoid: str) -> str:
    """Return a loop that takes so many rows as one vector."""
    op, neutral = _NEUTRAL[monoid]
    align, size = f"align {4 if t == 'float' else 8}", rows * width
    begin, before, after = {"many": ("0", "entry", "rest"), "one": ("%whole", "rest", "done")}[
        label
    ]
    lines = [
        f"{label}:",
        f"  %{label}.i = phi i64 [{begin}, %{before}], [%{label}.next, %{label}]",
        f"  %{label}.from = mul i64 %{label}.i, {width}",
        f"  %{label}.at = getelementptr {t}, ptr %x, i64 %{label}.from",
        f"  %{label}.{width} = load <{size} x {t}>, ptr %{label}.at, {align}",
    ]
    while width > 1:
        half = (width + 1) // 2
        vector = f"<{rows * width} x {t}>"
        filled = ", ".join([f"{t} {neutral}"] * (rows * width))
        for parity in (0, 1):  # an odd column behind the last one is the neutral number
            places = ((r, 2 * c + parity) for r in range(rows) for c in range(half))
            taken = ", ".join(
                f"i32 {r * width + c if c < width else rows * width}" for r, c in places
            )
            lines.append(
                f"  %{label}.{width}.{parity} = shufflevector {vector} %{label}.{width},"
                f" {vector} <{filled}>, <{rows * half} x i32> <{taken}>"
            )
        pair = f"%{label}.{width}.0, %{label}.{width}.1"
        lines.append(f"  %{label}.{half} = {op} <{rows * half} x {t}> {pair}")
        width = half
    return "\n".join([
        *lines,
        f"  %{label}.to = getelementptr {t}, ptr %out, i64 %{label}.i",
        f"  store <{rows} x {t}> %{label}.1, ptr %{label}.to, {align}",
        f"  %{label}.next = add nuw i64 %{label}.i, {rows}",
        f"  %{label}.more = icmp ult i64 %{label}.next, {'%whole' if rows > 1 else '%count'}",
        f"  br i1 %{label}.more, label %{label}, label %{after}",
    ])  # fmt: skip


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
