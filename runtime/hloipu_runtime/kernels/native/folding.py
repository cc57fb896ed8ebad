"""Compiled sums of short windows along one dimension, each window in one pass."""

from ctypes import c_int64
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.kernels.native.counted import CountedKernel
from hloipu_runtime.kernels.native.llvm import address_of
from hloipu_runtime.kernels.native.loop import loads
from hloipu_runtime.kernels.native.text import register_type

Array = np.ndarray[Any, Any]
Folds = tuple[tuple[slice, slice], ...]
"""For one element of windows after the other: which windows have it, and where it stands."""

FEWEST_BESIDE = 8
"""Elements side by side that are added up at once: fewer are no vector."""


def fold_natively(x: Array, axis: int, count: int, folds: Folds) -> Array | None:
    """Return sums of `count` windows along an axis, -0 where one has nothing; None: numpy is to."""
    kind = {"f": "f32", "d": "f64"}.get(x.dtype.char)
    outer, inner = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    if kind is None or inner < FEWEST_BESIDE or not x.flags.c_contiguous:
        return None
    code = _kernel(kind).code_for(len(folds) * outer * count * inner)
    if code is None:
        return None
    out = np.empty((*x.shape[:axis], count, *x.shape[axis + 1 :]), x.dtype)
    slices = tuple((w.indices(count), e.indices(x.shape[axis])) for w, e in folds)
    ends, places = _places(count, slices)
    arguments = (
        outer, count, inner, address_of(x), x.shape[axis] * inner, address_of(out),
        address_of(ends), address_of(places),
    )  # fmt: skip
    code((c_int64 * len(arguments))(*arguments))
    return out


Range = tuple[int, int, int]


@lru_cache(maxsize=1024)
def _places(count: int, folds: tuple[tuple[Range, Range], ...]) -> tuple[Array, Array]:
    """Return where the places of each window's elements end, and these one after another."""
    places: list[list[int]] = [[] for _ in range(count)]
    for windows, elements in folds:
        for window, place in zip(range(*windows), range(*elements), strict=True):
            places[window].append(place)
    ends = np.cumsum([len(x) for x in places], dtype=np.int64)
    return ends, np.array([k for x in places for k in x], np.int64)


@lru_cache(maxsize=2)
def _kernel(kind: str) -> CountedKernel:
    return CountedKernel(lambda name, _: _text(name, register_type(kind)))


_PLACES = (
    "i64 outer", "i64 count", "i64 inner", "ptr x", "i64 pitch", "ptr out", "ptr ends",
    "ptr places",
)  # fmt: skip


def _text(name: str, t: str) -> str:
    """Return the function: of each window rows are added up, the first as it is."""
    return "\n".join([
        *_row("copied", t, "bitcast {t} %one to {t}"),
        *_row("zeros", t, "bitcast {t} -0.0 to {t}"),
        *_row("added", t, "fadd {t} %one, %other"),
        *_row("more", t, "fadd {t} %before, %one"),
        f"define void @{name}(ptr %arguments) #0 {{",
        "entry:",
        *loads(*_PLACES),
        "  br label %outward",
        "outward:",
        "  %o = phi i64 [0, %entry], [%o.next, %ended]",
        "  %plane.from = mul i64 %o, %pitch",
        f"  %plane = getelementptr {t}, ptr %x, i64 %plane.from",
        "  %rows = mul i64 %o, %count",
        "  br label %window",
        "window:",
        "  %i = phi i64 [0, %outward], [%i.next, %summed]",
        "  %first = phi i64 [0, %outward], [%end, %summed]",
        "  %row = add i64 %rows, %i",
        "  %row.from = mul i64 %row, %inner",
        f"  %to = getelementptr {t}, ptr %out, i64 %row.from",
        "  %end.at = getelementptr i64, ptr %ends, i64 %i",
        "  %end = load i64, ptr %end.at",
        "  %size = sub i64 %end, %first",
        "  %has_one = icmp ne i64 %size, 0",
        "  %has_two = icmp ugt i64 %size, 1",
        "  %second = add i64 %first, 1",
        "  %third = add i64 %first, 2",
        "  br i1 %has_one, label %some, label %clearing",
        "some:",
        *_source(t, "first"),
        "  br i1 %has_two, label %pairing, label %copying",
        "pairing:",
        *_source(t, "second"),
        "  call void @added(ptr %first.from, ptr %second.from, ptr %to, i64 %inner)",
        "  br label %adding",
        "copying:",
        "  call void @copied(ptr %first.from, ptr %first.from, ptr %to, i64 %inner)",
        "  br label %adding",
        "clearing:",
        "  call void @zeros(ptr %plane, ptr %plane, ptr %to, i64 %inner)",
        "  br label %summed",
        "adding:",
        "  %begun = phi i64 [%third, %pairing], [%second, %copying]",
        "  %is_more = icmp ult i64 %begun, %end",
        "  br i1 %is_more, label %element, label %summed",
        "element:",
        "  %k = phi i64 [%begun, %adding], [%k.next, %element]",
        *_source(t, "k"),
        "  call void @more(ptr %k.from, ptr %k.from, ptr %to, i64 %inner)",
        "  %k.next = add i64 %k, 1",
        "  %k.more = icmp ult i64 %k.next, %end",
        "  br i1 %k.more, label %element, label %summed",
        "summed:",
        "  %i.next = add nuw i64 %i, 1",
        "  %i.more = icmp ult i64 %i.next, %count",
        "  br i1 %i.more, label %window, label %ended",
        "ended:",
        "  %o.next = add nuw i64 %o, 1",
        "  %o.more = icmp ult i64 %o.next, %outer",
        "  br i1 %o.more, label %outward, label %done",
        "done:",
        "  ret void",
        "}",
        'attributes #0 = { nounwind "denormal-fp-math"="dynamic,dynamic" }',
    ]) + "\n"  # fmt: skip


def _source(t: str, number: str) -> list[str]:
    """Return what finds the row of an element of a window."""
    return [
        f"  %{number}.place.at = getelementptr i64, ptr %places, i64 %{number}",
        f"  %{number}.place = load i64, ptr %{number}.place.at",
        f"  %{number}.offset = mul i64 %{number}.place, %inner",
        f"  %{number}.from = getelementptr {t}, ptr %plane, i64 %{number}.offset",
    ]


def _row(name: str, t: str, value: str) -> list[str]:
    """Return the function that writes a row, made of one or two, or of what it was before."""
    loads = (("one", "x"), ("other", "y"), ("before", "out"))
    return [
        f"define internal void @{name}(ptr readonly %x, ptr readonly %y, ptr noalias %out,"
        " i64 %n) #0 {",
        "entry:",
        "  br label %loop",
        "loop:",
        "  %j = phi i64 [0, %entry], [%j.next, %loop]",
        *(f"  %{x}.at = getelementptr {t}, ptr %{base}, i64 %j" for x, base in loads),
        *(f"  %{x} = load {t}, ptr %{x}.at" for x, _ in loads if f"%{x}" in value),
        f"  %value = {value.format(t=t)}",
        f"  store {t} %value, ptr %before.at",
        "  %j.next = add nuw i64 %j, 1",
        "  %more = icmp ult i64 %j.next, %n",
        "  br i1 %more, label %loop, label %done",
        "done:",
        "  ret void",
        "}",
    ]
