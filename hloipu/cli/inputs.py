"""Inputs that several subcommands take."""

import difflib
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from hloipu.text import decoded, read_file
from hloipu_compiler.hlo.limits import DEFAULT_LIMITS, Limits
from hloipu_compiler.source import Source
from hloipu_runtime.errors import UsageError

HLO_FILE = click.Path(allow_dash=True)
F = TypeVar("F", bound=Callable[..., Any])


def read_input(name: str) -> Source:
    """Return the text of a file, or of standard input for `-`."""
    if name == "-":
        return Source(decoded(sys.stdin.buffer.read(), "<stdin>"), "<stdin>")
    return read_file(Path(name))


def limit_option(command: F) -> F:
    """Add --limit NAME=N, which hands the command a `limits`."""
    names = ", ".join(f"{field.name} ({field.default:,})" for field in fields(Limits))
    return click.option(
        "--limit", "limits", multiple=True, metavar="NAME=N", callback=_limits,
        help=f"Raise or lower a limit on the text: {names}.",
    )(command)  # fmt: skip


def _limits(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> Limits:
    limits = DEFAULT_LIMITS
    known = [field.name for field in fields(Limits)]
    for text in given:
        name, _, number = text.partition("=")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise UsageError(
                "E3117",
                f"there is no limit {name!r}",
                hint=f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}",
            )
        if not number.isdecimal() or len(number) > 20:
            raise UsageError("E3117", f"--limit {name}= takes a number, not {number!r}")
        limits = replace(limits, **{name: int(number)})
    return limits
