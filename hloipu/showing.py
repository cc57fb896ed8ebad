"""What work tells of itself, shown to who waits: on a terminal or in a notebook alone."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from threading import Event, Lock, Thread, current_thread, main_thread
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from hloipu_runtime.plain_text import printable
from hloipu_runtime.watching import listening

if TYPE_CHECKING:
    from rich.live import Live

_FIRST_SECONDS = 1.0
"""Shorter work shows nothing."""
_NEXT_SECONDS = 0.1
_OUTER, _INNER = 1, 2
"""Of what is going on, as many parts are shown: where it began, and where it is now."""
OFF = "HLOIPU_PROGRESS"
"""Variable of the environment; with the value `off` nothing is shown."""

_DISPLAY: ContextVar["Display | None"] = ContextVar("display")


@contextmanager
def shown(*, wanted: bool = True) -> Iterator[None]:
    """Show what the block tells of itself by `watching`, where somebody looks.

    Within another such block, or one that is not `wanted`, it changes nothing.
    """
    if _DISPLAY.get("none around") != "none around":
        yield
        return
    display = Display() if wanted and somebody_looks() else None
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
    """Take what is shown off the terminal while something else is written there."""
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


class Display:
    """A listener that shows what it heard last, and for how long, from a thread of its own."""

    def __init__(self) -> None:
        self.lock = Lock()
        """Whoever writes elsewhere on the terminal holds it."""
        self._heard: tuple[tuple[str, ...], int, int] = (), 0, 0
        self._start = monotonic()
        self._live: Live | None = None
        self._ended = Event()
        self._thread = Thread(target=self._show, name="hloipu progress", daemon=True)

    def __call__(self, parts: tuple[str, ...], done: int, count: int) -> None:
        """Take in how far work is."""
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
                    self._live = _started()
                line = Text(self.text(), no_wrap=True, overflow="ellipsis")
                self._live.update(line, refresh=True)
            if self._ended.wait(_NEXT_SECONDS):
                break
        with self.lock:
            self.wipe()

    def text(self) -> str:
        """Return what to show now."""
        return text_of(*self._heard, monotonic() - self._start)


def _started() -> "Live":
    from rich.console import Console
    from rich.live import Live

    # Without widgets rich warns in place of showing: a cell takes what a terminal does.
    bare = in_notebook() and find_spec("ipywidgets") is None
    console = (
        Console(stderr=True, force_jupyter=False, force_terminal=True)
        if bare
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
    some = parts if len(parts) <= _OUTER + _INNER else (*parts[:_OUTER], "…", *parts[-_INNER:])
    far = [f"{done:,} of {count:,} ({100 * done // count} %)" if count else f"{done:,}"]
    return printable(", ".join([": ".join(some), *far * bool(done or count), f"{seconds:.0f} s"]))
