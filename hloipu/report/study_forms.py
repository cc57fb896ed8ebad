"""Export a sweep's rows: CSV, Parquet, or an HTML page."""

import csv
import io
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hloipu.report.page import page_of
from hloipu.sweeping.goals import FIGURES, LARGER_IS_BETTER
from hloipu.sweeping.study import Rows
from hloipu_runtime.atomic_file import replacing
from hloipu_runtime.errors import UsageError

_SCRIPTS = ("core.js", "study.js")
_STYLES = ("style.css",)


def study_page(rows: Rows, name: str) -> bytes:
    """Return the page of a study's rows; `name` stands in its title."""
    return page_of(study_page_record(rows, name), f"hloipu: {name}", _SCRIPTS, _STYLES)


def study_page_record(rows: Rows, name: str) -> Mapping[str, Any]:
    """Return what the page draws: columns, so that names of axes stand there once.

    Figures that no row has are left out; the goals come first.
    """
    known = [figure for figure in FIGURES if any(figure in row.figures for row in rows)]
    goals = [goal for goal in rows.goals if goal in known]
    return {
        "name": name,
        "axes": {axis: [str(row.settings.get(axis, "")) for row in rows] for axis in rows.axes},
        "figures": {
            figure: [row.figures.get(figure) for row in rows]
            for figure in (*goals, *(other for other in known if other not in goals))
        },
        "larger": sorted(LARGER_IS_BETTER),
        "goals": goals,
        "number": [row.number for row in rows],
        "fits": [row.fits for row in rows],
        "code": [row.code for row in rows],
        "message": [row.message for row in rows],
        "command": [row.command for row in rows],
        "best": [row.number for row in rows.best],
    }


def csv_text(rows: Rows) -> str:
    """Return rows as CSV; a text that a spreadsheet would compute is quoted."""
    stream = io.StringIO()
    records = rows.records()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(records[0] if records else ())
    for record in records:
        writer.writerow([_cell(value) for value in record.values()])
    return stream.getvalue()


def _cell(value: Any) -> Any:
    """Return what a cell of CSV holds: formulas of spreadsheets become texts."""
    is_formula = isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{value}" if is_formula else value


def write_parquet(rows: Rows, path: Path) -> None:
    """Write rows to a Parquet file; UsageError E3192 where pandas or pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        raise UsageError("E3192", "pyarrow is not installed", hint="pip install pandas pyarrow")
    frame = rows.frame()
    with replacing(path) as stream:
        frame.to_parquet(stream, index=False)
