"""A sweep as one HTML file: its points against two figures, what none beats, all rows."""

from collections.abc import Mapping
from typing import Any

from hloipu.report.page import page_of
from hloipu.sweeping.goals import FIGURES, LARGER_IS_BETTER
from hloipu.sweeping.study import Rows

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
            for figure in (*goals, *(x for x in known if x not in goals))
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
