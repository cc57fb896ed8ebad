"""Phases of long work: timed, ended by an interrupt, and shown on a progress line.

The line is on a terminal or in a notebook cell; Rich draws it.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import groupby
from threading import Event, Lock, Thread, current_thread, main_thread
from time import monotonic, perf_counter
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from hloipu_runtime.plain_text import printable
from hloipu_runtime.watching import Search, doing, listening, searching

if TYPE_CHECKING:
    from rich.live import Live

_FIRST_SECONDS = 1.0
"""Shorter work shows nothing."""
_NEXT_SECONDS = 0.1
_MOST_PARTS = 5
"""Of what is going on: where it began, and what it is at."""


class Display:
    """A listener that shows what it heard last, and for how long, from a thread of its own."""

    def __init__(self, *, as_text: bool) -> None:
        self._as_text = as_text
        self.lock: Lock = Lock()
        """Whoever writes elsewhere on the terminal holds it."""
        self._heard: tuple[tuple[str, ...], int, int] = (), 0, 0
        self._start = monotonic()
        self._live: Live | None = None
        self._ended = Event()
        self._thread = Thread(target=self._show, name="hloipu progress", daemon=True)

    def __call__(self, parts: tuple[str, ...], done: int, count: int) -> None:
        """Record progress."""
        self._heard = parts, done, count

    def __enter__(self) -> None:
        """Listen and begin to show."""
        self._listening = listening(self)
        self._listening.__enter__()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""
        self._listening.__exit__(None, None, None)
        self._ended.set()
        self._thread.join()

    def wipe(self) -> None:
        """Take the line away; it comes again while work goes on. The caller has the lock."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self) -> None:
        if self._ended.wait(_FIRST_SECONDS):
            return
        from rich.text import Text  # takes a tenth of a second, which short work does not have

        while True:
            with self.lock:
                if self._live is None:
                    self._live = _started(as_text=self._as_text)
                line = Text(self.text(), no_wrap=True, overflow="ellipsis")
                self._live.update(line, refresh=True)
            if self._ended.wait(_NEXT_SECONDS):
                break
        with self.lock:
            self.wipe()

    def text(self) -> str:
        """Return what to show now."""
        return text_of(*self._heard, monotonic() - self._start)


def _started(*, as_text: bool) -> "Live":
    """Begin to draw; `as_text`: by a terminal's characters although nothing says that it is one."""
    from rich.console import Console
    from rich.live import Live

    console = (
        Console(stderr=True, force_jupyter=False, force_terminal=True)
        if as_text
        else Console(stderr=True)
    )
    live = Live(
        console=console, transient=True, auto_refresh=False, redirect_stdout=False,
        redirect_stderr=False,
    )  # fmt: skip
    live.start()
    return live


def text_of(parts: tuple[str, ...], done: int, count: int, seconds: float) -> str:
    """Return a line: where work began, where it is, how far, and for how long it has gone on."""
    named = [part for part, _ in groupby(parts)]  # `run` has a phase of that name
    parts_shown = [": ".join(named[:_MOST_PARTS])]
    if count:
        parts_shown.append(f"{done:,} of {count:,} ({100 * done // count} %)")
    elif done:
        parts_shown.append(f"{done:,}")
    return printable(", ".join((*parts_shown, f"{seconds:.0f} s")))


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
