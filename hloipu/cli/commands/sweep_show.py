"""`hloipu sweep-show STUDY.db`: the rows of a sweep as text, JSON, CSV, Parquet or a page."""

import json
from pathlib import Path

import click

from hloipu.cli.inputs import OUTPUT_FILE
from hloipu.cli.saying import say, say_hlo
from hloipu.cli.sweep_text import MOST_ROWS, front_text, study_record, study_text
from hloipu.sweeping.goals import checked_goals
from hloipu.sweeping.store import Store
from hloipu.sweeping.study import Rows, read_rows
from hloipu_runtime.atomic_file import replacing
from hloipu_runtime.errors import UsageError


@click.command("sweep-show")
@click.argument("study", type=click.Path())
@click.option(
    "--goal",
    "goals",
    multiple=True,
    metavar="FIGURE",
    help="The Pareto front is of these; by default those of the sweep, or seconds and "
    "peak-bytes; repeatable.",
)
@click.option(
    "--rows",
    "most_rows",
    type=click.IntRange(0),
    default=MOST_ROWS,
    show_default=True,
    help="Print at most N rows.",
)
@click.option("--pareto", "only_front", is_flag=True, help="Print the Pareto front alone.")
@click.option("--commands", is_flag=True, help="Print the command of each row, in order.")
@click.option("--json", "as_json", is_flag=True, help="Print all rows as JSON.")
@click.option("--module", "digest", metavar="DIGEST", help="Print this module of the study.")
@click.option(
    "-o",
    "--output",
    type=OUTPUT_FILE,
    metavar="FILE",
    help="Write all rows here: .csv, .html, .json or .parquet (needs pandas, pyarrow).",
)
def command(
    study: str,
    goals: tuple[str, ...],
    most_rows: int,
    only_front: bool,
    commands: bool,
    as_json: bool,
    digest: str | None,
    output: str | None,
) -> None:
    """Show the rows of a study, finished or under way, and those that none beats.

    \b
      hloipu sweep-show study.db --goal seconds --goal ipus
      hloipu sweep-show study.db -o study.html
    """
    with Store.opened(Path(study)) as store:
        if digest is not None:
            say_hlo(store.module(digest))
            return
        rows = read_rows(store)
    if goals:
        rows = Rows(rows, checked_goals(goals))
    if output is not None:
        _write(rows, Path(output), Path(study).name)
    elif as_json:
        say(json.dumps(study_record(rows)))
    elif commands:
        for row in rows:
            say(row.command)
    else:
        say(front_text(rows, most_rows) if only_front else study_text(rows, most_rows))


def _write(rows: Rows, path: Path, name: str) -> None:
    """Write rows in the form that a file's name says; UsageError E3190 for another name."""
    from hloipu.report.study_forms import csv_text, study_page, write_parquet

    if path.suffix == ".parquet":
        write_parquet(rows, path)
        return
    if path.suffix == ".html":
        data = study_page(rows, name)
    elif path.suffix == ".csv":
        data = csv_text(rows).encode("utf-8", "backslashreplace")
    elif path.suffix == ".json":
        data = json.dumps(study_record(rows)).encode()
    else:
        raise UsageError(
            "E3190",
            f"no form of rows has a name like {str(path)!r}",
            hint="end it in .csv, .html, .json or .parquet",
        )
    with replacing(path) as stream:
        stream.write(data)
