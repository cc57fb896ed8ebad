"""A time limit for a whole command."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hloipu_runtime.errors import LimitError

_AGAIN_SECONDS = 1.0
"""Between two tries to stop: code that closes something may swallow the first."""


class TimeUpError(LimitError):
    """The time that the user allows is over."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise TimeUpError E5017 in the block once so many seconds are over; None: never.

    It comes as an interrupt does, between two steps of Python code, and ends waiting for others.
    To be used in the main thread, as interrupts are met there.
    """
    if seconds is None:
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeUpError(
            "E5017",
            f"the time of {seconds:g} s is up",
            limit="time_limit",
            allowed=round(seconds),
            found=round(seconds),
            hint="give more: --time-limit SECONDS",
        )

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
