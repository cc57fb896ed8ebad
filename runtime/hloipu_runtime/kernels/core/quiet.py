"""Switching numpy's floating-point warnings off once for many calls.

Infinities and NaNs are values like others here. `np.errstate` around every small operation costs
more than the operation; whoever runs many of them switches warnings off around all.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import numpy as np

_OFF: ContextVar[bool] = ContextVar("floating_point_warnings_off", default=False)

are_off = _OFF.get
"""Whether `warnings_off` surrounds this point of this thread or task."""


@contextmanager
def warnings_off() -> Iterator[None]:
    """Let no floating-point operation warn while the block runs; blocks may be nested."""
    token = _OFF.set(True)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        _OFF.reset(token)


def quietly() -> AbstractContextManager[None]:
    """Return `warnings_off()`, or what does nothing where warnings are off already."""
    return _NOTHING if _OFF.get() else warnings_off()


_NOTHING = nullcontext()
