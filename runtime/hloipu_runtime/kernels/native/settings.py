"""Whether kernels may be compiled, and where their code is kept, in this thread or task."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from hloipu_runtime.cache_folder import default_folder


class Settings(NamedTuple):
    """What whoever runs a program has chosen."""

    compiles: bool = True
    keeps: bool = True
    """Whether code is kept, and looked for, in a folder."""
    folder: Path | None = None
    """The folder; None: the one of hloipu's caches."""

    @property
    def code_folder(self) -> Path | None:
        """Where code is kept; None: nowhere."""
        return (self.folder or default_folder()) if self.keeps else None


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
