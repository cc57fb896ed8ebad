"""A study for the terminal: its rows, what failed, and the points that none beats."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hloipu.cli.table import counted, readable_bytes, shortened, table
from hloipu.sweeping.goals import LARGER_IS_BETTER
from hloipu.sweeping.store import Row
from hloipu.sweeping.study import Rows

MOST_ROWS = 50
_WIDTH = 24
_SHOWN = ("cycles", "seconds", "samples_per_second", "peak_bytes", "ipus")


def study_record(rows: Rows) -> dict[str, Any]:
    """Return a study as JSON data."""
    return {
        "schema": "hloipu.study/1",
        "axes": list(rows.axes),
        "goals": list(rows.goals),
        "best": [row.number for row in rows.best],
        "rows": rows.records(),
    }


def study_text(rows: Rows, most: int = MOST_ROWS) -> str:
    """Return a table of rows, how many there are of which kind, and the Pareto front."""
    parts = [_table(rows.axes, rows[:most])] if most and len(rows) else []
    if 0 < most < len(rows):
        parts.append(f"and {len(rows) - most} more rows")
    parts.append(_counts(rows))
    parts.append(front_text(rows, most or MOST_ROWS))
    return "\n\n".join(parts)


def front_text(rows: Rows, most: int = MOST_ROWS) -> str:
    """Return a table of the rows that none beats, and the command of the first."""
    best = rows.best
    words = [
        f"{'most' if goal in LARGER_IS_BETTER else 'least'} {_words(goal)}" for goal in rows.goals
    ]
    if not best:
        return f"no row fits: none has {' and '.join(words)}"
    text = f"{counted(len(best), 'row')} with {' and '.join(words)} that none beats in all:\n"
    return f"{text}{_table(rows.axes, best[:most])}\n\nthe first by: {best[0].command}"


def _counts(rows: Rows) -> str:
    done = [row for row in rows if row.record is not None]
    fitting = sum(row.fits for row in done)
    codes = Counter(row.code for row in done if row.code)
    failed = ", ".join(f"{n} with {code}" for code, n in sorted(codes.items()))
    parts = [counted(len(rows), "row"), f"{fitting} fit",
             f"{len(done) - fitting - codes.total()} do not fit"]  # fmt: skip
    if failed:
        parts.append(f"{codes.total()} failed ({failed})")
    if len(done) < len(rows):
        parts.append(f"{len(rows) - len(done)} to come")
    # The first row of each error says what it is about.
    first = {row.code: row for row in reversed(done) if row.code}
    failures = [f"{code}, first in row {row.number}: {row.message}" for code, row in first.items()]
    return "\n".join((", ".join(parts), *sorted(failures)))


def _table(axes: Sequence[str], rows: Sequence[Row]) -> str:
    head = ("row", *(shortened(axis, _WIDTH) for axis in axes), "fits", *map(_words, _SHOWN))
    return table(head, [_cells(axes, row) for row in rows])


def _cells(axes: Sequence[str], row: Row) -> list[str]:
    settings = [shortened(str(row.settings.get(axis, "")), _WIDTH) for axis in axes]
    verdict = "to come" if row.record is None else row.code or ("yes" if row.fits else "no")
    figures = [_figure(name, row.figures.get(name)) for name in _SHOWN]
    return [str(row.number), *settings, verdict, *figures]


def _figure(name: str, value: Any) -> str:
    if not isinstance(value, int | float):
        return ""
    if name.endswith("_bytes"):
        return readable_bytes(int(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _words(figure: str) -> str:
    return figure.replace("_per_", "/").replace("_", " ")
