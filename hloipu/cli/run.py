"""`hloipu run FILE`: a program's values on the simulated machine, and what they cost."""

from collections.abc import Sequence
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
    program_of,
    read_verified,
    report,
    show_times,
    shown_config,
    stop_unless_fits,
)
from hloipu.cli.eval import shown
from hloipu.cli.inputs import HLO_FILE
from hloipu.cli.options import Asked
from hloipu.cli.progress import progress_line
from hloipu.cli.values import ValueLimits, given_arguments, input_options
from hloipu.inputs import save_arrays
from hloipu.options.table import Options
from hloipu.phases import Phases
from hloipu.ports import module_of_ports
from hloipu.session import compile_cached
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.report.profile import Profile

Work = tuple[CompiledProgram, Options, Sequence[Any]]
"""A program, how to run it, and its arguments."""


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
    phases = Phases()
    if asked.resolved_quietly().mode == "estimate":
        report(estimated(program_of(given_file(file), limits.text, asked, phases), phases), reporting)
        show_times(phases, reporting)
        return
    given = (inputs, random, fill)
    program, options, arguments = prepared(given_file(file), given, limits, asked, phases)
    if not program.fits:
        estimate = estimated(program, phases)
        if program.over_memory == "refuse":
            report(estimate, reporting)
        stop_unless_fits(program)
    with progress_line(options.mode, program, shown=not no_progress) as line, phases("run"):
        result = program.run(*arguments, mode=options.mode, poison=options.poison, progress=line)
    report(result.profile, reporting)
    if output:
        save_arrays(output, result.outputs)
        click.echo(f"wrote {len(result.outputs)} arrays to {output}", err=True)
    elif not reporting.as_json:
        show_values(program, result.outputs)
    show_times(phases, reporting)
