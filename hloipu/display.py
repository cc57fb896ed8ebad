"""Progress line on a terminal or in a notebook cell; drawn by Rich."""

from itertools import groupby
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING

from hloipu_runtime.plain_text import printable
from hloipu_runtime.watching import listening

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
