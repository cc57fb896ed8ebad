"""The error of a custom call that has no formula, or does not fit it."""

from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_runtime.errors import UnsupportedError


class FormulaError(UnsupportedError):
    """A vendor's custom call without meaning here, or whose attributes and shapes do not fit.

    `span` is its place, where the text has it.
    """

    def __init__(
        self, code: str, message: str, *, hint: str, module: Module, instruction: Instruction
    ) -> None:
        super().__init__(code, message, hint=hint)
        self.span = module.span(instruction)
