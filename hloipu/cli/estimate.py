"""`hloipu estimate FILE`: cycles and bytes without values, for models of any size."""

from dataclasses import replace

import click

from hloipu.cli.compiling import (
    Reporting,
    chart_option,
    compiling_options,
    estimated,
    given_file,
    program_of,
    report,
    shown_config,
    timed,
)
from hloipu.cli.inputs import HLO_FILE, limit_option
from hloipu.cli.options import Asked
from hloipu_compiler.hlo.limits import Limits


@click.command("estimate")
@click.argument("file", type=HLO_FILE, required=False)
@chart_option
@compiling_options("estimate")
@limit_option
def command(
    file: str | None, chart: bool, limits: Limits, asked: Asked, reporting: Reporting
) -> None:
    """Estimate one run of FILE, HLO text (- for standard input) or an executable.

    A program that does not fit is estimated, too.
    """
    if shown_config(asked, reporting.as_json):
        return
    with timed(reporting) as phases:
        program = program_of(given_file(file), limits, asked, phases)
        report(estimated(program, phases), replace(reporting, chart=chart))
