"""Rounding to a narrow float's grid as a compiled kernel, once that is worth compiling it."""

import math
from ctypes import c_int64
from functools import lru_cache
from typing import Any

import numpy as np

from hloipu_runtime.element_types import GRIDS
from hloipu_runtime.kernels.native.instructions import Instruction
from hloipu_runtime.kernels.native.library import CodePointer, address_of, the_compiler
from hloipu_runtime.kernels.native.loop import Kernel, Operand, text_of
from hloipu_runtime.kernels.native.settings import (
    COMPILING_WORK,
    LOADING_WORK,
    settings,
)

Array = np.ndarray[Any, Any]
_Arguments = c_int64 * 6


def round_natively(x: Array, element_type: str, out: Array) -> bool:
    """Round f32 values to a narrow grid into `out`, which may be `x`; say whether that was done."""
    if element_type not in GRIDS or not settings().compiles:
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


class _Rounding:
    """The kernel of one type."""

    def __init__(self, element_type: str) -> None:
        self._element_type = element_type
        self._work = 0
        self._next_look: float = LOADING_WORK
        self._code: CodePointer | None = None

    def code_for(self, elements: int) -> CodePointer | None:
        """Return the kernel; None while it does not pay."""
        if self._code is None:
            self._work += elements
            if self._work >= self._next_look:
                self._code = self._found()
                late = self._work >= COMPILING_WORK
                self._next_look = math.inf if late else COMPILING_WORK
        return self._code

    def _found(self) -> CodePointer | None:
        compiler, folder = the_compiler(), settings().code_folder
        if compiler is None:
            return None
        half = ":half" if self._element_type == "f16" and compiler.halves else ""
        instruction = Instruction(f"round:{self._element_type}{half}", (0,), "f32")
        kernel = Kernel((Operand("f32", is_shared=False),), (), ((1, instruction),), (1,))
        return compiler.code(
            lambda name: text_of(kernel, name), folder, compiles=self._work >= COMPILING_WORK
        )


@lru_cache(maxsize=64)
def rounding_kernel(element_type: str) -> _Rounding:
    """Return the kernel of a type, with what was counted of it."""
    return _Rounding(element_type)
