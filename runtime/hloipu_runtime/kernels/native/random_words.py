"""Compiled kernels of Philox and ThreeFry, whose words `random_bits` defines."""

from ctypes import c_int64
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.kernels.native.counted import CountedKernel
from hloipu_runtime.kernels.native.llvm import address_of
from hloipu_runtime.kernels.native.loop import NEXT_COLUMN, NEXT_ROW
from hloipu_runtime.kernels.native.text import Text

Array = np.ndarray[Any, Any]
_Arguments = c_int64 * 6
_MASK64 = (1 << 64) - 1


class ThreeFry(NamedTuple):
    """The constants of ThreeFry 2x32."""

    rotations: tuple[tuple[int, ...], ...]
    parity: int
    words: int = 2
    work: int = 20
    """Of a counter by numpy, in roundings."""


class Philox(NamedTuple):
    """The constants of Philox 4x32."""

    multipliers: tuple[int, int]
    key_steps: tuple[int, int]
    rounds: int
    words: int = 4
    work: int = 25


def words_natively(method: ThreeFry | Philox, key: int, counter: int, out: Array) -> bool:
    """Write the words of counters from `counter` on into u32[rows, words, columns].

    Counters go along the columns, then along the rows. Says whether that was done.
    """
    rows, _, columns = out.shape
    if out.size == 0 or not out.flags.c_contiguous:
        return False
    is_together = columns == 1
    code = _kernel(method, is_together).code_for(method.work * rows * columns)
    if code is None:
        return False
    if is_together:
        rows, columns = columns, rows
    low, high = counter & _MASK64, counter >> 64 & _MASK64
    code(_Arguments(rows, columns, address_of(out), key, low, high))
    return True


@lru_cache(maxsize=8)
def _kernel(method: ThreeFry | Philox, is_together: bool) -> CountedKernel:
    return CountedKernel(lambda name, _: _text(method, is_together, name))


def _text(method: ThreeFry | Philox, is_together: bool, name: str) -> str:
    """Return the kernel; `is_together`: the words of a counter stand side by side."""
    body = Text()
    number = body.new("add i64 %row.first, %column")
    low = body.new(f"add i64 %low, {number}")
    carried = body.new(f"icmp ult i64 {low}, %low")
    high = body.new(f"add i64 %high, {body.new(f'zext i1 {carried} to i64')}")
    keys = [body.new("trunc i64 %key to i32"), _upper(body, "%key")]
    counter = [body.new(f"trunc i64 {low} to i32"), _upper(body, low)]
    if isinstance(method, ThreeFry):
        words = _three_fry(body, method, counter, keys)
    else:
        counter += [body.new(f"trunc i64 {high} to i32"), _upper(body, high)]
        words = _philox(body, method, counter, keys)
    for k, word in enumerate(words):
        if is_together:
            place = body.new(f"add i64 {body.new(f'mul i64 %column, {method.words}')}, {k}")
        else:
            place = body.new(f"add i64 %column, {body.new(f'mul i64 %columns, {k}')}")
        at = body.new(f"getelementptr i32, ptr %to, i64 {place}")
        body.lines.append(f"  store i32 {word}, ptr {at}, !llvm.access.group !0")
    names = ("rows", "columns", "out", "key", "low", "high")
    head = "\n".join(
        f"  %{n}.at = getelementptr i64, ptr %arguments, i64 {k}\n"
        f"  %{n} = load {'ptr' if n == 'out' else 'i64'}, ptr %{n}.at"
        for k, n in enumerate(names)
    )
    return "\n".join((
        *body.intrinsics.values(),
        f"define void @{name}(ptr %arguments) nounwind {{",
        "entry:",
        head,
        "  br label %outer",
        "outer:",
        "  %row = phi i64 [0, %entry], [%next, %ended]",
        "  %row.first = mul i64 %row, %columns",
        f"  %row.words = mul i64 %row.first, {method.words}",
        "  %to = getelementptr i32, ptr %out, i64 %row.words",
        "  br label %inner",
        "inner:",
        "  %column = phi i64 [0, %outer], [%following, %inner]",
        *body.lines,
        *NEXT_COLUMN,
        *NEXT_ROW,
        "!0 = distinct !{}",
        "!1 = distinct !{!1, !2}",
        '!2 = !{!"llvm.loop.parallel_accesses", !0}',
        "",
    ))  # fmt: skip


def _upper(body: Text, value: str) -> str:
    shifted = body.new(f"lshr i64 {value}, 32")
    return body.new(f"trunc i64 {shifted} to i32")


def _three_fry(body: Text, method: ThreeFry, counter: list[str], keys: list[str]) -> list[str]:
    parity = body.new(f"xor i32 {keys[0]}, {keys[1]}")
    schedule = [*keys, body.new(f"xor i32 {parity}, {method.parity}")]
    x, y = (body.new(f"add i32 {c}, {k}") for c, k in zip(counter, keys, strict=True))
    for group in range(5):
        for distance in method.rotations[group % 2]:
            x = body.new(f"add i32 {x}, {y}")
            turns = [("i32", y), ("i32", y), ("i32", str(distance))]
            y = body.new(f"xor i32 {body.call('llvm.fshl.i32', 'i32', *turns)}, {x}")
        x = body.new(f"add i32 {x}, {schedule[(group + 1) % 3]}")
        y = body.new(f"add i32 {y}, {schedule[(group + 2) % 3]}")
        y = body.new(f"add i32 {y}, {group + 1}")
    return [x, y]


def _philox(body: Text, method: Philox, counter: list[str], keys: list[str]) -> list[str]:
    a, b, c, d = counter
    for _ in range(method.rounds):
        halves = []
        for value, multiplier in zip((a, c), method.multipliers, strict=True):
            wide = body.new(f"zext i32 {value} to i64")
            product = body.new(f"mul i64 {wide}, {multiplier}")
            halves += [body.new(f"trunc i64 {product} to i32"), _upper(body, product)]
        low, high, other_low, other_high = halves
        a = body.new(f"xor i32 {body.new(f'xor i32 {other_high}, {b}')}, {keys[0]}")
        c = body.new(f"xor i32 {body.new(f'xor i32 {high}, {d}')}, {keys[1]}")
        b, d = other_low, low
        keys = [
            body.new(f"add i32 {k}, {step}") for k, step in zip(keys, method.key_steps, strict=True)
        ]
    return [a, b, c, d]
