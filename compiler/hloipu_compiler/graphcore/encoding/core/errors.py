"""Errors of reading Graphcore's encoding as a step."""

from collections.abc import Iterator
from contextlib import contextmanager

from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_runtime.errors import UnsupportedError


class PoplarError(UnsupportedError):
    """Calls, accumulators, loops or ops of Graphcore's encoding that do not fit together.

    `op` is what is wrong, where one instruction is; `span` its place, where the text has it.
    """

    def __init__(
        self, code: str, message: str, *, hint: str = "", op: Instruction | None = None
    ) -> None:
        super().__init__(code, message, hint=hint)
        self.op = op


@contextmanager
def placing(module: Module, instruction: Instruction | None = None) -> Iterator[None]:
    """Add the place in a module to errors: that of their op, or of an instruction."""
    try:
        yield
    except PoplarError as error:
        about = error.op if error.op is not None else instruction
        if error.span is None and about is not None:
            error.span = module.span(about)
        raise
