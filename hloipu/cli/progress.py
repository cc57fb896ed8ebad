"""A line on stderr that tells how far a long run is, on a terminal only."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic

import click

from hloipu.cli.table import readable_runs
from hloipu_runtime.arguments import Progress
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.plain_text import printable

_FIRST_SECONDS = 1.0
"""Shorter runs show nothing."""
_NEXT_SECONDS = 0.1


@contextmanager
def progress_line(what: str, program: CompiledProgram, *, shown: bool) -> Iterator[Progress | None]:
    """Give what a run is to report to, or None where nobody looks; wipe the line in the end."""
    if not (shown and sys.stderr.isatty()):
        yield None
        return
    line = ProgressLine(what, steps_of(program))
    try:
        yield line
    finally:
        line.wipe()


def steps_of(program: CompiledProgram) -> int | None:
    """Return how many steps and iterations a run takes, None where data decides."""
    found = program.estimate()
    if found.total_cycles is None:
        return None
    return len(program.program.body.steps) + sum(found.counts.counts)


class ProgressLine:
    """Writes the line anew a few times a second."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what = what
        self.total = total
        self._start = monotonic()
        self._next = self._start + _FIRST_SECONDS
        self._written = False

    def __call__(self, done: int) -> None:
        """Take in how many steps and iterations are done."""
        now = monotonic()
        if now < self._next:
            return
        self._next = now + _NEXT_SECONDS
        self._written = True
        click.echo(f"\r\x1b[K{printable(self.text(done, now - self._start))}", nl=False, err=True)

    def text(self, done: int, seconds: float) -> str:
        """Return what to show."""
        share = f" ({min(99, 100 * done // self.total)} %)" if self.total else ""
        return f"{self.what}: {readable_runs(done)} steps and iterations{share}, {seconds:.0f} s"

    def wipe(self) -> None:
        """Leave the terminal's line empty."""
        if self._written:
            click.echo("\r\x1b[K", nl=False, err=True)


class Working:
    """Tells on a terminal what a command does and for how long, from a thread of its own."""

    def __init__(self, *, shown: bool = True) -> None:
        self.what: str = ""
        """What is being done, or was when it was stopped."""
        self.detail: str = ""
        self._shown = shown

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Show that so much is being done, until the end of the block."""
        self.what, self.detail = what, ""
        if not (self._shown and sys.stderr.isatty()):
            yield
            return
        ended = Event()
        thread = Thread(target=self._show, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _show(self, ended: Event) -> None:
        start, written = monotonic(), False
        while not ended.wait(_NEXT_SECONDS if written else _FIRST_SECONDS):
            seconds = f"{monotonic() - start:.0f} s"
            text = ", ".join(part for part in (self.what, self.detail, seconds) if part)
            click.echo(f"\r\x1b[K{printable(text)}", nl=False, err=True)
            written = True
        if written:
            click.echo("\r\x1b[K", nl=False, err=True)
