"""Phases of long work: timed, shown on terminals and in notebooks, ended by an interrupt."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import current_thread, main_thread
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from hloipu_runtime.watching import Search, doing, searching

if TYPE_CHECKING:
    from hloipu.display import Display

OFF = "HLOIPU_PROGRESS"
"""Variable of the environment; with the value `off` nothing is shown."""

_DISPLAY: ContextVar["Display | None"] = ContextVar("display")


@contextmanager
def shown(*, wanted: bool = True) -> Iterator[None]:
    """Show the progress that the block reports by `watching`, on terminals and in notebooks.

    Within another such block, or one that is not `wanted`, it changes nothing.
    """
    if _DISPLAY.get("none around") != "none around":
        yield
        return
    display = _display() if wanted and somebody_looks() else None
    token = _DISPLAY.set(display)
    try:
        if display is None:
            yield
        else:
            with display:
                yield
    finally:
        _DISPLAY.reset(token)


@contextmanager
def hidden() -> Iterator[None]:
    """Hide the progress display while something else is written to the terminal."""
    display = _DISPLAY.get(None)
    if display is None:
        yield
        return
    with display.lock:
        display.wipe()
        yield


def somebody_looks() -> bool:
    """Whether standard error is a terminal that can rewrite a line, or a notebook's cell.

    Logs of continuous integration (`CI`) are none, and who wants nothing says HLOIPU_PROGRESS=off.
    """
    if os.environ.get("CI") or os.environ.get(OFF, "").lower() in ("off", "0", "false"):
        return False
    if current_thread() is not main_thread():
        return False
    return in_notebook() or (_is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb")


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


def _display() -> "Display":
    from importlib.util import find_spec

    from hloipu.display import Display

    # Without widgets Rich warns in place of showing: a cell takes what a terminal does.
    return Display(as_text=in_notebook() and find_spec("ipywidgets") is None)


class Phases:
    """Wall-clock seconds by phase, in the order in which phases began; one may come again.

    Whoever listens is told of each.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to a phase."""
        self.seconds.setdefault(name, 0.0)
        start = perf_counter()
        try:
            with doing(name):
                yield
        finally:
            self.seconds[name] += perf_counter() - start


_ENDING = b"\ninterrupted: ending with the best so far; once more stops at once\n"


@contextmanager
def interruptible() -> Iterator[None]:
    """Let the first interrupt end a search that has a result; every other one stops.

    Leaves alone how a signal is met that Python does not make KeyboardInterrupt of.
    """
    search, before = Search(), signal.getsignal(signal.SIGINT)

    def met(number: int, frame: FrameType | None) -> None:
        if not search.improves or search.is_over():
            signal.default_int_handler(number, frame)
        search.end("interrupted")
        os.write(2, _ENDING)  # what else writes there may be in the middle of it

    with searching(search):
        if before is not signal.default_int_handler or current_thread() is not main_thread():
            yield
            return
        signal.signal(signal.SIGINT, met)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
