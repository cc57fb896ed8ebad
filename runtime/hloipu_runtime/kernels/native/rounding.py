"""Rounding to a narrow float's grid as a compiled kernel, once that is worth compiling it."""

from ctypes import c_int64
from functools import lru_cache
from typing import Any

import numpy as np

from hloipu_runtime.element_types import GRIDS
from hloipu_runtime.kernels.native.counted import CountedKernel
from hloipu_runtime.kernels.native.instructions import Instruction
from hloipu_runtime.kernels.native.llvm import address_of
from hloipu_runtime.kernels.native.loop import Kernel, Operand, text_of

Array = np.ndarray[Any, Any]
_Arguments = c_int64 * 6


def round_natively(x: Array, element_type: str, out: Array) -> bool:
    """Round f32 values to a narrow grid into `out`, which may be `x`; say whether that was done."""
    if element_type not in GRIDS:
        return False
    if x.dtype != np.float32 or not x.flags.c_contiguous:
        return False
    if not out.flags.c_contiguous or out.shape != x.shape or out.dtype != np.float32:
        return False
    code = rounding_kernel(element_type).code_for(x.size)
    if code is None:
        return False
    code(_Arguments(1, x.size, address_of(x), 0, address_of(out), 0))
    return True


@lru_cache(maxsize=64)
def rounding_kernel(element_type: str) -> CountedKernel:
    """Return the kernel of a type, with what was counted of it."""

    def text(name: str, halves: bool) -> str:
        rounded = rounding(element_type, 0, halves)
        return text_of(Kernel((Operand("f32", is_shared=False),), (), ((1, rounded),), (1,)), name)

    return CountedKernel(text)


def rounding(element_type: str, number: int, halves: bool) -> Instruction:
    """Return the instruction that rounds a value; `halves`: the processor converts f16 itself."""
    half = ":half" if element_type == "f16" and halves else ""
    return Instruction(f"round:{element_type}{half}", (number,), "f32")
