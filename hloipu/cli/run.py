"""`hloipu run FILE`: a program's values on the simulated machine, and what they cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from hloipu.cli.compiling import (
    Reporting,
    compiling_options,
    estimated,
    given_file,
    is_executable,
    loaded,
    options_for,
    read_verified,
    report,
    shown_config,
    stop_unless_fits,
    timed,
    too_late,
)
from hloipu.cli.eval import shown
from hloipu.cli.inputs import HLO_FILE
from hloipu.cli.options import Asked
from hloipu.cli.progress import progress_line
from hloipu.cli.values import ValueLimits, given_arguments, input_options
from hloipu.inputs import save_arrays
from hloipu.options.table import Options
from hloipu.phases import Phases
from hloipu.ports import module_of_ports, without_tokens
from hloipu.session import compile_cached
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.compiled import CompiledProgram, RunResult


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where arguments come from, as the command line says."""

    file: str | None
    random: int | None
    fill: int | None
    limits: ValueLimits


@dataclass(frozen=True, slots=True)
class Work:
    """A program, how to run it, and on what; an estimate needs no arguments."""

    program: CompiledProgram
    options: Options
    arguments: Sequence[Any] = ()


@click.command("run")
@click.argument("file", type=HLO_FILE, required=False)
@click.option("-o", "--output", type=click.Path(), help="Write out_0, out_1, … to this .npz file.")
@compiling_options("run")
@click.option("--no-progress", is_flag=True, help="Show no progress of long runs on a terminal.")
@input_options
def command(
    file: str | None,
    output: str | None,
    no_progress: bool,
    inputs: str | None,
    random: int | None,
    fill: int | None,
    limits: ValueLimits,
    asked: Asked,
    reporting: Reporting,
) -> None:
    """Run FILE, HLO text (- for standard input) or an executable; print verdict and values.

    \b
      hloipu run step.hlo --random 0 --target bow --mode exact
      hloipu run step.ipux --inputs batch.npz -o results.npz
    """
    if shown_config(asked, reporting.as_json):
        return
    with timed(reporting) as phases:
        work = prepared(given_file(file), Inputs(inputs, random, fill, limits), asked, phases)
        if work.options.mode == "estimate":
            report(estimated(work.program, phases), reporting)
            return
        result = run(work, phases, reporting, shows_progress=not no_progress)
        report(result.profile, reporting)
        show_values(work.program, result, output, reporting)


def prepared(file: str, inputs: Inputs, asked: Asked, phases: Phases) -> Work:
    """Return the program of a file, compiled if need be, and its arguments."""
    if is_executable(file):
        if inputs.fill is not None:
            raise too_late(file, "--fill-elided")
        program, options = loaded(file, asked, phases)
        if options.mode == "estimate":
            return Work(program, options)
        ports = module_of_ports(program.program)
        return Work(program, options, arguments_of(ports, inputs)[1])
    module, text = read_verified(file, inputs.limits.text, phases)
    options = options_for(asked, module)
    if options.mode == "estimate":
        return Work(compile_cached(module, text, options, phases), options)
    with phases("arguments"):
        module, leaves = arguments_of(module, inputs)
    if inputs.fill is not None:
        text += f"\n// elided constants filled with seed {inputs.fill}"
    program = compile_cached(module, text, options, phases)
    return Work(program, options, without_tokens(module, leaves))


def arguments_of(module: Module, inputs: Inputs) -> tuple[Module, list[Any]]:
    """Return the module, filled if asked, and the leaves of its arguments."""
    return given_arguments(module, inputs.file, inputs.random, inputs.fill, inputs.limits.values)


def run(work: Work, phases: Phases, reporting: Reporting, *, shows_progress: bool) -> RunResult:
    """Run a program that fits, or may be too large; report an estimate of one that may not."""
    program, options = work.program, work.options
    with phases("memory"):
        refused = program.over_memory == "refuse" and not program.fits
    if refused:
        report(estimated(program, phases), reporting)
        stop_unless_fits(program)
    with progress_line(options.mode, program, shown=shows_progress) as line, phases("run"):
        return program.run(
            *work.arguments,
            mode=options.mode,
            poison=options.poison,
            seed=options.seed,
            progress=line,
        )


def show_values(
    program: CompiledProgram, result: RunResult, output: str | None, reporting: Reporting
) -> None:
    """Write the results to a file if asked, or print them under the verdict."""
    if output:
        save_arrays(output, result.outputs)
        click.echo(f"wrote {len(result.outputs)} arrays to {output}", err=True)
        return
    if reporting.as_json:
        return
    ports = program.program.results
    for number, (port, value) in enumerate(zip(ports, result.outputs, strict=True)):
        sizes = ",".join(map(str, port.shape))
        click.echo(f"out_{number} {port.element_type}[{sizes}] = {shown(value)}")
