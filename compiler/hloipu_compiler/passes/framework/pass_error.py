"""The error of a pass that left a module invalid: a bug of the pass, never of the input."""

from hloipu_compiler.errors import Fault, VerifyError
from hloipu_runtime.errors import HloipuError


class PassError(HloipuError):
    """A pass broke the module: which one, and what the verifier found after it."""

    def __init__(self, pass_name: str, error: VerifyError) -> None:
        super().__init__(
            "E9001",
            f"the module is not valid any more after the pass {pass_name}: {error.message}",
            hint="the pass is wrong, not your module; leave it out, or report it with the module",
        )
        self.pass_name = pass_name
        self.faults: tuple[Fault, ...] = error.faults
