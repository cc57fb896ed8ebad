"""Compiled copies of transposed arrays: blocks are transposed in registers."""

from ctypes import c_int64
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.kernels.native.counted import CountedKernel
from hloipu_runtime.kernels.native.llvm import address_of
from hloipu_runtime.kernels.native.loop import loads
from hloipu_runtime.kernels.native.run_copies import copy_runs

Array = np.ndarray[Any, Any]

LARGEST_SIDE, LINE_BYTES = 16, 64
"""Elements of a square's side, few enough for vector registers, and bytes: a cache line."""
SMALLEST_SIDE = 4
_OUTER = 3
"""Dimensions around the two of squares."""


class Copy(NamedTuple):
    """How an array is copied: planes, each of rows that lie side by side in one of both."""

    side: int
    arguments: tuple[int, ...]
    """Planes along three dimensions; bytes from one to the next in the source, then the target;
    elements of the target's rows and bytes between them in the source; the same of the source's
    rows in the target."""


def copy_natively(target: Array, source: Array) -> bool:
    """Copy an array that is transposed, or of short runs; say if it was done."""
    if source.dtype != target.dtype:
        return False
    copy = copy_of(source.shape, source.strides, target.strides, source.itemsize)
    if copy is None:
        return copy_runs(target, source)
    code = _kernel(8 * source.itemsize, copy.side).code_for(source.size)
    if code is None:
        return False
    arguments = (*copy.arguments, address_of(source), address_of(target))
    code((c_int64 * len(arguments))(*arguments))
    return True


@lru_cache(maxsize=4096)
def copy_of(
    shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], item_bytes: int
) -> Copy | None:
    """Return how an array of such strides is copied; None: numpy is to do it."""
    from hloipu_runtime.kernels.native.regions import merged

    if item_bytes not in (1, 2, 4, 8) or min(target, default=0) <= 0:
        return None
    order = sorted(range(len(shape)), key=lambda d: -target[d])
    sides = merged(
        tuple(shape[d] for d in order),
        [tuple(x[d] for d in order) for x in (source, target)],
    )
    across = [k for k, (_, (stride, _)) in enumerate(sides) if stride == item_bytes]
    if len(across) != 1 or not sides or sides[-1][1][1] != item_bytes:
        return None
    (columns, (gap, _)), (rows, (_, pitch)) = sides[-1], sides[across[0]]
    outer = [x for k, x in enumerate(sides[:-1]) if k != across[0]]
    side = min(LARGEST_SIDE, LINE_BYTES // item_bytes, 1 << min(rows, columns).bit_length() - 1)
    if across[0] == len(sides) - 1 or len(outer) > _OUTER or side < SMALLEST_SIDE:
        return None
    outer = [(1, (0, 0))] * (_OUTER - len(outer)) + outer
    counts, strides = zip(*outer, strict=True)
    ahead, behind = zip(*strides, strict=True)
    return Copy(side, (*counts, *ahead, *behind, columns, gap, rows, pitch))


@lru_cache(maxsize=64)
def _kernel(bits: int, side: int) -> CountedKernel:
    return CountedKernel(lambda name, halves: _text(name, bits, side))


_NAMES = "c0 c1 c2 s0 s1 s2 t0 t1 t2 columns gap rows pitch".split()


def _text(name: str, bits: int, side: int) -> str:
    """Return the function: planes, squares of each, and what is left of it element by element."""
    steps = [
        "  %c12 = mul i64 %c1, %c2",
        "  %i0 = udiv i64 %plane, %c12",
        "  %i12 = urem i64 %plane, %c12",
        "  %i1 = udiv i64 %i12, %c2",
        "  %i2 = urem i64 %i12, %c2",
    ]
    for x, whole in (("s", "source"), ("t", "target")):
        steps += [f"  %{x}o{k} = mul i64 %i{k}, %{x}{k}" for k in range(3)]
        steps += [
            f"  %{x}sum = add i64 %{x}o0, %{x}o1",
            f"  %{x}all = add i64 %{x}sum, %{x}o2",
            f"  %{whole}.here = getelementptr i8, ptr %{whole}, i64 %{x}all",
        ]
    given = "ptr %source, ptr %target, i64 %gap, i64 %pitch"
    here = given.replace("%source", "%source.here").replace("%target", "%target.here")
    return "\n".join([
        *_loops(bits, "square", side, _square(bits, side)),
        *_loops(bits, "single", 1, _square(bits, 1)),
        f"define void @{name}(ptr %arguments) #0 {{",
        "entry:",
        *loads(*(f"i64 {x}" for x in _NAMES), "ptr source", "ptr target"),
        "  %c01 = mul i64 %c0, %c1",
        "  %planes = mul i64 %c01, %c2",
        f"  %columns.whole = and i64 %columns, -{side}",
        f"  %rows.whole = and i64 %rows, -{side}",
        "  br label %planar",
        "planar:",
        "  %plane = phi i64 [0, %entry], [%next, %planar]",
        *steps,
        f"  call void @square({here}, i64 0, i64 %columns.whole, i64 0, i64 %rows.whole)",
        f"  call void @single({here}, i64 0, i64 %columns.whole, i64 %rows.whole, i64 %rows)",
        f"  call void @single({here}, i64 %columns.whole, i64 %columns, i64 0, i64 %rows)",
        "  %next = add nuw i64 %plane, 1",
        "  %more = icmp ult i64 %next, %planes",
        "  br i1 %more, label %planar, label %done",
        "done:",
        "  ret void",
        "}",
        "attributes #0 = { nounwind }",
    ]) + "\n"  # fmt: skip


def _loops(bits: int, name: str, side: int, body: list[str]) -> list[str]:
    """Return the function that goes through squares of a part of a plane."""
    return [
        f"define internal void @{name}(ptr noalias %source, ptr noalias %target, i64 %gap,"
        " i64 %pitch, i64 %left, i64 %right, i64 %top, i64 %bottom) #0 {",
        "entry:",
        "  %is_wide = icmp ult i64 %left, %right",
        "  %is_high = icmp ult i64 %top, %bottom",
        "  %is_some = and i1 %is_wide, %is_high",
        "  br i1 %is_some, label %outer, label %done",
        "outer:",
        "  %column = phi i64 [%left, %entry], [%column.next, %ended]",
        "  br label %inner",
        "inner:",
        "  %row = phi i64 [%top, %outer], [%row.next, %inner]",
        *body,
        f"  %row.next = add nuw i64 %row, {side}",
        "  %more = icmp ult i64 %row.next, %bottom",
        "  br i1 %more, label %inner, label %ended",
        "ended:",
        f"  %column.next = add nuw i64 %column, {side}",
        "  %again = icmp ult i64 %column.next, %right",
        "  br i1 %again, label %outer, label %done",
        "done:",
        "  ret void",
        "}",
    ]


def _square(bits: int, side: int) -> list[str]:
    """Return what transposes a square: halves of rows change places, then halves of these."""
    vector, align = f"<{side} x i{bits}>", f"align {bits // 8}"
    lines, values = [], []
    for k in range(side):
        lines += [
            f"  %c{k} = add i64 %column, {k}",
            f"  %from{k} = mul i64 %c{k}, %gap",
            f"  %line{k} = getelementptr i8, ptr %source, i64 %from{k}",
            f"  %at{k} = getelementptr i{bits}, ptr %line{k}, i64 %row",
            f"  %v{side}.{k} = load {vector}, ptr %at{k}, {align}",
        ]
        values.append(f"%v{side}.{k}")
    half = side // 2
    while half:
        for k in range(side):
            if k & half:
                continue
            first, second = values[k], values[k + half]
            for place, shift in ((k, 0), (k + half, half)):
                mask = [(j & ~half) + shift + (side if j & half else 0) for j in range(side)]
                chosen = ", ".join(f"i32 {x}" for x in mask)
                values[place] = f"%v{half}.{place}"
                lines.append(
                    f"  {values[place]} = shufflevector {vector} {first}, {vector} {second},"
                    f" <{side} x i32> <{chosen}>"
                )
        half //= 2
    for k in range(side):
        lines += [
            f"  %r{k} = add i64 %row, {k}",
            f"  %into{k} = mul i64 %r{k}, %pitch",
            f"  %there{k} = getelementptr i8, ptr %target, i64 %into{k}",
            f"  %to{k} = getelementptr i{bits}, ptr %there{k}, i64 %column",
            f"  store {vector} {values[k]}, ptr %to{k}, {align}",
        ]
    return lines
