"""Run the command line in this process, errors and exit codes included."""

import sys
from dataclasses import dataclass

import pytest
from click.testing import CliRunner

from hloipu.cli import main


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run printed and how it ended."""

    code: int
    out: str
    err: str


def run(*arguments: str, stdin: str | bytes = "") -> Outcome:
    """Run `hloipu ARGUMENTS…` through its own `main`, with nothing real behind the streams."""
    with pytest.MonkeyPatch.context() as patch, CliRunner().isolation(stdin) as (out, err, _):
        patch.setattr(sys, "argv", ["hloipu", *arguments])
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        sys.stdout.flush()
        sys.stderr.flush()
        said = Outcome(
            code if isinstance(code, int) else 0 if code is None else 1,
            out.getvalue().decode(),
            err.getvalue().decode(),
        )
    return said
