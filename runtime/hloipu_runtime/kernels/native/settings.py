"""Whether kernels may be compiled, and where their code is kept, in this thread or task."""

import importlib.util
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hloipu_runtime.cache_folder import default_folder

LOADING_WORK, COMPILING_WORK = 1 << 21, 1 << 24
"""Roundings by numpy that take about as long as loading a kernel's code, or compiling it.

Numpy takes 1.2 ns to round an element; compiling takes some 20 ms, a first load 30 ms with the
import of LLVM, later ones under one.
"""


class Settings(NamedTuple):
    """What whoever runs a program has chosen."""

    is_on: bool = True
    keeps: bool = True
    """Whether code is kept, and looked for, in a folder."""
    folder: Path | None = None
    """The folder; None: the one of hloipu's caches."""

    @property
    def compiles(self) -> bool:
        """Whether kernels may be compiled: that is chosen, and LLVM is installed."""
        return self.is_on and is_there()

    @property
    def code_folder(self) -> Path | None:
        """Where code is kept; None: nowhere."""
        return (self.folder or default_folder()) if self.keeps else None


@cache
def is_there() -> bool:
    """Whether LLVM is installed."""
    return importlib.util.find_spec("llvmlite") is not None


_DEFAULT = Settings()
_SETTINGS: ContextVar[Settings] = ContextVar("native_kernels", default=_DEFAULT)

settings = _SETTINGS.get
"""What `native_kernels` around this point of this thread or task says."""


@contextmanager
def native_kernels(chosen: Settings) -> Iterator[None]:
    """Let kernels be compiled, or not, while the block runs; blocks may be nested."""
    token = _SETTINGS.set(chosen)
    try:
        yield
    finally:
        _SETTINGS.reset(token)


def kernels_allowed(fast: bool | None) -> AbstractContextManager[None]:
    """Allow compiled kernels while the block runs, or not; None: as they are allowed around it."""
    return _NOTHING if fast is None else native_kernels(settings()._replace(is_on=fast))


_NOTHING = nullcontext()
