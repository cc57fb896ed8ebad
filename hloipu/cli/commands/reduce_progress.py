"""How far a reduction is, on stderr: a row for each pass that shrank the module."""

import sys
from time import monotonic

import click

from hloipu_compiler.reduce.search import Progress
from hloipu_runtime.plain_text import plain_lines

_NEXT_SECONDS = 0.1
"""Between two states of the line on a terminal."""
_QUIET_SECONDS = 10.0
"""Without a word where no terminal is: then a row says that the work goes on."""
_HEAD = " seconds   tests  instructions  after"


class ReduceProgress:
    """Writes a table as it comes about, and on a terminal the state below it."""

    def __init__(self, instructions: int) -> None:
        self._start = self._last = monotonic()
        self._instructions = instructions
        """What the last row said."""
        self._now = Progress("", 0, instructions)
        self._is_terminal = sys.stderr.isatty()
        self._has_head = False

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return monotonic() - self._start

    def __call__(self, progress: Progress) -> None:
        """Take in the state after a test."""
        if progress.pass_name != self._now.pass_name:
            self.end_of_pass()
        self._now = progress
        quiet = monotonic() - self._last
        if self._is_terminal and quiet >= _NEXT_SECONDS:
            self._last = monotonic()
            click.echo(f"\r\x1b[K{plain_lines(self._row(progress))} …", nl=False, err=True)
        elif not self._is_terminal and quiet >= _QUIET_SECONDS:
            self._write(progress)

    def end_of_pass(self) -> None:
        """Write a row if the last pass has shrunk the module."""
        if self._now.instructions != self._instructions:
            self._write(self._now)
        elif self._is_terminal:
            click.echo("\r\x1b[K", nl=False, err=True)

    def _write(self, progress: Progress) -> None:
        wipe = "\r\x1b[K" if self._is_terminal else ""
        if not self._has_head:
            self._has_head = True
            click.echo(f"{wipe}{_HEAD}", err=True)
        click.echo(f"{wipe}{plain_lines(self._row(progress))}", err=True)
        self._instructions = progress.instructions
        self._last = monotonic()

    def _row(self, progress: Progress) -> str:
        return (
            f"{self.seconds:8.1f}  {progress.tests:6,}  {progress.instructions:12,}  "
            f"{progress.pass_name}"
        )
