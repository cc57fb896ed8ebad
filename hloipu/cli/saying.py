"""Printing: everything goes through here, so that no text drives a terminal; progress too."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from hloipu.showing import hidden
from hloipu_runtime.arguments import Progress
from hloipu_runtime.errors import UsageError
from hloipu_runtime.plain_text import plain_hlo, plain_lines
from hloipu_runtime.watching import doing, is_heard, telling

if TYPE_CHECKING:
    from hloipu_runtime.compiled import CompiledProgram


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print lines of text, to stderr if `err`; control characters in them are written out."""
    _echo(plain_lines(text), err=err, nl=nl)


def say_hlo(text: str, *, err: bool = False) -> None:
    """Print HLO text; control characters in its strings are written as HLO escapes them."""
    _echo(plain_hlo(text), err=err, nl=False)


def say_as_it_is(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text whose control characters draw; whoever made it has made names printable."""
    _echo(text, err=err, nl=nl)


def say_error(text: str) -> None:
    """Print an error's message on stderr, its codes in red."""
    _echo(styled(plain_lines(text)), err=True)


def unwritten(error: OSError) -> UsageError:
    """Return the error of output that cannot be written."""
    return UsageError(
        "E3006",
        f"cannot write '<stdout>': {error.strerror or error}",
        hint="part of the output may be missing",
    )


def _echo(text: str, *, err: bool, nl: bool = True) -> None:
    """Print text; raises UsageError E3006 where stdout takes none, and BrokenPipeError.

    What cannot be said on stderr is dropped: there is nobody to be told.
    """
    try:
        with hidden():
            click.echo(text, err=err, nl=nl)
    except BrokenPipeError:
        if not err:
            raise
    except OSError as error:
        if not err:
            raise unwritten(error) from error


def styled(text: str) -> str:
    """Return a message with its error codes in red; click drops colour where nobody sees it."""
    if "NO_COLOR" in os.environ:
        return text
    lines = []
    for line in text.split("\n"):
        before, mark, after = line.partition("error[")
        if mark:
            code, bracket, message = after.partition("]")
            line = before + click.style(f"error[{code}{bracket}", fg="red", bold=True) + message
        lines.append(line)
    return "\n".join(lines)


def turns_told(mode: str, program: "CompiledProgram") -> Progress | None:
    """Return where a run reports steps and loop iterations; None without a listener."""
    if not is_heard():
        return None
    cycles, total = program.estimate().total_cycles, steps_of(program)
    activity = f"{mode}: steps and turns of loops" + (
        "" if cycles is None else f" ({cycles:,} cycles)"
    )
    return lambda done: telling(activity, done, total or 0)


def steps_of(program: "CompiledProgram") -> int | None:
    """Return how many steps and iterations a run takes, None where data decides."""
    estimate = program.estimate()
    if estimate.total_cycles is None:
        return None
    return len(program.program.body.steps) + sum(estimate.counts.counts)


class Working:
    """Tells what a command does, and knows it when the command is stopped."""

    def __init__(self) -> None:
        self.what: str = ""
        """What is being done, or was when it was stopped."""

    @contextmanager
    def __call__(self, activity: str) -> Iterator[None]:
        """Report an activity until the end of the block."""
        self.what = activity
        with doing(activity):
            yield
