"""Input and output files of subcommands; outputs are checked before the work."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from hloipu.text import read_file, read_stream
from hloipu_compiler.hlo.syntax.limits import DEFAULT_LIMITS, Limits
from hloipu_compiler.source import Source
from hloipu_runtime.errors import UsageError
from hloipu_runtime.nearest import did_you_mean

HLO_FILE = click.Path(allow_dash=True)
F = TypeVar("F", bound=Callable[..., Any])


def read_input(name: str, limits: Limits = DEFAULT_LIMITS) -> Source:
    """Return the text of a file, or of standard input for `-`, no longer than `limits`."""
    if name == "-":
        return read_stream(sys.stdin.buffer, "<stdin>", limits)
    return read_file(Path(name), limits)


def limit_option(command: F) -> F:
    """Add --limit NAME=N, which hands the command a `limits`."""
    return click.option(
        "--limit", "limits", multiple=True, metavar="NAME=N",
        callback=lambda _context, _option, texts: with_limits(texts, DEFAULT_LIMITS)[0],
        help=f"Raise or lower a limit on the text: {limit_names(DEFAULT_LIMITS)}.",
    )(command)  # fmt: skip


def limit_names(*records: Any) -> str:
    """Return the names of limits with their defaults, for a help text."""
    return ", ".join(
        f"{field.name} ({field.default:,})"
        for record in records
        for field in fields(record)
        if field.default is not None
    )


def with_limits(texts: Sequence[str], *records: Any) -> list[Any]:
    """Return records of limits with the `NAME=N` of the command line put in.

    Raises UsageError where no record has the name, or what follows is no number.
    """
    changed = list(records)
    homes = {field.name: i for i, record in enumerate(records) for field in fields(record)}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in homes:
            raise UsageError(
                "E3117",
                f"there is no limit {name!r}",
                hint=did_you_mean(name, homes, f"one of {', '.join(homes)}"),
            )
        if not number.isdecimal() or len(number) > 20:
            raise UsageError("E3117", f"--limit {name}= takes a number, not {number!r}")
        changed[homes[name]] = replace(changed[homes[name]], **{name: int(number)})
    return changed


class OutputFile(click.ParamType[str]):
    """A path that can be written: not empty, no folder, in a folder that is there."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the path; raises UsageError E3004 where nothing could be written there."""
        from hloipu_runtime.atomic_file import check_writable

        check_writable(value)
        return str(value)


OUTPUT_FILE = OutputFile()
