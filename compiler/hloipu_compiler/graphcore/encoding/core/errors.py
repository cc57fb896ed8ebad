"""Errors of reading Graphcore's encoding as a step, and the list of their codes."""

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


class _Code(str):
    """A code; called with what is wrong, it makes the error to raise."""

    __slots__ = ()

    def __call__(
        self, message: str, *, hint: str = "", op: Instruction | None = None
    ) -> PoplarError:
        return PoplarError(str(self), message, hint=hint, op=op)


CALL_CONFIG = _Code("E0540")
"""A call's configuration cannot be read."""
MICRO_BATCHES = _Code("E0541")
"""Nothing says how many micro-batches an update has, or two places differ."""
SECOND = _Code("E0542")
"""There is a second pipeline, or a second update."""
PIPELINE = _Code("E0543")
"""Stages are numbered otherwise than a pipeline's are, or it returns no tuple."""
STAGE = _Code("E0544")
"""A stage has no device, or reads what does not come to it."""
ACCUMULATOR = _Code("E0545")
"""An accumulator, or what is added to it, does not fit."""
LOOP = _Code("E0546")
"""An update or accumulation is in no loop that counts micro-batches."""
SCALE = _Code("E0547")
"""Gradients are combined in another way than by sum, mean or running mean."""
SCHEDULE = _Code("E0548")
"""A schedule, or stages within stages, that are not supported together."""
CARRIED = _Code("E0549")
"""Carried values do not keep their places, or calls nest too deeply."""


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
