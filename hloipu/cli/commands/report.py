"""`hloipu report FILE`: all that is known of a program as one HTML file to look at."""

import webbrowser
from dataclasses import replace
from pathlib import Path

import click

from hloipu.api import compile_cached
from hloipu.cli.commands.compare import read_profile
from hloipu.cli.compiling import given_file, is_executable, loaded, read_verified, settled_for
from hloipu.cli.inputs import HLO_FILE, OUTPUT_FILE, limit_option
from hloipu.cli.options import Asked, GroupedCommand, option_group
from hloipu.cli.saying import say
from hloipu.report.page import write_page
from hloipu.report.record import of_profile, report_record
from hloipu.showing import Phases
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import UsageError


@click.command("report", cls=GroupedCommand)
@click.argument("file", type=HLO_FILE, required=False)
@click.option("-o", "--output", type=OUTPUT_FILE, metavar="PAGE.html",
              help="Where to write it; FILE's name with the ending .html by default.")  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@limit_option
@option_group("estimate")
def command(
    file: str | None, output: str | None, opens: bool, limits: Limits, asked: Asked
) -> None:
    """Write a page that shows what a program does: findings, time, memory, pipelines, graph.

    FILE is HLO text (- for standard input), which is compiled and estimated, an executable, or a
    profile that --profile wrote. The page needs nothing beside itself. It has call stacks, scopes,
    roofline and graph where FILE is HLO text, bytes of tiles and the order of steps unless it is a
    profile.

    \b
      hloipu report step.hlo --target bow --open
      hloipu run step.hlo --random 0 --profile run.json; hloipu report run.json
    """
    file = given_file(file)
    if output is None and file == "-":
        raise UsageError(
            "E3004", "standard input has no name for the page", hint="give -o PAGE.html"
        )
    path = Path(output or Path(file).with_suffix(".html").name)
    size_bytes = write_page(_record(file, limits, asked), path)
    say(f"wrote {size_bytes:,} bytes to {path}", err=True)
    if opens:
        webbrowser.open(path.resolve().as_uri())


def _record(file: str, limits: Limits, asked: Asked) -> dict[str, object]:
    if file.endswith(".json"):
        return of_profile(read_profile(file), "", "")
    return report_record(described_program(file, limits, asked))


def described_program(file: str, limits: Limits, asked: Asked) -> CompiledProgram:
    """Return the program of a file, with what reports say of its module where it is HLO text."""
    phases = Phases()
    if is_executable(file):
        return loaded(file, asked, phases)[0]
    module, text = read_verified(file, limits, phases, asked)
    settled = settled_for(asked, module, text)
    # Programs from the cache have no module any more.
    options = replace(settled.options, cache=False)
    return compile_cached(settled.module, text, options, phases, ready=settled.program)
