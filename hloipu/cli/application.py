"""The click application: finds subcommands lazily and turns errors into messages and exit codes."""

import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from io import StringIO
from typing import Any, NoReturn, TextIO, cast

import click

from hloipu import __version__
from hloipu.cli import COMMANDS, COMPLETE_VARIABLE, INTERRUPTED
from hloipu.cli.saying import say, say_error, unwritten
from hloipu.showing import shown
from hloipu_compiler.source import Span
from hloipu_runtime.collection import without_collection
from hloipu_runtime.errors import HloipuError, LimitError, UsageError
from hloipu_runtime.nearest import did_you_mean
from hloipu_runtime.program.faults import Fault as ProofFault
from hloipu_runtime.watching import doing

_MAKING = frozenset({"compile", "estimate", "emit", "opt", "show", "verify"})
"""Commands that make something once and end: cycles of theirs go with the process."""

_SHOWING = frozenset({"capture", "reduce", "run"})
"""Commands that say themselves what is shown: others write to the terminal meanwhile, for one."""


class ReaderGoneError(Exception):
    """Whoever read stdout has closed it."""


class LazyGroup(click.Group):
    """A group whose commands are imported only when one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(
            f"hloipu.cli.commands.{cmd_name.replace('-', '_')}"
        ).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; where there is none, name the nearest."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            hint = did_you_mean(args[0], COMMANDS, "hloipu --help lists them")
            ctx.fail(f"no such command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; click itself would end a broken pipe with exit code 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGoneError from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hloipu", message="%(prog)s %(version)s")
def application() -> None:
    """Read XLA HLO text and see it on a modelled Graphcore IPU."""


def run() -> NoReturn:
    """Run the application; every HloipuError ends as its message and its exit code."""
    open_closed_streams()
    code: int | str | None = 0
    try:
        with without_collection() if sys.argv[1:2] and sys.argv[1] in _MAKING else nullcontext():
            code = outcome()
            gc.freeze()  # the process ends: nothing is to be looked through any more
        sys.stdout.flush()
    except (BrokenPipeError, ReaderGoneError):
        code = 141  # the reader of stdout went away (`| head`)
    except OSError as error:  # what was still to be written
        if not code:
            report(unwritten(error))
            code = UsageError.exit_code
    _say_no_more()
    sys.exit(code)


def _say_no_more() -> None:
    """Flush what can be; Python must not complain at exit about streams that are gone."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def open_closed_streams() -> None:
    """Put something in place of standard streams that the caller has closed (`>&-`).

    Files that are opened later would get their numbers. Reading the one and writing the other fails
    as it should, by a handle that is not for it; what is said on stderr is dropped.
    """
    for number, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, flags), number)
    # Python has None for a stream that was closed when it started.
    sys.stdin = sys.stdin or _over(0, "r")
    sys.stdout = sys.stdout or _over(1, "w")
    sys.stderr = sys.stderr or _over(2, "w")


def _over(number: int, mode: str) -> TextIO:
    """Return a text stream over a handle that is open from now on."""
    return cast(TextIO, open(number, mode, encoding="utf-8", closefd=False))


@contextmanager
def _shown() -> Iterator[None]:
    """Show on a terminal what a command is at, unless its output is for programs."""
    name = sys.argv[1] if sys.argv[1:] else ""
    if name in _SHOWING:
        yield
        return
    with shown(wanted="--json" not in sys.argv), doing(name):
        yield


def outcome() -> int | str | None:
    """Run the application; return what to exit with."""
    try:
        # A command that ends by click's Exit makes click return its code; others return None.
        with _shown():
            returned = application(standalone_mode=False, complete_var=COMPLETE_VARIABLE)
    except SystemExit as stop:
        return stop.code
    except (click.Abort, KeyboardInterrupt) as stop:
        # click makes its own exception of an interrupt, and of the queue's that was waiting.
        reason = stop.__cause__ if isinstance(stop, click.Abort) else stop
        say(str(reason) if isinstance(reason, HloipuError) else "interrupted", err=True)
        return INTERRUPTED
    except click.ClickException as error:
        shown = StringIO()
        (_no_option(error) if isinstance(error, click.NoSuchOption) else error).show(shown)
        say_error(shown.getvalue().rstrip("\n"))
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        name = "a file" if error.filename is None else repr(str(error.filename))
        report(UsageError("E3006", f"the system refuses {name}: {error.strerror or error}"))
        return UsageError.exit_code
    except HloipuError as error:
        report(error)
        return error.exit_code
    except MemoryError:
        gone = LimitError(
            "E5015",
            "the process was given no more memory",
            limit="memory",
            allowed=0,
            found=0,
            hint="use a machine with more memory, or a smaller module",
        )
        report(gone)
        return gone.exit_code
    return returned if isinstance(returned, int) else 0


def _no_option(error: click.NoSuchOption) -> click.UsageError:
    from hloipu.options.poplar_keys import option_hint

    name = error.option_name.lstrip("-")
    known = _long_options(error.ctx.command) if error.ctx is not None else []
    context = click.Context(application)
    others = [
        other
        for other in COMMANDS
        if name in _long_options(cast(click.Command, application.get_command(context, other)))
    ]
    if others:
        hint = f"hloipu {', '.join(others)} {'have' if others[1:] else 'has'} it"
        return click.UsageError(f"no such option {error.option_name} here; {hint}", error.ctx)
    hint = option_hint(name, known, "-h lists the options", "--")
    return click.UsageError(f"no such option {error.option_name}; {hint}", error.ctx)


def _long_options(command: click.Command) -> list[str]:
    options = (option for one in command.params for option in (*one.opts, *one.secondary_opts))
    return [option[2:] for option in options if option.startswith("--")]


def report(error: HloipuError) -> None:
    """Show an error on stderr, or as a JSON object on stdout where `--json` was asked for."""
    if "--json" in sys.argv and error.code != "E3006":
        with suppress(HloipuError):  # stdout takes nothing
            say(json.dumps(error_record(error), ensure_ascii=False))
            return
    say_error(str(error))


def error_record(error: HloipuError) -> dict[str, object]:
    """Return an error as JSON data, with every fault and its place."""
    record: dict[str, object] = {
        "schema": "hloipu.error/1",
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "exit_code": error.exit_code,
    }
    span = getattr(error, "span", None)
    if span is not None:
        record |= place_record(span)
    faults = getattr(error, "faults", ())
    if faults:
        record["faults"] = [fault_record(fault) for fault in faults]
    return record


def fault_record(fault: Any) -> dict[str, object]:
    """Return a fault of a module's text, or of a program's proof, as JSON data."""
    if isinstance(fault, ProofFault):
        return {"rule": fault.rule, "place": fault.place, "message": fault.message}
    return {
        "code": fault.code,
        "message": fault.message,
        "expected": fault.expected,
        "hint": fault.hint,
        **place_record(fault.span),
    }


def place_record(span: Span | None) -> dict[str, object]:
    """Return a place as JSON data."""
    if span is None:
        return {"file": None, "line": None, "column": None}
    line, column = span.source.line_and_column(span.start)
    return {"file": span.source.name, "line": line, "column": column}
