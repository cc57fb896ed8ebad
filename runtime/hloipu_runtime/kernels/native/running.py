"""Compiled running sums and products along rows of f32, kept in f64 as numpy keeps them.

Each addition waits for the one before it, so several rows are computed side by side.
"""

from ctypes import c_int64
from functools import lru_cache
from typing import Any

import numpy as np

from hloipu_runtime.kernels.native.counted import CountedKernel
from hloipu_runtime.kernels.native.llvm import address_of
from hloipu_runtime.kernels.native.loop import loads

Array = np.ndarray[Any, Any]

_ROWS = 4
"""Side by side: as many as an addition takes cycles."""
_WORK = 3
"""Of an element that numpy adds, in roundings."""
_BEGINS = {"add": ("fadd", "-0.0"), "multiply": ("fmul", "1.0")}


def run_natively(rows: Array, monoid: str) -> Array | None:
    """Return the running totals of each row of a matrix, which may lie in any way.

    None where numpy is to compute them.
    """
    if rows.dtype != np.float32 or monoid not in _BEGINS:
        return None
    code = _kernel(monoid).code_for(_WORK * rows.size)
    if code is None:
        return None
    out = np.empty(rows.shape, np.float32)
    code((c_int64 * 6)(*rows.shape, address_of(rows), *rows.strides, address_of(out)))
    return out


@lru_cache(maxsize=2)
def _kernel(monoid: str) -> CountedKernel:
    return CountedKernel(lambda name, _: _text(name, *_BEGINS[monoid]))


def _text(name: str, op: str, begin: str) -> str:
    given = "i64 %columns, ptr %x, i64 %pitch, i64 %step, ptr %out"
    return "\n".join([
        *_some_rows("several", _ROWS, op, begin),
        *_some_rows("one", 1, op, begin),
        f"define void @{name}(ptr %arguments) #0 {{",
        *loads("i64 rows", "i64 columns", "ptr x", "i64 pitch", "i64 step", "ptr out"),
        f"  %whole = and i64 %rows, -{_ROWS}",
        f"  call void @several({given}, i64 0, i64 %whole)",
        f"  call void @one({given}, i64 %whole, i64 %rows)",
        "  ret void",
        "}",
        'attributes #0 = { nounwind "denormal-fp-math"="dynamic,dynamic" }',
    ]) + "\n"  # fmt: skip


def _some_rows(name: str, count: int, op: str, begin: str) -> list[str]:
    """Return the function that goes through rows from one on to another, `count` side by side."""
    rows, turn = [], []
    totals = [
        f"  %total{k} = phi double [{begin}, %outer], [%next{k}, %inner]" for k in range(count)
    ]
    for k in range(count):
        rows += [
            f"  %row{k} = add i64 %row, {k}",
            f"  %from{k} = mul i64 %row{k}, %pitch",
            f"  %line{k} = getelementptr i8, ptr %x, i64 %from{k}",
            f"  %into{k} = mul i64 %row{k}, %columns",
            f"  %outline{k} = getelementptr float, ptr %out, i64 %into{k}",
        ]
        turn += [
            f"  %at{k} = getelementptr i8, ptr %line{k}, i64 %offset",
            f"  %value{k} = load float, ptr %at{k}",
            f"  %wide{k} = fpext float %value{k} to double",
            f"  %next{k} = {op} double %total{k}, %wide{k}",
            f"  %short{k} = fptrunc double %next{k} to float",
            f"  %out.at{k} = getelementptr float, ptr %outline{k}, i64 %column",
            f"  store float %short{k}, ptr %out.at{k}",
        ]
    return [
        f"define internal void @{name}(i64 %columns, ptr noalias %x, i64 %pitch, i64 %step,"
        " ptr noalias %out, i64 %first, i64 %last) #0 {",
        "entry:",
        "  %is_some = icmp ult i64 %first, %last",
        "  br i1 %is_some, label %outer, label %done",
        "outer:",
        "  %row = phi i64 [%first, %entry], [%row.next, %ended]",
        *rows,
        "  br label %inner",
        "inner:",
        "  %column = phi i64 [0, %outer], [%column.next, %inner]",
        *totals,
        "  %offset = mul i64 %column, %step",
        *turn,
        "  %column.next = add nuw i64 %column, 1",
        "  %more = icmp ult i64 %column.next, %columns",
        "  br i1 %more, label %inner, label %ended",
        "ended:",
        f"  %row.next = add nuw i64 %row, {count}",
        "  %again = icmp ult i64 %row.next, %last",
        "  br i1 %again, label %outer, label %done",
        "done:",
        "  ret void",
        "}",
    ]
