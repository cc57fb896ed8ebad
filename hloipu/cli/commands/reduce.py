"""`hloipu reduce FILE`: the smallest form of a module that still shows a fault."""

import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import click

from hloipu.cli import INTERRUPTED
from hloipu.cli.commands.candidate_tests import Setup, differs_test, error_test
from hloipu.cli.inputs import HLO_FILE, OUTPUT_FILE, limit_option, read_input
from hloipu.cli.options import Asked, GroupedCommand, option_group
from hloipu.cli.saying import say, say_as_it_is, say_hlo
from hloipu.cli.trials import CommandTest, ForkedTest, Tester, Trials, words_of
from hloipu.cli.values import SEED
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.reduce.reducer import MOST_TESTS, Reduced, reduce_module, verifies
from hloipu_compiler.reduce.search import Progress
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.atomic_file import replacing
from hloipu_runtime.errors import UsageError
from hloipu_runtime.plain_text import plain_lines

_SECONDS = click.FloatRange(0, min_open=True)
_NEXT_SECONDS = 0.1
"""Between two states of the line on a terminal."""
_QUIET_SECONDS = 10.0
"""Without a word where no terminal is: then a row says that the work goes on."""
_HEAD = " seconds   tests  instructions  after"


@click.command("reduce", cls=GroupedCommand)
@click.argument("file", type=HLO_FILE)
@click.option("--error", "code", metavar="CODE", help="Keep what ends in this error.")
@click.option(
    "--differs", is_flag=True, help="Keep what has other values compiled than evaluated op by op."
)
@click.option("--test", "test", metavar="CMD", help="Keep what this command exits with 0 on.")
@click.option("-o", "--output", type=OUTPUT_FILE, help="Write the result here, not to stdout.")
@click.option(
    "--time-limit",
    type=_SECONDS,
    metavar="SECONDS",
    help="Stop after this time, with the best so far.",
)
@click.option(
    "--most-tests", type=click.IntRange(1), default=MOST_TESTS, show_default=True,
    help="Stop after N tests, with the best so far.",
)  # fmt: skip
@click.option(
    "--timeout", type=_SECONDS, metavar="SECONDS",
    help="Time limit of a candidate.  [default: 60, or twice what FILE takes]",
)  # fmt: skip
@click.option(
    "--random", "seed", type=SEED, metavar="SEED", help="Seed of the arguments drawn.  [default: 0]"
)
@click.option(
    "--fill-elided", "fill", type=SEED, metavar="SEED",
    help="Put random values where constants were elided, in each test.",
)  # fmt: skip
@limit_option
@option_group("reduce")
def command(
    file: str,
    code: str | None,
    differs: bool,
    test: str | None,
    output: str | None,
    time_limit: float | None,
    most_tests: int,
    timeout: float | None,
    seed: int | None,
    fill: int | None,
    limits: Limits,
    asked: Asked,
) -> None:
    """Shrink FILE (- for standard input) to its smallest form that still shows a fault.

    Which fault is one of --error CODE, of verifying, estimating, fitting, evaluating or running;
    --differs, by what `hloipu check --target …` allows; and --test CMD. The options of compiling
    are those of the command that shows it. The first two are tested in one process, apart from this
    one. CMD is run on candidates, their path in place of {} or at the end, without a shell.

    Each improvement is written to the output at once. Ctrl-C ends with the best so far.

    \b
      hloipu reduce model.hlo --target bow --error E4050 -o small.hlo
      hloipu reduce model.hlo --target bow --differs
      hloipu reduce bad.hlo --test 'sh -c "hloipu check {} --against xla-cpu; test $? = 6"'
    """
    check_combination(code, differs, test, asked, values_given=not seed is fill is None)
    module = parse(read_input(file, limits), limits=limits)
    is_valid, tester = _tester(module, code, differs, test, Setup(asked, seed or 0, fill))
    result = _Result(output)
    trials = Trials(tester, timeout, time_limit)
    progress = ReduceProgress(module.instruction_count)
    try:
        reduced = reduce_module(
            module,
            trials.holds,
            most_tests=most_tests,
            is_valid=is_valid,
            report=progress,
            improved=result.improve,
            is_over=trials.is_over,
        )
    except KeyboardInterrupt:
        if result.best is None:
            raise
        progress.end_of_pass()
        result.finish()
        say(
            f"interrupted: the best so far, {result.best[0].instruction_count} of "
            f"{module.instruction_count} instructions, is {result.place}",
            err=True,
        )
        raise click.exceptions.Exit(INTERRUPTED) from None
    except Exception:
        result.finish()
        raise
    finally:
        tester.close()
    progress.end_of_pass()
    result.finish()
    say(_summary(module, reduced, progress.seconds, time_limit), err=True)
    if trials.too_late:
        say(f"{trials.too_late} candidates were given up: they took too long", err=True)


def check_combination(
    code: str | None, differs: bool, test: str | None, asked: Asked, *, values_given: bool
) -> None:
    """Raise UsageError E3118 unless there is exactly one test, with options that it heeds."""
    tests = {"--error": code is not None, "--differs": differs, "--test": test is not None}
    chosen_tests = [name for name, is_given in tests.items() if is_given]
    if len(chosen_tests) != 1:
        raise UsageError(
            "E3118",
            f"{' and '.join(chosen_tests)} exclude each other"
            if chosen_tests
            else "nothing says what to keep",
            hint="give one of --error CODE, --differs and --test CMD",
        )
    if test is not None and (asked.given or values_given):
        flags = [f"--{name.replace('_', '-')}" for name in asked.given]
        raise UsageError(
            "E3118",
            f"{', '.join(flags) or '--random and --fill-elided'} would have no effect: --test runs "
            "a command of its own",
            hint="give the options to that command",
        )


def _tester(
    module: Module, code: str | None, differs: bool, test: str | None, setup: Setup
) -> tuple[Callable[[Module], bool], Tester]:
    """Return which candidates may be tested, and what tests them."""
    if code is not None:
        predicate = error_test(code, module, setup)
        say(f"{predicate.code} comes up while {predicate.stage}", err=True)
        is_valid = verifies if predicate.needs_valid else lambda _: True
        return is_valid, ForkedTest(predicate)
    verify(module)
    if differs:
        return verifies, ForkedTest(differs_test(module, setup))
    return verifies, CommandTest(words_of(test or ""))


class _Result:
    """The best so far, and where it goes."""

    def __init__(self, output: str | None) -> None:
        self.best: tuple[Module, str] | None = None
        self._output = output
        self._written = ""

    @property
    def place(self) -> str:
        return "on standard output" if self._output is None else f"in {self._output}"

    def improve(self, module: Module, text: str) -> None:
        """Record a better result; a plain output file is replaced at once."""
        self.best = (module, text)
        if self._output is not None:
            path = Path(self._output)
            if path.is_file() or not path.exists():
                self._write()

    def finish(self) -> None:
        """Write the result, unless that is done."""
        if self.best is None:
            return
        if self._output is None:
            say_hlo(self.best[1])
        elif self._written != self.best[1]:
            self._write()

    def _write(self) -> None:
        if self._output is not None and self.best is not None:
            with replacing(self._output) as stream:
                stream.write(self.best[1].encode("utf-8", errors="surrogateescape"))
            self._written = self.best[1]


def _summary(module: Module, reduced: Reduced, seconds: float, time_limit: float | None) -> str:
    endings = {
        "smallest": "",
        "tests": "; --most-tests ended it early",
        "time": f"; --time-limit {time_limit} ended it early",
    }
    return (
        f"{module.instruction_count} -> {reduced.module.instruction_count} instructions, "
        f"{reduced.tests} tests, {seconds:.1f} s{endings[reduced.ending]}"
    )


class ReduceProgress:
    """Writes a row on stderr for each pass that shrank the module, and on a terminal its state."""

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
        """Record the state after a test."""
        if progress.pass_name != self._now.pass_name:
            self.end_of_pass()
        self._now = progress
        quiet = monotonic() - self._last
        if self._is_terminal and quiet >= _NEXT_SECONDS:
            self._last = monotonic()
            say_as_it_is(f"\r\x1b[K{plain_lines(self._row(progress))} …", nl=False, err=True)
        elif not self._is_terminal and quiet >= _QUIET_SECONDS:
            self._write(progress)

    def end_of_pass(self) -> None:
        """Write a row if the last pass has shrunk the module."""
        if self._now.instructions != self._instructions:
            self._write(self._now)
        elif self._is_terminal:
            say_as_it_is("\r\x1b[K", nl=False, err=True)

    def _write(self, progress: Progress) -> None:
        wipe = "\r\x1b[K" if self._is_terminal else ""
        if not self._has_head:
            self._has_head = True
            say_as_it_is(f"{wipe}{_HEAD}", err=True)
        say_as_it_is(f"{wipe}{plain_lines(self._row(progress))}", err=True)
        self._instructions = progress.instructions
        self._last = monotonic()

    def _row(self, progress: Progress) -> str:
        return (
            f"{self.seconds:8.1f}  {progress.tests:6,}  {progress.instructions:12,}  "
            f"{progress.pass_name}"
        )
