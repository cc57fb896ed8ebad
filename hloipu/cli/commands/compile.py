"""`hloipu compile FILE`: a program for a machine, whether it fits, and what it will cost."""

from dataclasses import replace

import click

from hloipu.cli.compiling import (
    Reporting,
    chart_option,
    compiled,
    compiling_options,
    estimated,
    given_file,
    read_verified,
    report,
    stop_unless_fits,
    tell_pipelines,
    timed,
    with_fitting,
)
from hloipu.cli.inputs import HLO_FILE, OUTPUT_FILE, limit_option
from hloipu.cli.options import Asked, GroupedCommand
from hloipu.cli.saying import say
from hloipu_compiler.hlo.syntax.limits import Limits


@click.command("compile", cls=GroupedCommand)
@click.argument("file", type=HLO_FILE, required=False)
@click.option("-o", "--output", type=OUTPUT_FILE, help="Write the executable to this .ipux file.")
@click.option("--findings", is_flag=True, help="Print all findings, not only the first three.")
@chart_option
@compiling_options("compile")
@limit_option
def command(
    file: str | None,
    output: str | None,
    findings: bool,
    chart: bool,
    limits: Limits,
    asked: Asked,
    reporting: Reporting,
) -> None:
    """Compile FILE (- for standard input) and report whether it fits and where cycles go.

    A program that does not fit ends with exit code 5, its profile written and no executable.

    \b
      hloipu compile step.hlo --target gc200 -o step.ipux
      hloipu run step.ipux --random 0
    """
    with timed(reporting) as phases:
        module, text = read_verified(given_file(file), limits, phases, asked)
        program = compiled(asked, module, text, phases)
        profile = with_fitting(estimated(program, phases), program, phases)
        tell_pipelines(profile)
        report(profile, replace(reporting, chart=chart))
        if findings and not reporting.as_json:
            from hloipu.cli.result_text import findings_text

            say(findings_text(profile))
        stop_unless_fits(program)
        if output is not None:
            with phases("save"):
                program.save(output)
            say(f"wrote {output}", err=True)
