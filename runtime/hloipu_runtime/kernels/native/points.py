"""Compiled scatter and gather of single elements: index vectors and the table in one pass."""

from ctypes import c_int64
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.kernels.native.combining import COMBINING_WORK, combination
from hloipu_runtime.kernels.native.counted import CountedKernel
from hloipu_runtime.kernels.native.instructions import write
from hloipu_runtime.kernels.native.llvm import address_of
from hloipu_runtime.kernels.native.loop import NEXT_TURN, loads
from hloipu_runtime.kernels.native.text import Text, memory_type, register_type

LARGEST_ITEM = 8
"""Bytes of an element: LLVM takes larger ones to lie as numpy need not lay them."""

Array = np.ndarray[Any, Any]
Bounds = tuple[tuple[int, int], ...]
"""Of each start of an index vector: how many there are within bounds, and elements from one on."""


def combine_points(
    table: Array, indices: Array, bounds: Bounds, updates: Array, monoid: str, element_type: str
) -> bool:
    """Combine each update into its element of a table, in order; say if it was done.

    Vectors lie one after another in `indices`; what one out of bounds names is passed over. The
    updates may be one, without strides.
    """
    is_one = not any(updates.strides)
    if updates.dtype != table.dtype or indices.itemsize < 4:
        return False
    if not (table.flags.c_contiguous and indices.flags.c_contiguous):
        return False
    if not (is_one or updates.flags.c_contiguous):
        return False
    code = points_kernel(monoid, element_type, 8 * indices.itemsize, len(bounds))
    function = None if code is None else code.code_for(COMBINING_WORK * updates.size)
    if function is None:
        return False
    item = table.itemsize
    behind = [n for count, pitch in bounds for n in (count, pitch * item)]
    arguments = (
        updates.size, address_of(table), address_of(updates), 0 if is_one else item,
        address_of(indices), *behind,
    )  # fmt: skip
    function((c_int64 * len(arguments))(*arguments))
    return True


@lru_cache(maxsize=256)
def points_kernel(monoid: str, element_type: str, bits: int, starts: int) -> CountedKernel | None:
    """Return the kernel of vectors of so many starts of so many bits; None where there is none."""
    if combination(monoid, element_type, halves=False) is None:
        return None
    return CountedKernel(
        lambda name, halves: _text(name, monoid, element_type, bits, starts, halves)
    )


def _text(
    name: str, monoid: str, element_type: str, bits: int, starts: int, halves: bool
) -> str:  # fmt: skip
    found = combination(monoid, element_type, halves)
    assert found is not None
    kind, instructions = found
    memory, register = memory_type(kind), register_type(kind)
    body, names = Text(), {0: "%x0", 1: "%x1"}
    for value, instruction in instructions:
        given = [names[x] for x in instruction.arguments]
        names[value] = write(body, instruction, given, [kind] * len(given))
    made = names[instructions[-1][0]]
    is_float = kind in ("f32", "f64")
    is_extremum, is_sum = monoid in ("maximum", "minimum"), monoid in ("add", "multiply")
    wins = []
    if is_float and is_extremum:  # most updates change nothing, and processors foresee that
        relation = "ogt" if monoid == "maximum" else "olt"
        wins = [
            f"  %stays = fcmp {relation} {register} %x0, %x1",
            "  br i1 %stays, label %again, label %combine",
            "combine:",
        ]
    last = "combine" if wins else "both"
    lines = [
        *sorted(body.intrinsics.values()),
        f"define void @{name}(ptr %arguments) #0 {{",
        "entry:",
        *_arguments(starts),
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [0, %entry], [%next, %again]",
        "  %held.place = phi i64 [-1, %entry], [%held.place.next, %again]",
        f"  %held = phi {register} [zeroinitializer, %entry], [%held.next, %again]",
        *_vector(bits, starts, "sext"),
    ]
    for k in range(starts):
        lines += [
            f"  %is_in{k} = icmp ult i64 %wide{k}, %bound{k}",
            f"  %all{k} = and i1 %is_in{k}, {f'%all{k - 1}' if k else 'true'}",
            f"  %step{k} = mul i64 %wide{k}, %pitch{k}",
            f"  %place{k} = add i64 %step{k}, {f'%place{k - 1}' if k else '0'}",
        ]
    place = f"%place{starts - 1}"
    lines += [
        f"  br i1 %all{starts - 1}, label %inside, label %again",
        "inside:",
        f"  %at = getelementptr i8, ptr %table, i64 {place}",
        "  %offset = mul i64 %i, %stride",
        "  %update.at = getelementptr i8, ptr %others, i64 %offset",
        *_load("x1", kind, "%update.at"),
    ]
    if is_float and is_sum:  # the sum of the update before, from its register
        lines += [
            f"  %is_held = icmp eq i64 {place}, %held.place",
            "  br i1 %is_held, label %both, label %fetch",
            "fetch:",
            *_load("fetched", kind, "%at"),
            "  br label %both",
            "both:",
            f"  %x0 = phi {register} [%held, %inside], [%fetched, %fetch]",
        ]
    else:
        lines += ["  br label %both", "both:", *_load("x0", kind, "%at")]
    lines += [*wins, *body.lines]
    stored = made
    if memory != register:
        lines.append(f"  %stored = zext {register} {made} to {memory}")
        stored = "%stored"
    kept = ["loop", *(["both"] if wins else [])]
    held = [f"[%held, %{x}]" for x in kept] + [f"[{made}, %{last}]"]
    places = [f"[%held.place, %{x}]" for x in kept] + [f"[{place}, %{last}]"]
    return "\n".join([
        *lines,
        f"  store {memory} {stored}, ptr %at",
        "  br label %again",
        "again:",
        f"  %held.next = phi {register} {', '.join(held)}",
        f"  %held.place.next = phi i64 {', '.join(places)}",
        *NEXT_TURN,
        'attributes #0 = { nounwind "denormal-fp-math"="dynamic,dynamic" }',
    ]) + "\n"  # fmt: skip


def take_points(
    table: Array, indices: Array, bounds: Bounds, shape: tuple[int, ...]
) -> Array | None:
    """Return the elements of a table that vectors name, clamped; None: numpy is to take them."""
    if indices.dtype.char not in "ilqI" or 0 in shape:  # kernels begin with one
        return None
    if not (table.flags.c_contiguous and indices.flags.c_contiguous):
        return None
    item = table.itemsize
    code = _taking_kernel(8 * item, indices.dtype.str[1:], len(bounds))
    function = None if item > LARGEST_ITEM else code.code_for(COMBINING_WORK * prod(shape))
    if function is None:
        return None
    out = np.empty(shape, table.dtype)
    behind = [n for count, pitch in bounds for n in (count - 1, pitch * item)]
    arguments = (out.size, address_of(table), address_of(out), item, address_of(indices), *behind)
    function((c_int64 * len(arguments))(*arguments))
    return out


@lru_cache(maxsize=64)
def _taking_kernel(element_bits: int, index: str, starts: int) -> CountedKernel:
    return CountedKernel(lambda name, halves: _taking_text(name, element_bits, index, starts))


def _taking_text(name: str, element_bits: int, index: str, starts: int) -> str:
    bits, place = 8 * int(index[1:]), "0"
    given = ", ".join(f"i64 %{x}{k}" for k in range(starts) for x in ("bound", "pitch"))
    arrays = ", ".join(f"ptr noalias %{x}" for x in ("table", "others", "indices"))
    lines = [
        *(f"declare i64 @llvm.s{x}.i64(i64, i64)" for x in ("max", "min")),
        f"define void @{name}(ptr %arguments) #0 {{",
        "entry:",
        *_arguments(starts),
        f"  call void @{name}.apart(i64 %count, {arrays.replace(' noalias', '')}, {given})",
        "  ret void",
        "}",
        f"define internal void @{name}.apart(i64 %count, {arrays}, {given}) #0 {{",
        "entry:",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [0, %entry], [%next, %loop]",
        *_vector(bits, starts, "sext" if index[0] == "i" else "zext"),
    ]
    for k in range(starts):
        lines += [
            f"  %high{k} = call i64 @llvm.smax.i64(i64 %wide{k}, i64 0)",
            f"  %inside{k} = call i64 @llvm.smin.i64(i64 %high{k}, i64 %bound{k})",
            f"  %step{k} = mul i64 %inside{k}, %pitch{k}",
            f"  %place{k} = add i64 %step{k}, {place}",
        ]
        place = f"%place{k}"
    lines += [
        f"  %at = getelementptr i8, ptr %table, i64 {place}",
        f"  %taken = load i{element_bits}, ptr %at",
        f"  %out.at = getelementptr i{element_bits}, ptr %others, i64 %i",
        f"  store i{element_bits} %taken, ptr %out.at",
        *NEXT_TURN,
        "attributes #0 = { nounwind }",
    ]
    return "\n".join(lines) + "\n"


def _arguments(starts: int) -> list[str]:
    """Return what loads: how many vectors, the table, what goes there or comes from there."""
    of_starts = (x for k in range(starts) for x in (f"i64 bound{k}", f"i64 pitch{k}"))
    return loads("i64 count", "ptr table", "ptr others", "i64 stride", "ptr indices", *of_starts)


def _vector(bits: int, starts: int, widens: str) -> list[str]:
    """Return what loads the starts of vector number i, in 64 bits."""
    lines = [
        f"  %first = mul i64 %i, {starts}",
        f"  %vector = getelementptr i{bits}, ptr %indices, i64 %first",
    ]
    for k in range(starts):
        loaded = f"%wide{k}" if bits == 64 else f"%start{k}"
        lines += [
            f"  %start{k}.at = getelementptr i{bits}, ptr %vector, i64 {k}",
            f"  {loaded} = load i{bits}, ptr %start{k}.at",
        ]
        if bits != 64:
            lines.append(f"  %wide{k} = {widens} i{bits} {loaded} to i64")
    return lines


def _load(name: str, kind: str, place: str) -> list[str]:
    memory, register = memory_type(kind), register_type(kind)
    if memory == register:
        return [f"  %{name} = load {memory}, ptr {place}"]
    return [
        f"  %{name}.byte = load {memory}, ptr {place}",
        f"  %{name} = icmp ne {memory} %{name}.byte, 0",
    ]
