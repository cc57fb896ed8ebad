"""Switching numpy's floating-point warnings off once for many calls.

Infinities and NaNs are values like others here. `np.errstate` around every small operation costs
more than the operation; whoever runs many of them switches warnings off around all.
"""

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar

import numpy as np

_OFF: ContextVar[bool] = ContextVar("floating_point_warnings_off", default=False)

are_off = _OFF.get
"""Whether `warnings_off` surrounds this point of this thread or task."""


class warnings_off:
    """Let no floating-point operation warn while the block runs; blocks may be nested."""

    __slots__ = ("_errors", "_token")

    def __enter__(self) -> None:
        self._token = _OFF.set(True)
        self._errors = np.errstate(all="ignore")
        self._errors.__enter__()

    def __exit__(self, *error: object) -> None:
        self._errors.__exit__(None, None, None)
        _OFF.reset(self._token)


def quietly() -> AbstractContextManager[None]:
    """Return `warnings_off()`, or what does nothing where warnings are off already."""
    return _NOTHING if _OFF.get() else warnings_off()


_NOTHING = nullcontext()
