"""Shared by commands that compile: FILE and options to a program and its report."""

import functools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypeVar

import click

from hloipu.api import Settled, as_asked, compile_cached, module_attributes, settled_options
from hloipu.cli.inputs import OUTPUT_FILE, read_input
from hloipu.cli.options import Asked, option_group
from hloipu.cli.saying import say, say_error
from hloipu.cli.table import table
from hloipu.compile_request import wrapping_lines
from hloipu.definitions import key_text
from hloipu.encoded import plain_step
from hloipu.options.origin import DEFAULT
from hloipu.options.table import OPTIONS, Options
from hloipu.showing import Phases, interruptible
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.compiled import CompiledProgram, load
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.memory.does_not_fit import DoesNotFit, require_fit
from hloipu_runtime.program_io.frame.layout import MAGIC
from hloipu_runtime.report.pipeline_chart import pipeline_lines
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.report.verdict import verdict

F = TypeVar("F", bound=Callable[..., Any])

_OF_COMPILING = (
    "target", "set", "ipus", "passes", "plugin", "loop", "role", "feed", "outfeed", "stages",
    "shards", "replicas", "hosts", "shard_optimizer", "gather_weights", "offload",
    "offload_activations", "offload_weights", "offload_accumulators", "batch_serialization",
    "micro_batches", "schedule", "reduction", "accumulator_dtype", "accumulator", "device_map",
    "cut_at", "loss_output", "plan", "define", "opaque",
)  # fmt: skip
"""Options that say how to compile, which an executable has behind it."""


@dataclass(frozen=True, slots=True)
class Reporting:
    """Report options of a command."""

    profile: str | None
    """File for the profile."""
    as_json: bool
    timing: bool
    chart: bool = False
    """Print the chart of each pipeline as well."""


chart_option: Callable[[F], F] = click.option(
    "--chart",
    is_flag=True,
    help="Print bars of cycles and bytes; of pipelines, stages by slots and what each costs.",
)


def compiling_options(command: str) -> Callable[[F], F]:
    """Give a command the options of the table as `asked`, and how to report as `reporting`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def called(
            *arguments: Any, profile: str | None, as_json: bool, timing: bool, **keywords: Any
        ) -> Any:
            return function(*arguments, reporting=Reporting(profile, as_json, timing), **keywords)

        decorated: Any = option_group(command)(called)
        for option in (
            click.option("--timing", is_flag=True, help="Print the time of each phase on stderr."),
            click.option("--json", "as_json", is_flag=True, help="Print the profile as JSON."),
            click.option("--profile", type=OUTPUT_FILE, help="Write the profile to a JSON file."),
        ):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def given_file(file: str | None) -> str:
    """Return FILE, which only --print-config does without; click's own error where it is not."""
    if file is None:
        raise click.UsageError("Missing argument 'FILE'.")
    return file


def read_verified(file: str, limits: Limits, phases: Phases, asked: Asked) -> tuple[Module, str]:
    """Return the verified module of a file, and the text that stands for it in the cache.

    A step in Graphcore's encoding is made plain; says on stderr what was read of it.
    """
    with phases("parse"):
        source = read_input(file, limits)
        module = parse(source, limits=limits)
    with phases("verify"):
        verify(module)
        stated_options = {**asked.given, "opaque": asked.opaque}
        module, lines = plain_step(module, stated_options, asked.config)
    for line in lines:
        say(line, err=True)
    return module, key_text(module, source.text, stated_options, asked.config)


def settled_for(asked: Asked, module: Module, text: str) -> Settled:
    """Return the options, the module's own attributes considered.

    Says on stderr how the step is wrapped, where that is asked for. With `plan="auto"` it looks
    for the best way to cut it, shows the others, and returns options for that one.
    """
    options = asked.resolved(module_attributes(module)).options
    settled = settled_options(module, text, options)
    if settled.choice is not None:
        from hloipu.cli.result_text import choice_text

        say(choice_text(settled.choice), err=True)
    for line in wrapping_lines(module, settled.options):
        say(line, err=True)
    return settled


def compiled(asked: Asked, module: Module, text: str, phases: Phases) -> CompiledProgram:
    """Return the program of a verified module; says on stderr what `settled_for` says."""
    settled = settled_for(asked, module, text)
    return compile_cached(settled.module, text, settled.options, phases, ready=settled.program)


def program_of(file: str, limits: Limits, asked: Asked, phases: Phases) -> CompiledProgram:
    """Return the program of a file that holds HLO text, or an executable."""
    if is_executable(file):
        return loaded(file, asked, phases)[0]
    module, text = read_verified(file, limits, phases, asked)
    return compiled(asked, module, text, phases)


def is_executable(file: str) -> bool:
    """Whether a file begins or is named as executables are: a damaged one is no text, either."""
    try:
        # The bytes of a pipe are gone once they are looked at.
        if not S_ISREG(os.stat(file).st_mode):
            return False
        with open(file, "rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC or file.endswith(".ipux")
    except (OSError, ValueError):  # whoever reads it as text says so
        return False


def loaded(file: str, asked: Asked, phases: Phases) -> tuple[CompiledProgram, Options]:
    """Return an executable with the options applied, and these.

    Raises UsageError E3144 where the command line says how to compile it.
    """
    for name in _OF_COMPILING:
        if name in asked.given:
            raise too_late(file, OPTIONS[name].flag)
    with phases("load"):
        program = load(file)
    resolved = asked.resolved()
    settings_kept = {
        name: getattr(program, name)
        for name in ("code_memory", "over_memory")
        if resolved.origins[name] is DEFAULT
    }
    options = replace(resolved.options, **settings_kept)
    return as_asked(program, options), options


def too_late(file: str, flag: str) -> UsageError:
    """Return the error of an option that an executable cannot follow any more."""
    return UsageError(
        "E3144",
        f"{file!r} is compiled already: {flag} comes too late",
        hint="give it to the command that compiles the module",
    )


def report(profile: Profile, reporting: Reporting) -> None:
    """Print the verdict, or the profile as JSON; write the profile to a file if asked."""
    if reporting.profile:
        write_profile(profile, reporting.profile)
    for line in profile.options.get("cut", ()):
        say(line, err=True)
    if "search" in profile.options:
        say(f"looking for better {profile.options['search']}", err=True)
    hoisting = profile.options.get("hoisting")
    if hoisting:
        say(
            "copies of what loops do not change: {hoisted} of {copies} are made before the loops, "
            "{hoisted_bytes_per_tile:,} of {bytes_per_tile:,} bytes a tile".format(**hoisting),
            err=True,
        )
    say(profile_text(profile) if reporting.as_json else verdict(profile))
    if reporting.chart and not reporting.as_json:
        from hloipu.cli.drawn import bars, pipelines, say_drawn

        say("")
        say_drawn(bars(profile))
        if profile.pipelines:
            say("")
            say_drawn(pipelines(profile))


def tell_pipelines(profile: Profile) -> None:
    """Print on stderr how the program's pipelines work."""
    for line in pipeline_lines(profile):
        say(line, err=True)


def write_profile(profile: Profile, path: str) -> None:
    """Write a profile to a JSON file."""
    from hloipu_runtime.atomic_file import replacing

    with replacing(Path(path)) as stream:
        stream.write(f"{profile_text(profile)}\n".encode())


def profile_text(profile: Profile) -> str:
    """Return a profile as JSON text."""
    return json.dumps(profile.record(), indent=1)


def estimated(program: CompiledProgram, phases: Phases) -> Profile:
    """Return the profile of an estimate, with findings."""
    with phases("costs"):
        program.costs  # noqa: B018 - made when first asked for
    with phases("memory"):
        program.memory  # noqa: B018
    with phases("report"):
        profile = program.profile()
    with phases("findings"):
        return replace(profile, findings=program.findings(profile))


def with_fitting(profile: Profile, program: CompiledProgram, phases: Phases) -> Profile:
    """Return a profile with what makes the program fit, if it has to and does not."""
    if program.fits or program.over_memory == "allow":
        return profile
    with phases("advice"):
        return replace(profile, fitting=program.fitting)


def stop_unless_fits(program: CompiledProgram) -> None:
    """End the command (exit code 5) for a program that needs too much, and say what needs it."""
    if program.over_memory == "allow":
        return
    try:
        require_fit(program.memory, program.fitting_lines)
    except DoesNotFit as error:
        say_error(str(error))
        from hloipu.cli.result_text import culprits_text, uses_text

        say(uses_text(error.report), err=True)
        say(culprits_text(error.report), err=True)
        raise click.exceptions.Exit(error.exit_code) from None


@contextmanager
def timed(reporting: Reporting) -> Iterator[Phases]:
    """Give a command its clock; print what each phase took, if asked, however it ends.

    The first interrupt ends a search.
    """
    phases = Phases()
    try:
        with interruptible():
            yield phases
    finally:
        if reporting.timing:
            say(times_text(phases), err=True)


def times_text(phases: Phases) -> str:
    """Return a table of phases."""
    total = sum(phases.seconds.values())
    rows = [
        (name, f"{1e3 * seconds:.2f}", f"{100 * seconds / total:.0f} %" if total else "")
        for name, seconds in (*phases.seconds.items(), ("total", total))
    ]
    return table(("phase", "ms", "share"), rows)
