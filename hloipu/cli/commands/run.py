"""`hloipu run FILE`: a program's values on the simulated machine, and what they cost."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import click

from hloipu.api import compile_cached
from hloipu.cli.compiling import (
    Reporting,
    compiling_options,
    estimated,
    given_file,
    is_executable,
    loaded,
    read_verified,
    report,
    settled_for,
    stop_unless_fits,
    timed,
    too_late,
)
from hloipu.cli.inputs import HLO_FILE, OUTPUT_FILE
from hloipu.cli.options import Asked, GroupedCommand, native_kernels_of
from hloipu.cli.run_session import (
    needs_session,
    numbers_asked,
    ports_named,
    run_in_session,
    show_session,
)
from hloipu.cli.saying import say, turns_told
from hloipu.cli.session_options import SessionOptions, session_options
from hloipu.cli.values import ValueLimits, given_arguments, input_options, shown
from hloipu.initial_arrays import random_arrays, read_arrays
from hloipu.inputs import save_arrays
from hloipu.options.table import Options
from hloipu.ports import module_of_ports, without_tokens
from hloipu.showing import Phases
from hloipu.showing import shown as shown_meanwhile
from hloipu_compiler.interpret.random_inputs import fill_elided
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.atomic_file import check_writable
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError, RunInterruptedError, UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program.seen import number_of, seen_by_users
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.session.run_result import RunResult
from hloipu_runtime.watching import doing


@dataclass(frozen=True, slots=True)
class Inputs:
    """Sources of arguments, from the command line."""

    file: str | None
    random: int | None
    fill: int | None
    limits: ValueLimits
    numbers: Mapping[str, str] = field(default_factory=dict)
    """What `--input` gives, by name."""


@dataclass(frozen=True, slots=True)
class Work:
    """A program, how to run it, and on what; an estimate needs no arguments."""

    program: CompiledProgram
    options: Options
    arguments: Sequence[Any] = ()
    arrays: Mapping[int, Any] = field(default_factory=dict)
    """For a session: state and constants by number of the parameter."""


@click.command("run", cls=GroupedCommand)
@click.argument("file", type=HLO_FILE, required=False)
@click.option("-o", "--output", type=OUTPUT_FILE, help="Write out_0, out_1, … to this .npz file.")
@compiling_options("run")
@click.option("--no-progress", is_flag=True, help="Show no progress on a terminal.")
@click.option("--report", "page", type=OUTPUT_FILE, metavar="PAGE.html",
              help="Write a page of the run, as hloipu report does of an estimate.")  # fmt: skip
@session_options
@input_options
def command(
    file: str | None,
    output: str | None,
    no_progress: bool,
    page: str | None,
    inputs: str | None,
    random: int | None,
    fill: int | None,
    limits: ValueLimits,
    session: SessionOptions,
    asked: Asked,
    reporting: Reporting,
) -> None:
    """Run FILE, HLO text (- for standard input) or an executable; print verdict and values.

    \b
      hloipu run step.hlo --random 0 --target bow --mode exact
      hloipu run step.ipux --inputs batch.npz -o results.npz
    """
    wanted = not (no_progress or reporting.as_json)
    with shown_meanwhile(wanted=wanted), doing("run"), timed(reporting) as phases:
        array_sources = Inputs(inputs, random, fill, limits, session.inputs)
        if page is not None:
            check_writable(page)
        # Programs from the cache have no module any more, which pages show.
        work = prepared(given_file(file), array_sources, asked, phases, caches=page is None)
        program = replace(work.program, live_bytes=limits.values.live_bytes)
        work = replace(work, program=program)
        with native_kernels_of(work.options):
            if work.options.mode == "estimate":
                profile = estimated(work.program, phases)
                report(profile, reporting)
                write_page_of(program, profile, page, phases)
                return
            if work.program.program.is_resident:
                profile = run_resident(work, session, phases, reporting, output)
                write_page_of(program, profile, page, phases)
                return
            session.require_none()
            if session.inputs:
                arguments = list(work.arguments)
                for number, values in numbers_asked(program, session).items():
                    arguments[number] = values[0]
                work = replace(work, arguments=arguments)
            result = run(work, phases, reporting)
            report(result.profile, reporting)
            show_values(work.program, result, output, reporting)
            write_page_of(program, result.profile, page, phases)


def write_page_of(
    program: CompiledProgram, profile: Profile, page: str | None, phases: Phases
) -> None:
    """Write the page of a profile, if that is asked for."""
    if page is None:
        return
    from hloipu.report.page import write_page
    from hloipu.report.record import report_record

    with phases("page"):
        size_bytes = write_page(report_record(program, profile), Path(page))
    say(f"wrote {size_bytes:,} bytes to {page}", err=True)


def prepared(
    file: str, inputs: Inputs, asked: Asked, phases: Phases, *, caches: bool = True
) -> Work:
    """Return the program of a file, compiled if need be, and its arguments.

    Without `caches` it is compiled anew.
    """
    if is_executable(file):
        if inputs.fill is not None:
            raise too_late(file, "--fill-elided")
        program, options = loaded(file, asked, phases)
        if options.mode == "estimate":
            return Work(program, options)
        if program.program.is_resident:
            return Work(program, options, arrays=session_arrays(program, None, inputs))
        ports = module_of_ports(program.program)
        return Work(program, options, arguments_of(ports, inputs)[1])
    step, text = read_verified(file, inputs.limits.text, phases, asked)
    step, options, choice = settled_for(asked, step, text)
    module = step
    ready = choice.program if choice is not None else None
    if not caches:
        options = replace(options, cache=False)
    if options.mode == "estimate":
        return Work(compile_cached(module, text, options, phases, ready=ready), options)
    if needs_session(module, options):
        if inputs.fill is not None:
            module = fill_elided(module, inputs.fill)
            text += f"\n// elided constants filled with seed {inputs.fill}"
        ready = ready if module is step else None
        program = compile_cached(module, text, options, phases, ready=ready)
        arrays = session_arrays(program, module, inputs)
        return Work(program, options, arrays=arrays)
    with phases("arguments"):
        module, leaves = arguments_of(module, inputs)
    if inputs.fill is not None:
        text += f"\n// elided constants filled with seed {inputs.fill}"
    ready = ready if module is step else None
    program = compile_cached(module, text, options, phases, ready=ready)
    return Work(program, options, without_tokens(module, leaves))


def arguments_of(module: Module, inputs: Inputs) -> tuple[Module, list[Any]]:
    """Return the module, filled if asked, and the leaves of its arguments."""
    return given_arguments(module, inputs.file, inputs.random, inputs.fill, inputs.limits.values)


def session_arrays(
    program: CompiledProgram, module: Module | None, inputs: Inputs
) -> dict[int, Any]:
    """Return what a session begins with, as the command line says; nothing where it says nothing.

    What `--input` gives is left out of it.

    Raises UsageError E3112 for two sources of arrays.
    """
    if inputs.file is not None and inputs.random is not None:
        raise UsageError(
            "E3112", "--inputs and --random exclude each other", hint="give one of them"
        )
    if inputs.file is not None:
        given_apart = [number_of(port) for port, _ in ports_named(program, inputs.numbers)]
        return read_arrays(inputs.file, program.program, module, given_apart)
    if inputs.random is not None:
        return random_arrays(inputs.random, program.program, module)
    return {}


def run_resident(
    work: Work, session: SessionOptions, phases: Phases, reporting: Reporting, output: str | None
) -> Profile:
    """Run a program in a session and report it; return the run's profile."""
    program = work.program
    with phases("memory"):
        refused = program.over_memory == "refuse" and not program.fits
    if refused:
        report(estimated(program, phases), reporting)
        stop_unless_fits(program)
    mode = work.options.mode
    with phases("run"), _stopped_by_interrupts(session):
        profile, results, drained = run_in_session(
            program, work.arrays, work.options, session, turns_told(mode, program)
        )
    report(profile, reporting)
    show_session(results, drained, session, output, reporting.as_json)
    return profile


def run(work: Work, phases: Phases, reporting: Reporting) -> RunResult:
    """Run a program that fits, or may be too large; report an estimate of one that may not."""
    program, options = work.program, work.options
    with phases("memory"):
        refused = program.over_memory == "refuse" and not program.fits
    if refused:
        report(estimated(program, phases), reporting)
        stop_unless_fits(program)
    with phases("run"), _stopped_by_interrupts():
        return program.run(
            *work.arguments,
            mode=options.mode,
            poison=options.poison,
            seed=options.seed,
            progress=turns_told(options.mode, program),
            max_iterations=options.max_iterations,
        )


@contextmanager
def _stopped_by_interrupts(session: SessionOptions | None = None) -> Iterator[None]:
    """Say what an interrupt leaves: raises RunInterruptedError E5029 in its place."""
    try:
        yield
    except HloipuError:  # the wait for a stream says more
        raise
    except KeyboardInterrupt:
        place = session.checkpoint if session is not None else None
        raise RunInterruptedError(
            "E5029",
            "interrupted while the program ran: no results were written",
            hint=f"--resume continues from the last checkpoint in {place!r}, if one is there"
            if place
            else "",
        ) from None


def show_values(
    program: CompiledProgram, result: RunResult, output: str | None, reporting: Reporting
) -> None:
    """Write the results to a file if asked, or print them under the verdict."""
    if output:
        save_arrays(output, result.outputs)
        say(f"wrote {len(result.outputs)} arrays to {output}", err=True)
        return
    if reporting.as_json:
        return
    ports = seen_by_users(program.program).results
    for number, (port, value) in enumerate(zip(ports, result.outputs, strict=True)):
        sizes = ",".join(map(str, port.shape))
        say(f"out_{number} {port.element_type}[{sizes}] = {shown(value)}")
