"""`hloipu advise FILE`: what keeps a program slow or large, and what each cure gains."""

from dataclasses import replace

import click

from hloipu.advice.fitting import what_fits
from hloipu.advice.trials import with_gains
from hloipu.api import compile_as_asked, compile_verified
from hloipu.cli.compiling import (
    Reporting,
    compiling_options,
    estimated,
    given_file,
    read_verified,
    report,
    settled_for,
    timed,
)
from hloipu.cli.inputs import HLO_FILE, limit_option
from hloipu.cli.options import Asked
from hloipu.cli.result_text import findings_text
from hloipu.cli.saying import say
from hloipu_compiler.hlo.syntax.limits import Limits


@click.command("advise")
@click.argument("file", type=HLO_FILE, required=False)
@compiling_options("compile")
@limit_option
def command(file: str | None, limits: Limits, asked: Asked, reporting: Reporting) -> None:
    """Compile FILE (- for standard input) and suggest what would make it smaller or faster.

    Each finding has its evidence and a cure; a cure that is an option, or half precision, is
    compiled with, and what came of it printed. A program that does not fit is given changes with
    which it does. Takes up to ten times as long as compiling, for each.
    """
    with timed(reporting) as phases:
        module, text = read_verified(given_file(file), limits, phases, asked)
        settled = settled_for(asked, module, text)
        module, options = settled.module, settled.options
        program = settled.program or compile_verified(module, options, phases)
        profile = estimated(program, phases)
        with phases("advice"):
            findings = with_gains(profile.findings, module, options, program, compile_as_asked)
            fitting = None
            if not program.fits:
                fitting = what_fits(module, options, program, compile_as_asked)
            profile = replace(profile, findings=findings, fitting=fitting)
        report(profile, reporting)
        if not reporting.as_json:
            say(findings_text(profile))
