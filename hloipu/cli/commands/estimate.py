"""`hloipu estimate FILE`: cycles and bytes without values, for models of any size."""

import json
from dataclasses import replace

import click

from hloipu.api import module_attributes
from hloipu.choosing import choice_record
from hloipu.choosing import sweep as swept_over
from hloipu.cli.compiling import (
    Reporting,
    chart_option,
    compiling_options,
    estimated,
    given_file,
    program_of,
    read_verified,
    report,
    timed,
)
from hloipu.cli.inputs import HLO_FILE, limit_option
from hloipu.cli.options import Asked, GroupedCommand
from hloipu.cli.result_text import choice_text
from hloipu.cli.saying import say
from hloipu.showing import Phases
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_runtime.errors import UsageError


@click.command("estimate", cls=GroupedCommand)
@click.argument("file", type=HLO_FILE, required=False)
@click.option(
    "--sweep",
    multiple=True,
    metavar="KEY=V,V…",
    help="Tabulate ways to cut the step in place of one: stages, schedule, micro-batches, "
    "recompute, offload, replicas, shard-optimizer, device-map, offload-weights, "
    "offload-activations, offload-accumulators, batch-serialization; repeatable.",
)
@chart_option
@compiling_options("estimate")
@limit_option
def command(
    file: str | None,
    chart: bool,
    sweep: tuple[str, ...],
    limits: Limits,
    asked: Asked,
    reporting: Reporting,
) -> None:
    """Estimate one run of FILE, HLO text (- for standard input) or an executable.

    A program that does not fit is estimated, too.
    """
    with timed(reporting) as phases:
        if sweep:
            _tabulate(given_file(file), sweep, limits, asked, reporting, phases)
            return
        program = program_of(given_file(file), limits, asked, phases)
        report(estimated(program, phases), replace(reporting, chart=chart))


def _tabulate(
    file: str,
    asked_for: tuple[str, ...],
    limits: Limits,
    asked: Asked,
    reporting: Reporting,
    phases: Phases,
) -> None:
    """Print the estimate of each combination of what is swept over."""
    module, _ = read_verified(file, limits, phases, asked)
    options = asked.resolved(module_attributes(module)).options
    with phases("sweep"):
        choice = swept_over(module, options, _values(asked_for))
    if reporting.as_json:
        say(json.dumps(choice_record(choice), indent=1))
    else:
        say(choice_text(choice, len(choice.rows)))


def _values(asked_for: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the values of each key; UsageError E3012 for a key that is there twice."""
    values_by_key: dict[str, list[str]] = {}
    for text in asked_for:
        key, _, values = text.partition("=")
        if key in values_by_key:
            raise UsageError("E3012", f"--sweep says {key} twice", hint="leave one of them out")
        values_by_key[key] = values.split(",")
    return values_by_key
