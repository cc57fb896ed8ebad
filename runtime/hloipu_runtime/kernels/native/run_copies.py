"""Compiled copies of many short runs of memory: numpy starts its inner loop anew for each.

Windows of an image are such: some ten elements that lie side by side, of thousands of places.
"""

from ctypes import c_int64
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.kernels.native.counted import CountedKernel
from hloipu_runtime.kernels.native.llvm import address_of
from hloipu_runtime.kernels.native.loop import loads
from hloipu_runtime.kernels.native.regions import merged

Array = np.ndarray[Any, Any]

LONGEST_BYTES = 256
"""Of a run: numpy copies longer ones as fast."""
FEWEST_RUNS = 256
"""Which take numpy as long as the call of a kernel."""
_OUTER = 6
"""Dimensions around the runs."""
_RUN_WORK = 4
"""Of numpy for a run, in roundings."""
_VECTORS = (64, 32, 16, 8, 4, 2, 1)
"""Bytes that are copied at once."""


class Runs(NamedTuple):
    """How an array is copied run by run."""

    bytes: int
    """Of a run."""
    number: int
    arguments: tuple[int, ...]
    """Sizes of the dimensions around runs; bytes from one to the next in the source, in the target.
    """


def copy_runs(target: Array, source: Array) -> bool:
    """Copy an array to one of its shape and type if runs of it are short; say if it was done."""
    runs = runs_of(source.shape, source.strides, target.strides, source.itemsize)
    if runs is None:
        return False
    code = _kernel(runs.bytes).code_for(_RUN_WORK * runs.number)
    if code is None:
        return False
    arguments = (*runs.arguments, address_of(source), address_of(target))
    code((c_int64 * len(arguments))(*arguments))
    return True


@lru_cache(maxsize=4096)
def runs_of(
    shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], item_bytes: int
) -> Runs | None:
    """Return the runs of an array of such strides; None: numpy is to copy it."""
    order = sorted(range(len(shape)), key=lambda d: -target[d])
    sides = merged(
        tuple(shape[d] for d in order),
        [tuple(x[d] for d in order) for x in (source, target)],
    )
    if not sides or sides[-1][1] != (item_bytes, item_bytes) or len(sides) > _OUTER + 1:
        return None
    run, outer = sides[-1][0] * item_bytes, sides[:-1]
    count = prod(n for n, _ in outer)
    if not 0 < run <= LONGEST_BYTES or run == item_bytes or count < FEWEST_RUNS:
        return None
    outer = [(1, (0, 0))] * (_OUTER - len(outer)) + outer
    counts, strides = zip(*outer, strict=True)
    ahead, behind = zip(*strides, strict=True)
    return Runs(run, count, (*counts, *ahead, *behind))


@lru_cache(maxsize=256)
def _kernel(run_bytes: int) -> CountedKernel:
    return CountedKernel(lambda name, halves: _text(name, run_bytes))


def _text(name: str, run_bytes: int) -> str:
    """Return the function: loops within each other around the copy of a run."""
    names = [f"i64 {x}{k}" for x in "nst" for k in range(_OUTER)]
    lines = [
        f"define void @{name}(ptr %arguments) #0 {{",
        "entry:",
        *loads(*names, "ptr source", "ptr target"),
        "  br label %head0",
    ]
    for k in range(_OUTER):
        before = "entry" if k == 0 else f"head{k - 1}"
        after = f"head{k}" if k == _OUTER - 1 else f"done{k + 1}"
        ahead, behind = ("%source", "%target") if k == 0 else (f"%a{k - 1}", f"%b{k - 1}")
        lines += [
            f"head{k}:",
            f"  %i{k} = phi i64 [0, %{before}], [%j{k}, %{after}]",
            f"  %a{k} = phi ptr [{ahead}, %{before}], [%c{k}, %{after}]",
            f"  %b{k} = phi ptr [{behind}, %{before}], [%d{k}, %{after}]",
        ]
        if k < _OUTER - 1:
            lines.append(f"  br label %head{k + 1}")
    last = _OUTER - 1
    lines += _run(f"%a{last}", f"%b{last}", run_bytes)
    for k in reversed(range(_OUTER)):
        if k < last:
            lines.append(f"done{k + 1}:")
        lines += [
            f"  %j{k} = add nuw i64 %i{k}, 1",
            f"  %c{k} = getelementptr i8, ptr %a{k}, i64 %s{k}",
            f"  %d{k} = getelementptr i8, ptr %b{k}, i64 %t{k}",
            f"  %more{k} = icmp ult i64 %j{k}, %n{k}",
            f"  br i1 %more{k}, label %head{k}, label %done{k}",
        ]
    lines += ["done0:", "  ret void", "}", "attributes #0 = { nounwind }"]
    return "\n".join(lines) + "\n"


def _run(source: str, target: str, run_bytes: int) -> list[str]:
    """Return what copies one run: all of it is read before it is written."""
    reads, writes, at = [], [], 0
    for size in _VECTORS:
        while run_bytes - at >= size:
            vector = f"<{size} x i8>"
            reads += [
                f"  %from{at} = getelementptr i8, ptr {source}, i64 {at}",
                f"  %value{at} = load {vector}, ptr %from{at}, align 1",
            ]
            writes += [
                f"  %into{at} = getelementptr i8, ptr {target}, i64 {at}",
                f"  store {vector} %value{at}, ptr %into{at}, align 1",
            ]
            at += size
    return reads + writes
