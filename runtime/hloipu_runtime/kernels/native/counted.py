"""Kernels in place of single numpy functions, compiled once enough work has been seen to pay.

`native_expression` says why work is counted first.
"""

import math
from collections.abc import Callable

from hloipu_runtime.kernels.native.llvm import CodePointer, the_compiler
from hloipu_runtime.kernels.native.settings import COMPILING_WORK, LOADING_WORK, settings

TextOf = Callable[[str, bool], str]
"""Gives the text of a kernel of some name; with True the processor converts f16 by itself."""


class CountedKernel:
    """The code of a kernel, and how much numpy has done without it."""

    def __init__(self, text_of: TextOf) -> None:
        self._text_of = text_of
        self._work = 0.0
        self._next_look: float = LOADING_WORK
        self._code: CodePointer | None = None

    def code_for(self, work: float) -> CodePointer | None:
        """Return the code for so much work; None where kernels are not allowed or do not pay yet.

        The unit is the time that numpy takes to round an element.
        """
        if not settings().compiles:
            return None
        if self._code is None:
            self._work += work
            if self._work >= self._next_look:
                self._code = self._look()
                late = self._work >= COMPILING_WORK
                self._next_look = math.inf if late else COMPILING_WORK
        return self._code

    def _look(self) -> CodePointer | None:
        compiler, folder = the_compiler(), settings().code_folder
        if compiler is None:
            return None
        return compiler.code(
            lambda name: self._text_of(name, compiler.halves),
            folder,
            compiles=self._work >= COMPILING_WORK,
        )
