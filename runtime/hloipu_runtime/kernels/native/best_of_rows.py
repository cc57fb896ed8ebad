"""Compiled kernel of top-k: the places of the k best elements of each row.

The best so far stand in order, each in 64 bits: its key, by which elements ascend, above its place
turned round, so that of equals the first is best. A chunk of a row is looked through only if one of
its keys is beyond that of the worst of them, which one vector comparison tells.
"""

from ctypes import c_int64
from functools import lru_cache
from typing import Any

import numpy as np

from hloipu_runtime.kernels.native.counted import CountedKernel
from hloipu_runtime.kernels.native.llvm import address_of

Array = np.ndarray[Any, Any]

MOST = 16
"""Of k: where every element of a row is better than those before it, each moves all the best."""

_CHUNK = 32
"""Elements compared at once: two vectors of AVX-512."""
_WORK = 2
"""Of an element that numpy looks at, in roundings."""
_KEYS = {
    "f": ("%sign = ashr i32 %bits, 31", "%low = lshr i32 %sign, 1", "%key = xor i32 %bits, %low"),
    "i": ("%key = or i32 %bits, 0",),
    "u": (f"%key = xor i32 %bits, {-(1 << 31)}",),
}
_Arguments = c_int64 * 6


def best_natively(rows: Array, k: int, *, largest: bool) -> Array | None:
    """Return the places, int64, of the k best elements of each row; None where numpy is to.

    Rows are those of a row-major matrix and longer than k.
    """
    if not 0 < k <= MOST or rows.itemsize != 4 or rows.dtype.kind not in _KEYS:
        return None
    code = _kernel(rows.dtype.kind, largest).code_for(_WORK * rows.size)
    if code is None or rows.shape[1] >= 1 << 32:
        return None
    places = np.empty((rows.shape[0], k), np.int64)
    best = np.empty(k, np.uint64)
    code(_Arguments(*rows.shape, k, address_of(rows), address_of(places), address_of(best)))
    return places


@lru_cache(maxsize=8)
def _kernel(kind: str, largest: bool) -> CountedKernel:
    return CountedKernel(lambda name, _: _text(name, kind, largest))


def _text(name: str, kind: str, largest: bool) -> str:
    """Return the kernel: `key` is what makes an element's bits a signed key, the greatest best."""
    key = "\n".join(f"  {line}" for line in _KEYS[kind])
    turned = -1 if not largest else 0
    names = ("rows", "columns", "k", "x", "places", "best")
    head = "\n".join(
        f"  %{n}.at = getelementptr i64, ptr %arguments, i64 {at}\n"
        f"  %{n} = load {'ptr' if at >= 3 else 'i64'}, ptr %{n}.at"
        for at, n in enumerate(names)
    )
    return f"""
declare i64 @llvm.umin.i64(i64, i64)
define internal i32 @{name}.key(ptr %row, i64 %column) alwaysinline nounwind {{
  %at = getelementptr i32, ptr %row, i64 %column
  %bits = load i32, ptr %at
{key}
  %turned = xor i32 %key, {turned}
  ret i32 %turned
}}
define internal void @{name}.insert(ptr %best, i64 %last, i32 %key, i64 %column) nounwind {{
entry:
  %unsigned = xor i32 %key, {-(1 << 31)}
  %wide = zext i32 %unsigned to i64
  %high = shl i64 %wide, 32
  %low = xor i64 %column, 4294967295
  %new = or i64 %high, %low
  br label %look
look:
  %place = phi i64 [%last, %entry], [%before, %move]
  %is_first = icmp eq i64 %place, 0
  br i1 %is_first, label %put, label %compare
compare:
  %before = sub i64 %place, 1
  %before.at = getelementptr i64, ptr %best, i64 %before
  %other = load i64, ptr %before.at
  %stays = icmp ugt i64 %other, %new
  br i1 %stays, label %put, label %move
move:
  %to = getelementptr i64, ptr %best, i64 %place
  store i64 %other, ptr %to
  br label %look
put:
  %here = getelementptr i64, ptr %best, i64 %place
  store i64 %new, ptr %here
  ret void
}}
define void @{name}(ptr %arguments) nounwind {{
entry:
{head}
  %last = sub i64 %k, 1
  %last.at = getelementptr i64, ptr %best, i64 %last
  br label %outer
outer:
  %r = phi i64 [0, %entry], [%r.next, %ended]
  %offset = mul i64 %r, %columns
  %row = getelementptr i32, ptr %x, i64 %offset
  br label %first
first:
  %c = phi i64 [0, %outer], [%c.next, %first]
  %c.key = call i32 @{name}.key(ptr %row, i64 %c)
  call void @{name}.insert(ptr %best, i64 %c, i32 %c.key, i64 %c)
  %c.next = add i64 %c, 1
  %c.more = icmp ult i64 %c.next, %k
  br i1 %c.more, label %first, label %chunks
chunks:
  %start = phi i64 [%k, %first], [%stop, %passed]
  %worst = load i64, ptr %last.at
  %worst.high = lshr i64 %worst, 32
  %worst.low = trunc i64 %worst.high to i32
  %bound = xor i32 %worst.low, {-(1 << 31)}
  %is_end = icmp uge i64 %start, %columns
  br i1 %is_end, label %write, label %begin
begin:
  %full = add i64 %start, {_CHUNK}
  %stop = call i64 @llvm.umin.i64(i64 %full, i64 %columns)
  br label %compare
compare:
  %j = phi i64 [%start, %begin], [%j.next, %compare]
  %any = phi i32 [0, %begin], [%any.next, %compare]
  %j.key = call i32 @{name}.key(ptr %row, i64 %j)
  %j.beyond = icmp sgt i32 %j.key, %bound
  %j.number = zext i1 %j.beyond to i32
  %any.next = or i32 %any, %j.number
  %j.next = add i64 %j, 1
  %j.more = icmp ult i64 %j.next, %stop
  br i1 %j.more, label %compare, label %compared
compared:
  %none = icmp eq i32 %any.next, 0
  br i1 %none, label %passed, label %scan
scan:
  %s = phi i64 [%start, %compared], [%s.next, %scanned]
  %now = phi i32 [%bound, %compared], [%now.next, %scanned]
  %s.key = call i32 @{name}.key(ptr %row, i64 %s)
  %s.beyond = icmp sgt i32 %s.key, %now
  br i1 %s.beyond, label %better, label %scanned
better:
  call void @{name}.insert(ptr %best, i64 %last, i32 %s.key, i64 %s)
  %after = load i64, ptr %last.at
  %after.high = lshr i64 %after, 32
  %after.low = trunc i64 %after.high to i32
  %after.key = xor i32 %after.low, {-(1 << 31)}
  br label %scanned
scanned:
  %now.next = phi i32 [%now, %scan], [%after.key, %better]
  %s.next = add i64 %s, 1
  %s.more = icmp ult i64 %s.next, %stop
  br i1 %s.more, label %scan, label %passed
passed:
  br label %chunks
write:
  %row.places = mul i64 %r, %k
  br label %each
each:
  %w = phi i64 [0, %write], [%w.next, %each]
  %w.at = getelementptr i64, ptr %best, i64 %w
  %w.best = load i64, ptr %w.at
  %w.low = and i64 %w.best, 4294967295
  %w.place = xor i64 %w.low, 4294967295
  %w.number = add i64 %row.places, %w
  %w.to = getelementptr i64, ptr %places, i64 %w.number
  store i64 %w.place, ptr %w.to
  %w.next = add i64 %w, 1
  %w.more = icmp ult i64 %w.next, %k
  br i1 %w.more, label %each, label %ended
ended:
  %r.next = add i64 %r, 1
  %r.more = icmp ult i64 %r.next, %rows
  br i1 %r.more, label %outer, label %done
done:
  ret void
}}
"""
