"""`hloipu sweep FILE… --over NAME=V,V…`: a module under every combination of values."""

import json
from pathlib import Path
from typing import Any

import click

from hloipu.cli.inputs import HLO_FILE, OUTPUT_FILE, limit_option, read_input
from hloipu.cli.options import Asked, GroupedCommand, option_group
from hloipu.cli.saying import say
from hloipu.cli.sweep_text import study_record, study_text
from hloipu.options.kinds import Size
from hloipu.sweeping import study
from hloipu.sweeping.axes import axis_of_text
from hloipu.sweeping.store import Store
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_runtime.errors import UsageError

_MOST = 2**50


@click.command("sweep", cls=GroupedCommand)
@click.argument("files", nargs=-1, type=HLO_FILE)
@click.option(
    "--over",
    "over",
    multiple=True,
    metavar="NAME=V,V…",
    help="An axis: an option below, set.KEY for a number of the machine, batch (samples) or dtype "
    "(f32, f16, bf16), with its values; 1..8, 8..64+8 and 1..64*2 are ranges, `default` is the "
    "point without; values with commas are parted by `;`; repeatable.",
)
@click.option("-o", "--output", type=OUTPUT_FILE, metavar="FILE.db", help="Keep the rows here.")
@click.option("--resume", is_flag=True, help="Resume from the rows in FILE.db.")
@click.option(
    "--points",
    type=int,
    metavar="N",
    help="Draw N points, or look at N for --goal; by default all, or 100.",
)
@click.option(
    "--seed",
    "sample_seed",
    type=int,
    default=0,
    show_default=True,
    metavar="S",
    help="Seed of the draw, or of the search.",
)
@click.option(
    "--goal",
    "goals",
    multiple=True,
    metavar="FIGURE",
    help="Search by Optuna for the best of this figure: cycles, device-cycles, seconds, "
    "samples-per-second, peak-bytes, code-bytes, ipus; repeatable.",
)
@click.option(
    "--workers",
    type=int,
    metavar="N",
    help="Processes; by default as many as there are processors, 0: this one.",
)
@click.option("--scheduler", metavar="ADDRESS", help="Use the Dask cluster at this address.")
@click.option("--point-memory", metavar="SIZE", help="Memory limit of a worker: 4GiB.")
@click.option("--point-seconds", type=float, metavar="X", help="Time limit of a point.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
@option_group("estimate")
@limit_option
def command(
    files: tuple[str, ...],
    over: tuple[str, ...],
    output: str | None,
    resume: bool,
    points: int | None,
    sample_seed: int,
    goals: tuple[str, ...],
    workers: int | None,
    scheduler: str | None,
    point_memory: str | None,
    point_seconds: float | None,
    as_json: bool,
    limits: Limits,
    asked: Asked,
) -> None:
    """Estimate FILEs (- for standard input) under all combinations of values, on many workers.

    Each result goes to FILE.db as it comes: what is killed goes on with --resume. Options are
    those that all points share. A point that fails is a row with its error.

    \b
      hloipu sweep step.hlo --over target=gc200,bow --over stages=default,2,4 -o study.db
      hloipu sweep step.hlo --over set.bytes_per_tile=262144..1048576*2 --over batch=8,16
    """
    if not files:
        raise click.UsageError("Missing argument 'FILES'.")
    if output is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    memory: Any = None if point_memory is None else Size(_MOST).read(point_memory)
    if point_memory is not None and not isinstance(memory, int):
        raise UsageError("E3011", f"--point-memory is {Size(_MOST).expected}, not {point_memory!r}")
    wanted = study.Asked(
        tuple(axis_of_text(text) for text in over),
        points, sample_seed, goals, workers, scheduler, memory, point_seconds, resume, asked.config,
    )  # fmt: skip
    asked.resolved()  # says what is wrong with what all points share
    steps = [file if file != "-" else read_input("-", limits).text for file in files]
    try:
        rows = study.run_study(steps, wanted, asked.given, Path(output), limits)
    except KeyboardInterrupt:
        if Path(output).is_file():
            with Store.opened(Path(output)) as store:
                planned, done, _ = store.count()
            say(f"{done} of {planned} rows are in {output}; --resume continues", err=True)
        raise
    say(json.dumps(study_record(rows)) if as_json else study_text(rows))
