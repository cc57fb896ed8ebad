"""Compiled kernel of a scatter: combines rows into rows of a table, in order."""

from ctypes import c_int64
from functools import lru_cache
from typing import Any

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES, GRIDS
from hloipu_runtime.kernels.native.counted import CountedKernel
from hloipu_runtime.kernels.native.instructions import Instruction
from hloipu_runtime.kernels.native.llvm import address_of
from hloipu_runtime.kernels.native.loop import Kernel, Operand, text_of
from hloipu_runtime.kernels.native.rounding import rounding
from hloipu_runtime.kernels.native.targets import Targets

Array = np.ndarray[Any, Any]
_Arguments = c_int64 * 11
COMBINING_WORK = 3
"""Of an element that numpy's indexed ufuncs combine, in roundings."""
_FLOAT_OPS = {
    "add": "fadd", "multiply": "fmul",
    "maximum": "ordered_extremum:max", "minimum": "ordered_extremum:min",
}  # fmt: skip
_INTEGER_OPS = {
    "add": "add", "multiply": "mul", "and": "and", "or": "or", "xor": "xor",
    "maximum": "integer_extremum:max", "minimum": "integer_extremum:min",
}  # fmt: skip
_PREDICATE_OPS = {
    "add": "or", "multiply": "and", "and": "and", "or": "or", "xor": "xor",
    "maximum": "or", "minimum": "and",
}  # fmt: skip


def combine_natively(
    table: Array, targets: Targets, rows: Array, monoid: str, element_type: str
) -> bool:
    """Combine row j of `rows` into its target of a table, j ascending; say if it was done.

    By "assign" the last of several stays.

    Each sum is rounded to the element type before the next one.
    """
    width = table.shape[1]
    numbers = targets.numbers
    if rows.dtype != table.dtype or numbers.itemsize < 4:
        return False
    if not all(x.flags.c_contiguous for x in (table, rows, numbers)):
        return False
    code = combining_kernel(monoid, element_type, 8 * numbers.itemsize, int(width == 1))
    function = None if code is None else code.code_for(COMBINING_WORK * rows.size)
    if function is None:
        return False
    stride, into = width * table.itemsize, address_of(table)
    function(
        _Arguments(
            numbers.size, width, into, stride, address_of(rows), stride, into, stride,
            address_of(numbers), targets.rows, targets.group,
        )
    )  # fmt: skip
    return True


@lru_cache(maxsize=256)
def combining_kernel(
    monoid: str, element_type: str, name_bits: int, columns: int
) -> CountedKernel | None:
    """Return the kernel of a monoid and a type; None where there is none.

    `name_bits` and `columns` as in `loop.Kernel`.
    """
    if combination(monoid, element_type, halves=False) is None:
        return None

    def text(name: str, halves: bool) -> str:
        found = combination(monoid, element_type, halves)
        assert found is not None
        storage, instructions = found
        last = instructions[-1][0]
        operands = (Operand(storage, is_shared=False),) * 2
        kernel = Kernel(operands, (), instructions, (last,), (0, 2), name_bits, columns)
        return text_of(kernel, name)

    return CountedKernel(text)


def combination(
    monoid: str, element_type: str, halves: bool
) -> tuple[str, tuple[tuple[int, Instruction], ...]] | None:
    """Return the storage type, and what makes of values 0 and 1 the next ones; None: there is none.

    `halves`: whether the processor converts f32 to f16.
    """
    element = ELEMENT_TYPES[element_type]
    if element_type in GRIDS:
        storage, ops = "f32", _FLOAT_OPS
    elif element_type in ("f32", "f64"):
        storage, ops = element_type, _FLOAT_OPS
    elif element.is_integer and element.bits >= 8:
        storage, ops = element_type, _INTEGER_OPS
    elif element_type == "pred":
        storage, ops = element_type, _PREDICATE_OPS
    else:
        return None
    op = "bitcast" if monoid == "assign" else ops.get(monoid)
    if op is None:
        return None
    instructions = [(2, Instruction(op, (1,) if monoid == "assign" else (0, 1), storage))]
    if element_type in GRIDS and monoid in ("add", "multiply"):
        instructions.append((3, rounding(element_type, 2, halves)))
    return storage, tuple(instructions)
