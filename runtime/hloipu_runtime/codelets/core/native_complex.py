"""Rewrites c64 steps of expressions as kernel instructions that have numpy's bits.

A kernel holds both parts in one integer of 64 bits; products, sizes and so on are instructions on
the parts. All else stays one of numpy's steps.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Protocol

import numpy as np


class Writer(Protocol):
    """Takes instructions on values by number; returns the number of what each makes."""

    def op(self, op: str, kind: str, *arguments: int) -> int:
        """Add an instruction with a result of a storage type."""
        ...

    def number(self, value: float, kind: str) -> int:
        """Add a constant."""
        ...


def complex_op(
    writer: Writer, opcode: str, parameters: Mapping[str, object], given: Sequence[int]
) -> int | None:
    """Add an op some of whose operands, or the result, are c64; None: no instructions do it."""
    if opcode == "select":
        return writer.op("select", "c64", *given)
    if opcode == "complex":
        return writer.op("complex", "c64", *given)
    if opcode in ("real", "imag"):
        return writer.op(opcode, "f32", *given)
    if opcode not in ("add", "subtract", "negate", "multiply", "abs", "compare"):
        return None
    if opcode == "multiply" and _fuses_products() is None:
        return None
    reals, imags = ([writer.op(part, "f32", x) for x in given] for part in ("real", "imag"))
    if opcode == "abs":
        return _size(writer, *reals, *imags)
    if opcode == "compare":
        direction = parameters["direction"]
        if direction not in ("EQ", "NE"):
            return None
        alike = [writer.op(f"compare:{direction}", "pred", *x) for x in (reals, imags)]
        return writer.op("and" if direction == "EQ" else "or", "pred", *alike)
    if opcode == "multiply":
        return writer.op("complex", "c64", *_product(writer, *reals, *imags))
    name = {"add": "fadd", "subtract": "fsub", "negate": "fneg"}[opcode]
    return writer.op("complex", "c64", *(writer.op(name, "f32", *x) for x in (reals, imags)))


@cache
def _fuses_products() -> bool | None:
    """Whether numpy adds one product of parts to the other, rounded, in one; None: who knows.

    It does where the processor can (numpy/numpy: numpy/_core/src/umath/
    loops_arithm_fp.dispatch.c.src, `npyv_muladdsub`).
    """
    size = 1 + 2.0**-12  # whose square is not one of f32's
    x = np.full(16, complex(size, size), np.complex64)
    real = np.multiply(x, x).real
    if not real.any():
        return False
    return True if np.all(real == np.float32(2.0**-24)) else None


def _product(writer: Writer, a: int, c: int, b: int, d: int) -> tuple[int, int]:
    """Return the parts of (a + bi) (c + di)."""
    bd, bc = writer.op("fmul", "f32", b, d), writer.op("fmul", "f32", b, c)
    if _fuses_products():
        real = writer.op("fused_product", "f32", a, c, writer.op("fneg", "f32", bd))
        return real, writer.op("fused_product", "f32", a, d, bc)
    real = writer.op("fsub", "f32", writer.op("fmul", "f32", a, c), bd)
    return real, writer.op("fadd", "f32", writer.op("fmul", "f32", a, d), bc)


def _size(writer: Writer, real: int, imag: int) -> int:
    """Do what `complex_unary.absolute` does, step by step."""
    a, b = writer.op("fabs", "f32", real), writer.op("fabs", "f32", imag)
    size, less = (writer.op(f"extremum:{name}", "f32", a, b) for name in ("max", "min"))
    ratio, one = writer.op("fdiv", "f32", less, size), writer.number(1, "f32")
    is_number = writer.op("compare:EQ", "pred", ratio, ratio)
    ratio = writer.op("select", "f32", is_number, ratio, one)
    above = writer.op("fadd", "f32", writer.op("fmul", "f32", ratio, ratio), one)
    return writer.op("fmul", "f32", writer.op("sqrt", "f32", above), size)
