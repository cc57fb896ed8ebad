"""A thread for user code that can be stopped from outside, and the state of a queue it serves.

Python has no way to end a thread. What there is: an exception put into it (`PyThreadState_
SetAsyncExc`), which is raised at the next bytecode, wherever that is. Raised while the thread holds
a lock of ours or of Python's own, it would leave that lock held for ever. So the exception is only
ever sent while the thread is *inside* the user's code, and a thread that leaves that code lets what
was sent arrive before it does anything else:

    closer: interrupting = True; if inside: send; settled = True
    worker: inside = False; if interrupting: wait for settled, let the exception arrive

Either the closer sees `inside` as false and sends nothing, or the worker sees `interrupting`.
A thread that waits in C code for ever (a socket, a lock) is beyond reach until that returns; it is
a daemon and holds nothing of the queue but its own state.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams import faults

GRACE_SECONDS = 0.3
"""For the user's code to come to its end by itself before it is broken off."""
ENDING_SECONDS = 0.4
"""For a broken-off thread to end; beyond this it is abandoned."""
TICK_SECONDS = 0.1
"""Waits look this often whether the other side still lives."""

_SETTLING_SECONDS = 0.0005
_inside_of = threading.local()


class StopWork(BaseException):
    """Breaks off the user's code; no `except Exception` holds it up."""


class Worker:
    """One thread; `work` runs on it, and enters and leaves the user's code as it goes.

    `work` and what it refers to must not hold the queue itself, or a forgotten queue would never
    be collected.
    """

    def __init__(self, name: str, work: Callable[["Worker"], None]) -> None:
        self.name = name
        self.stopping = False
        """No more work is wanted; read without a lock."""
        self.interrupting = False
        self.settled = False
        self.inside = False
        self.busy_seconds = 0.0
        """Time spent in the user's code."""
        self._entered = 0.0
        self._tickets = [1]
        self._thread = threading.Thread(
            target=_run, args=(self, work), name=f"hloipu stream {name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread; StreamError E2024 where the system has no more."""
        try:
            self._thread.start()
        except RuntimeError as error:
            raise StreamError(
                "E2024",
                f"stream {self.name!r}: its thread cannot be started: {error}",
                queue=self.name,
                expected="a running thread",
                found="none",
                hint="close queues that are not used, or make this one inline",
            ) from error

    @property
    def alive(self) -> bool:
        """Whether the thread runs; a forked child has none of its parent's threads."""
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def enter(self) -> None:
        """Go into the user's code; raises StopWork where no more is wanted."""
        self._entered = time.perf_counter()
        self.inside = True
        if self.stopping:
            self.leave()
            raise StopWork

    def leave(self) -> None:
        """Come back from the user's code; what was sent meanwhile arrives here."""
        self.inside = False
        if self.interrupting:
            self._settle()
        self.busy_seconds += time.perf_counter() - self._entered

    def stop(self, wake: Callable[[], None], grace_seconds: float = GRACE_SECONDS) -> bool:
        """End the thread; whether it has ended. Waits at most the grace and the ending time."""
        self.stopping = True
        wake()
        if self.is_current or not self._thread.ident:
            return not self._thread.ident
        self._thread.join(grace_seconds)
        if self._thread.is_alive():
            self.interrupt()
            wake()
            self._thread.join(ENDING_SECONDS)
        return not self._thread.is_alive()

    def interrupt(self) -> None:
        """Break off the user's code, at most once; does not wait."""
        self.stopping = True
        try:
            self._tickets.pop()
        except IndexError:
            return
        try:
            self.interrupting = True
            if self.inside and self._thread.ident is not None:
                ident = ctypes.c_ulong(self._thread.ident)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(StopWork))
        finally:
            self.settled = True

    def _settle(self) -> None:
        while not self.settled:
            time.sleep(_SETTLING_SECONDS)
        _check_point()


def _check_point() -> None:
    """Do nothing: exceptions from other threads are raised where a function begins."""


def _run(worker: Worker, work: Callable[[Worker], None]) -> None:
    # What was sent arrives here at the latest; `work` itself has handed on all other errors.
    with suppress(StopWork):
        work(worker)


class Inside:
    """Marks on the calling thread that it runs the user's code on behalf of a queue's state."""

    def __init__(self, owner: object) -> None:
        self.owner = owner

    def __enter__(self) -> None:
        _inside_of.owners = (*_owners(), self.owner)

    def __exit__(self, *_: Any) -> None:
        _inside_of.owners = _owners()[:-1]


def is_inside(owner: object) -> bool:
    """Whether the calling thread runs the user's code on behalf of this very state."""
    owners = _owners()
    return bool(owners) and any(each is owner for each in owners)


def _owners() -> tuple[object, ...]:
    owners: tuple[object, ...] = getattr(_inside_of, "owners", ())
    return owners


class QueueState:
    """What the two sides of a queue share: its name, its end, and what wakes them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.changed = threading.Condition()
        self.closed = False
        self.failed: StreamError | None = None
        """What the queue was closed for."""

    def refuse(self, step: int) -> None:
        """Raise what the queue failed with, as an error of its own, or that it is closed."""
        if self.failed is not None:
            raise faults.again(self.failed)
        if self.closed:
            raise faults.closed(self.name, step)

    def wake(self) -> None:
        """Let all sides look again; never waits, as finalizers call it on any thread."""
        if self.changed.acquire(blocking=False):
            try:
                self.changed.notify_all()
            finally:
                self.changed.release()
