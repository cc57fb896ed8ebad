"""What cannot be lowered."""

from hloipu_runtime.errors import UnsupportedError


class CodegenError(UnsupportedError):
    """An instruction that the compiler has no program for."""
