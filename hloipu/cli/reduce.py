"""`hloipu reduce FILE --test CMD`: the smallest form of a module that a test still holds for."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from hloipu.cli.inputs import HLO_FILE, read_input
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.reduce.reducer import MOST_TESTS, Progress, reduce_module
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.atomic_file import replacing
from hloipu_runtime.errors import UsageError


@click.command("reduce")
@click.argument("file", type=HLO_FILE)
@click.option("--test", "test", required=True, metavar="CMD", help="Exits 0 on what to keep.")
@click.option("-o", "--output", type=click.Path(), help="Write the result here, not to stdout.")
@click.option(
    "--most-tests", type=click.IntRange(1), default=MOST_TESTS, show_default=True,
    help="Stop after so many runs of CMD.",
)  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True,
    help="Seconds for one run of CMD; longer is not interesting.",
)  # fmt: skip
def command(file: str, test: str, output: str | None, most_tests: int, timeout: float) -> None:
    """Shrink FILE (- for standard input) to its smallest form that CMD still holds for.

    CMD is run on candidates, their path in place of {} or at the end. A candidate is interesting,
    and kept, if and only if CMD exits with 0. It has a valid module each time; its stdout and
    stderr are dropped. No shell is involved: write sh -c '…' for pipes.

    \b
      hloipu reduce bad.hlo --test 'sh -c "hloipu check {} --against xla-cpu; test $? = 6"'
    """
    module = parse(read_input(file))
    verify(module)
    tester = CommandTest(words_of(test), timeout)
    shown = sys.stderr.isatty()

    def report(progress: Progress) -> None:
        click.echo(
            f"\r\x1b[K{progress.pass_name}: {progress.instructions} instructions, "
            f"{progress.tests} tests",
            nl=False,
            err=True,
        )

    try:
        found = reduce_module(
            module, tester.holds, most_tests=most_tests, report=report if shown else None
        )
    finally:
        tester.close()
        if shown:
            click.echo("\r\x1b[K", nl=False, err=True)
    if output is None:
        click.echo(found.text, nl=False)
    else:
        with replacing(output) as stream:
            stream.write(found.text.encode("utf-8", errors="surrogateescape"))
    ending = "" if found.complete else "; --most-tests ended it early"
    click.echo(
        f"{module.instruction_count} -> {found.module.instruction_count} instructions, "
        f"{found.tests} tests{ending}",
        err=True,
    )


def words_of(test: str) -> list[str]:
    """Split a command as a shell does; raises UsageError where a quote is left open."""
    try:
        words = shlex.split(test)
    except ValueError as error:
        raise unusable(test, str(error)) from error
    if not words:
        raise unusable(test, "it is empty")
    return words


def unusable(test: str, why: str) -> UsageError:
    """Return the error of a test that cannot be run at all."""
    return UsageError(
        "E3116",
        f"the test {test!r} cannot be run: {why}",
        hint="give a program on the PATH or a path to one, and its arguments",
    )


class CommandTest:
    """Runs a command on texts, in a file of its own."""

    def __init__(self, words: list[str], timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._words = words
        self._folder = tempfile.TemporaryDirectory(prefix="hloipu-reduce-")
        self._path = str(Path(self._folder.name) / "candidate.hlo")

    def close(self) -> None:
        """Remove the file."""
        self._folder.cleanup()

    def holds(self, text: str) -> bool:
        """Whether the command exits with 0 on a text, in time."""
        Path(self._path).write_text(text, encoding="utf-8", errors="surrogateescape")
        words = [word.replace("{}", self._path) for word in self._words]
        if words == self._words:
            words.append(self._path)
        try:
            child = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise unusable(shlex.join(self._words), error.strerror or str(error)) from error
        try:
            return child.wait(self._timeout_seconds) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            if child.poll() is None:
                # The whole session: the command may be a shell with children of its own.
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
